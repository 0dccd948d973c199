"""What keeps a store small and known: limits, cleaning, usage, the index behind `ls`."""
