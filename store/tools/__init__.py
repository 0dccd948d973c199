"""Tools for people: verify a whole store, copy entries between stores, examine a folder."""
