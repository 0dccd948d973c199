"""The contents of one folder: opened, read, verified, locked, published."""
