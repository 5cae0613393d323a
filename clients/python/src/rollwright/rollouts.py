"""Groups, trajectories and batches, as the gateway tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from . import faults
from .faults import Fault

TrajectoryState = Literal["running", "scoring", "scored", "settled", "aborted"]
GroupState = Literal["open", "settled", "aborted"]


def _fault(body: Mapping[str, Any] | None) -> Fault | None:
    return None if body is None else faults.from_openai(body)


@dataclass(frozen=True)
class Member:
    """A trajectory, as its group tells."""

    id: str
    state: TrajectoryState
    reward: float | None
    fault: Fault | None
    """Why it was aborted."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Member:
        """Reads the gateway's form."""
        return cls(body["id"], body["state"], body.get("reward"), _fault(body.get("fault")))


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt."""

    id: str
    task: str
    state: GroupState
    needed: int
    """Trajectories that settle it."""
    start: int
    """Trajectories that were started: the needed ones and the redundant ones."""
    trajectories: tuple[Member, ...]
    """All that were started, replacements included."""
    version: int
    """Version of the weights when it was opened, or that is pinned."""
    evaluation: bool

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Group:
        """Reads the gateway's form."""
        return cls(
            id=body["id"],
            task=body["task"],
            state=body["state"],
            needed=body["needed"],
            start=body["start"],
            trajectories=tuple(map(Member.from_json, body["trajectories"])),
            version=body["version"],
            evaluation=body["evaluation"],
        )


@dataclass(frozen=True)
class Trajectory:
    """One rollout."""

    id: str
    group: str
    task: str
    state: TrajectoryState
    turns: int
    prompt_tokens: int
    generated_tokens: int
    start_version: int
    oldest_version: int
    """Oldest version that generated one of its tokens."""
    reward: float | None
    fault: Fault | None
    """Why it was aborted."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Trajectory:
        """Reads the gateway's form."""
        return cls(
            id=body["id"],
            group=body["group"],
            task=body["task"],
            state=body["state"],
            turns=body["turns"],
            prompt_tokens=body["prompt_tokens"],
            generated_tokens=body["generated_tokens"],
            start_version=body["start_version"],
            oldest_version=body["oldest_version"],
            reward=body.get("reward"),
            fault=_fault(body.get("fault")),
        )


@dataclass(frozen=True)
class StepTaken:
    """What a step report learns."""

    state: TrajectoryState
    version: int
    """The current version of the weights."""


@dataclass(frozen=True)
class VersionRange:
    """A stretch of generated tokens of one version; `end` is exclusive."""

    start: int
    end: int
    version: int


@dataclass(frozen=True)
class Sample:
    """A scored trajectory, token by token; the lists are of one length."""

    id: str
    reward: float
    metadata: Any
    """What was given when it completed."""
    turns: int
    start_version: int
    oldest_version: int
    token_ids: Sequence[int] = field(repr=False)
    """The whole context: prompt, generated tokens and observations."""
    logprobs: Sequence[float | None] = field(repr=False)
    """`None` where not generated."""
    loss_mask: Sequence[int] = field(repr=False)
    """1 on generated tokens."""
    versions: tuple[VersionRange, ...] = field(repr=False)
    """Which version generated what."""
    finish: str
    """How its last turn ended: `stop`, `length`..."""
    teacher_logprobs: Mapping[str, Sequence[float | None]] = field(repr=False, default_factory=dict)
    """What each teacher of the job gives the tokens, by its name; `None` where not generated."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Sample:
        """Reads the gateway's form."""
        ranges = (VersionRange(r["start"], r["end"], r["version"]) for r in body["versions"])
        return cls(
            id=body["id"],
            reward=body["reward"],
            metadata=body.get("metadata"),
            turns=body["turns"],
            start_version=body["start_version"],
            oldest_version=body["oldest_version"],
            token_ids=body["token_ids"],
            logprobs=body["logprobs"],
            loss_mask=body["loss_mask"],
            versions=tuple(ranges),
            finish=body["finish"],
            teacher_logprobs=body.get("teacher_logprobs", {}),
        )


@dataclass(frozen=True)
class SampleGroup:
    """The scored trajectories of one prompt."""

    id: str
    task: str
    payload: Any = field(repr=False)
    """What was given when the group was opened."""
    trajectories: tuple[Sample, ...]

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SampleGroup:
        """Reads the gateway's form."""
        samples = tuple(map(Sample.from_json, body["trajectories"]))
        return cls(body["id"], body["task"], body.get("payload"), samples)


@dataclass(frozen=True)
class Batch:
    """Whole groups to train on; given again, under the same id, until acknowledged."""

    id: int
    version: int
    """The policy's version when it was made up."""
    groups: tuple[SampleGroup, ...]
    waited_seconds: float

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Batch:
        """Reads the gateway's form."""
        groups = tuple(map(SampleGroup.from_json, body["groups"]))
        return cls(body["id"], body["version"], groups, body["waited_seconds"])


WorkerStatus = TypedDict(
    "WorkerStatus",
    {
        "id": str,
        "url": str,
        "class": str,
        "state": str,
        "version": int | None,
        "slots": int,
        "running": int,
        "pending": int,
    },
)
"""A worker, as the gateway sees it."""


class TrajectoryCounts(TypedDict):
    """Trajectories by what they wait for."""

    running: int
    scoring: int


class BufferStatus(TypedDict):
    """Settled groups that wait for the trainer."""

    groups: int
    trajectories: int
    bound: int


class BatchCounts(TypedDict):
    """Batches since the job began."""

    taken: int
    acknowledged: int
    trainer_wait_seconds: float


class Status(TypedDict):
    """How a job is."""

    job: str
    version: int
    workers: list[WorkerStatus]
    lacks: str | None
    """`prefill` or `decode`, where those are separate and no healthy worker does that part."""
    pending: int
    trajectories: TrajectoryCounts
    groups_open: int
    buffer: BufferStatus
    batches: BatchCounts
    kept_fraction: float
    train_to_generation_ratio: float | None
    suggestion: str
