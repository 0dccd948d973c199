"""The system calls of the store, and the checks of who could have written a file or folder."""
