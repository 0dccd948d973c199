"""Passes that replace several calls by one fused operator of the NPU that computes the same.

The patterns of users run before these. If you change what is fused, raise `patterns.NPU_FUSIONS`.
"""
