"""Fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from stack import Stack, missing

from rollwright import ActionClient


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
