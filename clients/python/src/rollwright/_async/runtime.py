"""What differs between the two kinds of program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio import sleep

__all__ = ["in_thread", "last_words", "sleep"]

T = TypeVar("T")
A = TypeVar("A")


def last_words(seconds: float) -> AbstractContextManager[object]:
    """Lets a body finish within `seconds` although its task is cancelled."""
    return anyio.move_on_after(seconds, shield=True)


async def in_thread(work: Callable[[A], T], argument: A) -> T:
    """Does what takes long without holding up the other tasks."""
    return await anyio.to_thread.run_sync(work, argument)
