"""Servers for a remote tier, and hosts that share nothing else."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import faults
import networks as namespaces
import servers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Engines]:
    lacking = [
        what
        for what, found in (
            ("no redis-server here: apt-get install -y redis-server", servers.redis_program()),
            ("no moto_server here: pip install 'moto[server]'", servers.moto_program()),
        )
        if found is None
    ]
    if lacking:
        if os.environ.get("CI") == "true":
            pytest.fail("; ".join(lacking))
        pytest.skip("; ".join(lacking))
    made = faults.Engines(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


@pytest.fixture
def networks() -> Iterator[list[namespaces.Network]]:
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(namespaces.two_networks())
        except (namespaces.NotAllowed, FileNotFoundError) as error:
            pytest.skip(f"no network namespaces here (they need root and iproute2): {error}")
        yield made
