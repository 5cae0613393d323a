"""What differs between the two kinds of program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import sleep
from typing import TypeVar

__all__ = ["in_thread", "last_words", "sleep"]

T = TypeVar("T")
A = TypeVar("A")


def last_words(seconds: float) -> AbstractContextManager[object]:  # noqa: ARG001
    """A thread is not cancelled: the calls of the body have limits of their own."""
    return nullcontext()


def in_thread(work: Callable[[A], T], argument: A) -> T:
    """Does it here: this is a thread."""
    return work(argument)
