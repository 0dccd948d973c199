"""Passes as an engine has them: a manager, patterns that close over objects, and a configuration.

Tests edit the text of this file; each line that they edit has a comment `# edit`.
"""

from __future__ import annotations

import logging
import threading
import time

import torch
import torch._inductor.pattern_matcher as pm

logger = logging.getLogger("engine")
MODULE_FACTOR = 1.0  # edit


class Configuration:
    """What only constructors look at. It can't be compared in another process."""

    def __init__(self, scale):
        self.scale = scale
        self.lock = threading.Lock()


def helper(value):
    return value * 1.0  # edit


class Pattern:
    def __init__(self, configuration):
        self.configuration = configuration
        self.scale = configuration.scale
        self.table = {"factors": [1.0, {"last": 1.0}]}  # edit

    def factor(self):
        return helper(self.scale) * self.table["factors"][1]["last"] * MODULE_FACTOR

    def register(self, patterns):
        def pattern(x, y):
            return x * self.scale + y

        def replacement(x, y):
            return torch.ops.fusing.muls_add(x, y, self.factor())

        examples = [torch.randn(2, 4), torch.randn(2, 4)]
        pm.register_replacement(pattern, replacement, examples, pm.fwd_only, patterns)


class Pass:
    uses = True  # edit

    def __init__(self, configuration):
        self.patterns = pm.PatternMatcherPass(pass_name="muls_add")
        Pattern(configuration).register(self.patterns)
        # more state

    def __call__(self, graph):
        self.started = time.perf_counter()
        self.matched = self.patterns.apply(graph) if self.uses else 0
        # more code
        logger.debug("%s in %s s", self.matched, time.perf_counter() - self.started)

    def is_applicable(self, size):
        return True


class Manager:
    runs = 0

    def __init__(self):
        self.passes = []

    def __call__(self, graph):
        type(self).runs += 1
        for each in self.passes:
            if each.is_applicable(1):
                each(graph)
        graph.recompile()
        return graph


def make_manager(scale):
    manager = Manager()
    manager.passes.append(Pass(Configuration(scale)))
    return manager
