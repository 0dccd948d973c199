"""`python -m npugx_cache`: the command `npugx-cache`."""

from npugx_cache.cli import main

main()
