"""What the gateway tells by server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrajectoryAborted:
    """Stop working on this trajectory."""

    trajectory: str
    group: str
    reason: str


@dataclass(frozen=True)
class TrajectoryStarted:
    """Begin with this trajectory, which replaces another."""

    trajectory: str
    group: str


@dataclass(frozen=True)
class GroupSettled:
    """Enough trajectories of the group are scored."""

    group: str
    kept: tuple[str, ...]


@dataclass(frozen=True)
class VersionChanged:
    """A new version of the weights is current."""

    version: int


@dataclass(frozen=True)
class EventsMissed:
    """Some events will not come: read the state of what you work on."""


Event = TrajectoryAborted | TrajectoryStarted | GroupSettled | VersionChanged | EventsMissed

_READERS: dict[str, Callable[[Mapping[str, Any]], Event]] = {
    "abort": lambda d: TrajectoryAborted(d["trajectory"], d["group"], d["reason"]),
    "start": lambda d: TrajectoryStarted(d["trajectory"], d["group"]),
    "settled": lambda d: GroupSettled(d["group"], tuple(d["kept"])),
    "version": lambda d: VersionChanged(d["version"]),
    "gap": lambda _: EventsMissed(),
}


class EventReader:
    """Reads the lines of one stream (HTML standard, section 9.2.6)."""

    def __init__(self, last_id: str | None = None) -> None:
        """Goes on after the event `last_id`."""
        self.last_id = last_id
        """Id of the last event, to resume from."""
        self._id: str | None = None
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: bytes) -> Event | None:
        """Takes one line; the event that it completes, unless nobody here knows its name."""
        if line:
            name, _, value = line.decode().partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            return None
        name, data, self._name, self._data = self._name, self._data, "", []
        if self._id is not None:
            self.last_id, self._id = self._id, None
        read = _READERS.get(name)
        return read(json.loads("\n".join(data))) if read is not None and data else None
