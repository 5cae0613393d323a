"""What differs between the two kinds of program."""

from __future__ import annotations

from contextlib import AbstractContextManager

import anyio
from anyio import sleep

__all__ = ["last_words", "sleep"]


def last_words(seconds: float) -> AbstractContextManager[object]:
    """Lets a body finish within `seconds` although its task is cancelled."""
    return anyio.move_on_after(seconds, shield=True)
