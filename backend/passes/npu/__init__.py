"""The NPU's fused operators in the place of several calls."""
