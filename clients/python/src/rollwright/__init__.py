"""Rollwright: sandboxes with CPU per action, and the rollouts of agentic RL."""

from ._async.actions import AsyncActionClient
from ._async.sandbox import AsyncSandbox
from ._sync.actions import ActionClient
from ._sync.sandbox import Sandbox
from .actions import Piece, Ready, ResetTimes, Result, Stats
from .faults import (
    ActionFault,
    ActionTimeout,
    Cancelled,
    Fault,
    InfrastructureFault,
    Stale,
    UserFault,
)

__all__ = [
    "ActionClient",
    "ActionFault",
    "ActionTimeout",
    "AsyncActionClient",
    "AsyncSandbox",
    "Cancelled",
    "Fault",
    "InfrastructureFault",
    "Piece",
    "Ready",
    "ResetTimes",
    "Result",
    "Sandbox",
    "Stale",
    "Stats",
    "UserFault",
]
