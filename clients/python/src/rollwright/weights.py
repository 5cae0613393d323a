"""Updates of the policy's weights, as the gateway tells them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Transfer = Literal["disk", "store", "external"]
"""How weights come to the workers: they load a path that the commit names; they pull buckets
that the trainer pushed; or the trainer moves them itself (NCCL)."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class WorkerUrl:
    """A worker that will get the weights."""

    id: str
    url: str


@dataclass(frozen=True)
class Begun:
    """An update that was begun."""

    version: int
    workers: tuple[WorkerUrl, ...]
    deadline_seconds: float
    """Without a commit for so long, it is aborted by itself."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Begun:
        """Reads the gateway's form."""
        workers = tuple(WorkerUrl(worker["id"], worker["url"]) for worker in body["workers"])
        return cls(body["version"], workers, body["deadline_seconds"])


@dataclass(frozen=True)
class Committed:
    """An update that every worker in service holds."""

    version: int
    workers: int
    push_seconds: float
    """From begin until the last bucket was stored."""
    pull_seconds: float
    """That the workers took to fetch the weights."""
    exposed_seconds: float
    """During which generation stood still."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Committed:
        """Reads the gateway's form."""
        names = ("version", "workers", "push_seconds", "pull_seconds", "exposed_seconds")
        return cls(*(body[name] for name in names))


class WorkerWeights(TypedDict):
    """What a worker holds."""

    id: str
    version: int | None
    state: str


class _Weights(TypedDict):
    version: int
    workers: list[WorkerWeights]


class Weights(_Weights, total=False):
    """The current version, and what each worker holds."""

    begun: int


def sha256(data: memoryview) -> str:
    """The digest of a bucket, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
