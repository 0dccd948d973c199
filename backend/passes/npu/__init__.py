"""Passes that replace several calls by one fused operator of the NPU."""
