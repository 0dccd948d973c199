"""The versions of this package and of its entries, in a module that imports nothing."""

VERSION = "0.1.0"

FORMAT = "35"
"""Version of what an entry holds; raised whenever older entries must not be read any more."""
