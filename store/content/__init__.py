"""Opens one cache folder, and reads, verifies, locks and publishes the entries in it."""
