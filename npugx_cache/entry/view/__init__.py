"""The text of an entry for people, made when somebody reads it. Imports no torch."""
