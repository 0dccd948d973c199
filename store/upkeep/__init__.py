"""Keeps a store within its limits, counts hits, and keeps the index behind `npugx-cache ls`."""
