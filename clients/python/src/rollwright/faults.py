"""Why something did not happen: the same six kinds as everywhere in Rollwright."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

UNEXPECTED_ANSWER = "UnexpectedAnswer"
"""Reason of an answer that is not Rollwright's own, such as a proxy's."""

UNREACHABLE = "Unreachable"
"""Reason of a server that could not be reached, or did not answer, in time."""


class Fault(Exception):
    """A request or an action that failed; only the subclasses are raised."""

    kind: ClassVar[str] = "infrastructure"

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        """Makes a fault from what the server said."""
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        """Stable CamelCase word for programs: `ImageNotFound`, `QueueFull`, ..."""
        self.message = message
        """A sentence for people."""
        self.retry_after = retry_after
        """Seconds after which another try is worth making, where the server said so."""
        self.status = status
        """HTTP status, where the request itself was refused."""
        self.output = ""
        """What an action had written before it failed."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Faults cross process borders, as in Ray."""
        return type(self), (self.reason, self.message), self.__dict__


class UserFault(Fault):
    """The request was wrong; sending it again unchanged will fail again."""

    kind = "user"


class ActionFault(Fault):
    """The program could not be started, or failed as a program."""

    kind = "action"


class ActionTimeout(Fault):
    """A time limit passed."""

    kind = "timeout"


class InfrastructureFault(Fault):
    """A node, Docker, an engine or the network failed: never an exit code, never a reward."""

    kind = "infrastructure"


class Cancelled(Fault):
    """It was cancelled or aborted."""

    kind = "cancelled"


class Stale(Fault):
    """It belongs to a policy version that is too old."""

    kind = "stale"


_KINDS: dict[str, type[Fault]] = {
    kind.kind: kind
    for kind in (UserFault, ActionFault, ActionTimeout, InfrastructureFault, Cancelled, Stale)
}


def kind_of(error: BaseException) -> str | None:
    """The kind of the fault that an exception is, or that led to it.

    OpenAI's exceptions carry the gateway's kind as their `type`; frameworks raise their own while
    they handle those.
    """
    seen: BaseException | None = error
    while seen is not None:
        kind = seen.kind if isinstance(seen, Fault) else getattr(seen, "type", None)
        if isinstance(kind, str) and kind in _KINDS:
            return kind
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def from_body(body: Mapping[str, Any], status: int | None = None) -> Fault:
    """The queue's fault object; a kind that is not known counts as infrastructure."""
    after = body.get("retry_after_s")
    return _KINDS.get(str(body.get("kind")), InfrastructureFault)(
        str(body.get("reason", UNEXPECTED_ANSWER)),
        str(body.get("message", "")),
        retry_after=after if isinstance(after, (int, float)) else None,
        status=status,
    )


def from_openai(error: Mapping[str, Any], status: int | None = None) -> Fault:
    """The gateway's fault object, in the form of OpenAI's errors."""
    named = {"kind": error.get("type"), "reason": error.get("code") or UNEXPECTED_ANSWER}
    return from_body({**named, "message": error.get("message", "")}, status)


def from_answer(status: int, headers: Mapping[str, str], content: bytes) -> Fault:
    """The fault that an HTTP answer carries: the queue's form, or the gateway's (OpenAI's)."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    fault: Fault | None = None
    if isinstance(body, dict):
        if isinstance(body.get("fault"), dict):
            fault = from_body(body["fault"], status)
        elif isinstance(body.get("error"), dict) and body["error"].get("type") in _KINDS:
            fault = from_openai(body["error"], status)
    if fault is None:
        kind = UserFault if 400 <= status < 500 and status != 429 else InfrastructureFault  # noqa: PLR2004
        text = content[:200].decode(errors="replace").strip()
        fault = kind(UNEXPECTED_ANSWER, f"HTTP status {status}: {text}", status=status)
    if fault.retry_after is None:
        fault.retry_after = _seconds(headers.get("Retry-After"))
    return fault


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds; its date form is not used by Rollwright."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
