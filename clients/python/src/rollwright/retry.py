"""When a call is tried again."""

from __future__ import annotations

import logging
import random
import time

import httpx

from .faults import UNEXPECTED_ANSWER, UNREACHABLE, Fault, InfrastructureFault

_log = logging.getLogger("rollwright")

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_OUR_MISTAKE = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
_UNAVAILABLE = (502, 503, 504)
_FULL = 429
_CUT_OFF = (UNREACHABLE, "SlowReader")

Trouble = Fault | httpx.TransportError
"""What a try can end in."""


class Backoff:
    """Exponential delays with jitter, until `patience` seconds passed without progress."""

    def __init__(self, patience: float) -> None:
        """Counts from the first failure on."""
        self._patience = patience
        self._failing_since: float | None = None
        self._tries = 0

    def progress(self) -> None:
        """The server answered: what comes is a new failure."""
        self._failing_since = None
        self._tries = 0

    def delay(self, trouble: Trouble, *, idempotent: bool) -> float:
        """Seconds until the next try; raises the fault when there is to be none."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            _log.info("trying again: %s", trouble)
        longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(self._tries, 10))
        self._tries += 1
        delay = longest * random.uniform(0.5, 1)  # noqa: S311
        if isinstance(trouble, Fault):
            delay = max(delay, trouble.retry_after or 0.0)
        over = now + delay > self._failing_since + self._patience
        if over or not _worth_it(trouble, idempotent=idempotent):
            if isinstance(trouble, Fault):
                raise trouble
            message = f"{type(trouble).__name__}: {trouble}".rstrip(": ")
            raise InfrastructureFault(UNREACHABLE, message) from trouble
        return delay


def _worth_it(trouble: Trouble, *, idempotent: bool) -> bool:
    if isinstance(trouble, httpx.TransportError):
        never_sent = isinstance(trouble, _NEVER_SENT)
        return never_sent or (idempotent and not isinstance(trouble, _OUR_MISTAKE))
    if outcome_unknown(trouble):
        return idempotent
    # A refusal that says when to come back says that nothing was done.
    return trouble.retry_after is not None or trouble.status == _FULL


def outcome_unknown(fault: Fault) -> bool:
    """Whether the request may have been carried out, or may still be."""
    if fault.reason == UNEXPECTED_ANSWER:
        return fault.status in _UNAVAILABLE
    return fault.reason in _CUT_OFF or fault.reason.endswith("Stopping")
