"""Private names of torch and torch_npu that are used outside a trace. Holds no policy.

A restored call may import all modules but `inductor_compile`, `patterns` and `ge_convert`, which
load Inductor.
Private names that only a trace needs are in `npugx_cache.trace`.
"""
