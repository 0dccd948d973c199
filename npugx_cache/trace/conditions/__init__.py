"""From torch's guards and what else a trace depended on to the conditions of an entry."""
