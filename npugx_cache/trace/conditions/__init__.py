"""Turns torch's guards, and what else a trace depended on, into the conditions of an entry."""
