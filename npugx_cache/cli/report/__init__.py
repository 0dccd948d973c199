"""`npugx-cache report`: static pages about a store, made of what the other commands show."""
