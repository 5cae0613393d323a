"""What differs between the two kinds of program."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import sleep

__all__ = ["last_words", "sleep"]


def last_words(seconds: float) -> AbstractContextManager[object]:  # noqa: ARG001
    """A thread is not cancelled: the calls of the body have limits of their own."""
    return nullcontext()
