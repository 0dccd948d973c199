"""Compilation cache and artifact store for graph-mode inference."""
