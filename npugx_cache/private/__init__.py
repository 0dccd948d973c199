"""Every private torch name the package uses, with the versions it was checked on.

`runtime` may be imported on the hit path; `tracing` only by `npugx_cache.trace`.
"""
