"""The system calls of the store, and whom a folder belongs to."""
