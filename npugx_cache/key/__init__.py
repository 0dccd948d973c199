"""Forms the key of an entry before anything is traced, by recipe, environment and arguments."""
