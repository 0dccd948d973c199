"""The only door to the compiler: `call` traces a call, `piece` takes a graph that others traced.

Most modules of this package load the compiler, and can't be imported on a torch that is not served;
so this file imports none. `outcomes` loads no compiler.
"""
