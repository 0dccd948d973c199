"""`python -m npugx_cache.cli`."""

from npugx_cache.cli import main

main()
