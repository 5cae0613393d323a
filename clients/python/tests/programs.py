"""The Rust programs that the tests run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
API_KEY = "key-of-the-python-tests"


def built(name: str) -> Path | None:
    """The newest build of a program that there is."""
    paths = [ROOT / "target" / profile / name for profile in ("quick", "debug")]
    paths = [path for path in paths if path.exists()]
    return max(paths, key=lambda path: path.stat().st_mtime, default=None)


def program(name: str) -> Path:
    """The same, where it was found before."""
    path = built(name)
    if path is None:
        raise RuntimeError(f"{name} is not built")
    return path


def skip(reason: str) -> None:
    """Skips, unless all tests are asked for."""
    if os.environ.get("ROLLWRIGHT_REQUIRE_QUEUE"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody has."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
