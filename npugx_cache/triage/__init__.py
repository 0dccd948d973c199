"""Runs a program in the ways in which it can run, and compares each with eager.

`npugx-cache triage` starts a fresh process for each stage: `python -m npugx_cache.triage PLAN`.
"""
