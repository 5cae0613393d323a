"""Fixtures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from gateway import Engine, Gateway
from programs import built, skip
from stack import Stack, missing

from rollwright import ActionClient, RolloutClient

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
        skip(reason)
    stack = Stack()
    yield stack
    stack.stop()


@pytest.fixture
def client(stack: Stack) -> Iterator[ActionClient]:
    """A client of the real queue."""
    with ActionClient(stack.address) as client:
        yield client


@pytest.fixture(scope="session")
def programs() -> None:
    """The gateway and the simulator of engines are built."""
    if built("rollwright") is None or built("engine-sim") is None:
        skip("no `rollwright` and `engine-sim` in target/quick or target/debug: make build")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """A gateway with a fast engine, for this test alone; its module uses `programs`."""
    with Gateway(engine=Engine("--mean-tokens", "8")) as gateway:
        yield gateway


@pytest.fixture
def trainer(gateway: Gateway) -> RolloutClient:
    """A client of that gateway."""
    return gateway.client()


@pytest.fixture
def anyio_backend() -> str:
    """Programs with asyncio."""
    return "asyncio"
