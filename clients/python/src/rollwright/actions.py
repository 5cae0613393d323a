"""Actions on the wire: what is sent, and what becomes of the events."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from . import faults
from .faults import Cancelled, Fault, InfrastructureFault

Stream = Literal["stdout", "stderr"]


def new_id() -> str:
    """An id that nobody else has: the key under which nothing runs twice."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Piece:
    """Some output, in the order in which it was read."""

    stream: Stream
    data: bytes
    dropped_before: int = 0
    """Bytes of this stream that were dropped just before."""


def _text(pieces: Sequence[Piece], streams: tuple[Stream, ...]) -> str:
    parts = []
    for piece in pieces:
        if piece.stream in streams:
            if piece.dropped_before:
                parts.append(f"\n[{piece.dropped_before} bytes dropped]\n".encode())
            parts.append(piece.data)
    return b"".join(parts).decode(errors="replace")


@dataclass(frozen=True)
class Result:
    """An action that ran to its end. Where output was too long, the text says what is dropped."""

    action_id: str
    exit_code: int | None
    """`None` when a signal ended it."""
    signal: int | None
    """The signal that ended it."""
    queued: float
    """Seconds from submission to start."""
    ran: float
    """Seconds from the program's start to its end."""
    overhead: float
    """Seconds of everything else between submission and result."""
    units: float
    """Granted CPU units: below 1 a share, else exclusive cores."""
    node: str
    cores: tuple[int, ...]
    """The cores that it could run on, by their numbers on the node."""
    cpu_seconds: float
    memory_peak_bytes: int
    out_of_memory: bool
    """The kernel's OOM killer killed a process of this action."""
    dropped_bytes: int
    """Bytes of output that were not kept."""
    pieces: tuple[Piece, ...] = field(repr=False)
    """The output as bytes."""

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return _text(self.pieces, ("stdout",))

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return _text(self.pieces, ("stderr",))

    @property
    def output(self) -> str:
        """Both streams as text, in the order in which they were read."""
        return _text(self.pieces, ("stdout", "stderr"))


@dataclass(frozen=True)
class ResetTimes:
    """Seconds that each part of making a sandbox ready took; 0 where it was not needed."""

    queue: float
    image: float
    start: float
    setup: float


@dataclass(frozen=True)
class Ready:
    """A sandbox that is ready."""

    node: str
    warm: bool
    """A started sandbox was waiting."""
    times: ResetTimes

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Ready:
        """Reads the queue's answer."""
        times = body["times"]
        parts = (float(times[f"{part}_s"]) for part in ("queue", "image", "start", "setup"))
        return cls(str(body["node"]), bool(body["warm"]), ResetTimes(*parts))


class NodeStats(TypedDict):
    """One node of the queue."""

    node: str
    connected: bool
    cores: int
    exclusive_cores: int
    shared_cores: int
    memory_bytes: int
    memory_reserved_bytes: int
    sandboxes: int


class QuotaStats(TypedDict):
    """One quota of the queue."""

    name: str
    running: int
    waiting: int


class Stats(TypedDict):
    """What the queue holds at this moment."""

    waiting: int
    running: int
    trajectories: int
    accepted_total: int
    finished_total: int
    nodes: list[NodeStats]
    quotas: list[QuotaStats]


def present(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """The fields that say something: what is left out is the server's to choose."""
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [], ())}


def execute_body(
    action_id: str,
    trajectory_id: str,
    command: str | Sequence[str],
    *,
    profile: str,
    cwd: str,
    env: Mapping[str, str] | None,
    stdin: bytes,
    timeout: float | None,
    queue_deadline: float | None,
    cpu_units: Sequence[float],
    quota: Mapping[str, int] | None,
    output_limit: int | None,
    expected_duration: float | None,
    serial_fraction: float | None,
    malleable: bool | None,
    remaining: float | None,
) -> dict[str, Any]:
    """`ExecuteRequest` as JSON."""
    program = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
    given = {"data_base64": base64.b64encode(stdin).decode()} if stdin else None
    return {
        "action_id": action_id,
        "trajectory_id": trajectory_id,
        "command": program | present(cwd=cwd, env=dict(env or {}), stdin=given),
        **present(
            profile=profile,
            timeout=timeout,
            queue_deadline=queue_deadline,
            cpu_units=list(cpu_units),
            quota=dict(quota or {}),
            output_limit=output_limit,
            expected_duration=expected_duration,
            serial_fraction=serial_fraction,
            malleable=malleable,
            remaining=remaining,
        ),
    }


class ActionLog:
    """The events of one attachment to an action, which begin anew with each."""

    def __init__(self, action_id: str) -> None:
        """Nothing has happened yet."""
        self._id = action_id
        self._started: dict[str, Any] = {}
        self._pieces: list[Piece] = []
        self._end: dict[str, Any] | Fault | None = None

    @property
    def ended(self) -> bool:
        """The last event has come."""
        return self._end is not None

    def feed(self, line: bytes) -> None:
        """Takes one line of the stream; raises a refusal of the stream itself."""
        if not line:
            return
        event = json.loads(line)
        if "fault" in event:
            raise faults.from_body(event["fault"])
        if "output" in event:
            self._pieces.append(_piece(event["output"]))
        elif "started" in event:
            self._started = event["started"]
        elif "finished" in event:
            self._end = event["finished"]
        elif "failed" in event:
            self._end = faults.from_body(event["failed"])
        elif "cancelled" in event:
            self._end = Cancelled("Cancelled", "the action was cancelled")

    def result(self) -> Result:
        """How it ended; raises the fault that ended it."""
        end = self._end
        if end is None:
            raise InfrastructureFault("StreamEnded", "the stream ended before the action")
        if isinstance(end, Fault):
            end.output = _text(self._pieces, ("stdout", "stderr"))
            raise end
        usage = end["usage"]
        return Result(
            action_id=self._id,
            exit_code=end.get("exit_code"),
            signal=end.get("signal"),
            queued=usage["queue_s"],
            ran=usage["exec_s"],
            overhead=usage["overhead_s"],
            units=end["cpu_units"],
            node=self._started.get("node", ""),
            cores=tuple(self._started.get("cores", ())),
            cpu_seconds=usage["cpu_s"],
            memory_peak_bytes=usage["memory_peak_bytes"],
            out_of_memory=end["out_of_memory"],
            dropped_bytes=usage["output_dropped_bytes"],
            pieces=tuple(self._pieces),
        )


def _piece(output: Mapping[str, Any]) -> Piece:
    encoded = output.get("data_base64")
    data = output["text"].encode() if encoded is None else base64.b64decode(encoded)
    stream: Stream = "stderr" if output["stream"] == "stderr" else "stdout"
    return Piece(stream, data, output.get("dropped_before", 0))
