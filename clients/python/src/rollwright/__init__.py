"""Rollwright: sandboxes with CPU per action, and the rollouts of agentic RL."""

from ._async.actions import AsyncActionClient
from ._async.rollouts import AsyncRolloutClient
from ._async.sandbox import AsyncSandbox
from ._async.trajectory import AsyncRollout
from ._async.weights import AsyncWeightUpdate
from ._sync.actions import ActionClient
from ._sync.rollouts import RolloutClient
from ._sync.sandbox import Sandbox
from ._sync.trajectory import Rollout
from ._sync.weights import WeightUpdate
from .actions import Piece, Ready, ResetTimes, Result, Stats
from .events import (
    Event,
    EventsMissed,
    GroupSettled,
    TrajectoryAborted,
    TrajectoryStarted,
    VersionChanged,
)
from .faults import (
    ActionFault,
    ActionTimeout,
    Cancelled,
    Fault,
    InfrastructureFault,
    Stale,
    UserFault,
)
from .rollouts import Batch, Group, Member, Sample, SampleGroup, Status, Trajectory
from .weights import Begun, Committed, Weights

__all__ = [
    "ActionClient",
    "ActionFault",
    "ActionTimeout",
    "AsyncActionClient",
    "AsyncRollout",
    "AsyncRolloutClient",
    "AsyncSandbox",
    "AsyncWeightUpdate",
    "Batch",
    "Begun",
    "Cancelled",
    "Committed",
    "Event",
    "EventsMissed",
    "Fault",
    "Group",
    "GroupSettled",
    "InfrastructureFault",
    "Member",
    "Piece",
    "Ready",
    "ResetTimes",
    "Result",
    "Rollout",
    "RolloutClient",
    "Sample",
    "SampleGroup",
    "Sandbox",
    "Stale",
    "Stats",
    "Status",
    "Trajectory",
    "TrajectoryAborted",
    "TrajectoryStarted",
    "UserFault",
    "VersionChanged",
    "WeightUpdate",
    "Weights",
]
