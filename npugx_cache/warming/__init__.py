"""Restores or compiles what calls of one callable need: `npugx-cache warm module:callable`.

The command line starts a process for it, `python -m npugx_cache.warming TARGET INPUTS...`, and
reads in the journal what came of it.
"""
