"""Shared libraries that Inductor compiled: how they are made, described, loaded and called."""
