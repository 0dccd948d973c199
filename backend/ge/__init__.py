"""Graphs for CANN's graph engine (GE): how they are converted, described, loaded and called."""
