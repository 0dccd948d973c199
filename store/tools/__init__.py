"""What a person asks of a store: check all of it, move entries, find out what is wrong with it."""
