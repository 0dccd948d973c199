"""Inductor's kernels as a library that an entry holds."""
