"""Fixtures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from stack import Stack, missing

from rollwright import ActionClient

# The agent reads no configuration of this machine, and asks nobody for prices.
_CONFIG = tempfile.TemporaryDirectory(prefix="rwpy-")
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = _CONFIG.name
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A real queue with a node, on a Unix socket."""
    if reason := missing():
        if os.environ.get("ROLLWRIGHT_REQUIRE_QUEUE"):
            pytest.fail(reason)
        pytest.skip(reason)
    stack = Stack()
    yield stack
    stack.stop()


@pytest.fixture
def client(stack: Stack) -> Iterator[ActionClient]:
    """A client of the real queue."""
    with ActionClient(stack.address) as client:
        yield client


@pytest.fixture
def anyio_backend() -> str:
    """Programs with asyncio."""
    return "asyncio"
