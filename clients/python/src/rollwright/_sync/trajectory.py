# Made by scripts/unasync.py from _async/trajectory.py: change that one.
"""One trajectory, from the side of its agent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import cast

from ..actions import present
from ..address import segment
from ..faults import Fault, InfrastructureFault, kind_of
from ..retry import outcome_unknown
from ..rollouts import StepTaken, Trajectory, TrajectoryState
from .runtime import last_words
from .transport import Transport

_log = logging.getLogger("rollwright")
_LAST_WORDS = 10.0


class Rollout:
    """A trajectory that is being rolled out.

    As a context manager it aborts what leaves the body uncompleted. An `InfrastructureFault`,
    or an OpenAI client's exception of one, that leaves the body has it replaced: it never
    counts as a reward.
    """

    def __init__(self, transport: Transport, trajectory_id: str) -> None:
        """Made by the client's `rollout`."""
        self._transport = transport
        self._url = f"/rollout/v1/trajectories/{segment(trajectory_id)}"
        self._ended = False
        self.trajectory_id = trajectory_id
        """Names it at the gateway; name its sandbox so too, and one abort reaches all."""

    @property
    def openai_base_url(self) -> str:
        """Base URL for OpenAI clients whose requests belong to this trajectory."""
        address = self._transport.address
        if address.socket is not None:
            raise ValueError("the gateway is at a Unix socket: no URL leads there")
        return f"{address.url}/t/{segment(self.trajectory_id)}/v1"

    def __enter__(self) -> Rollout:
        """The rollout itself: it is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Aborts what did not complete; a body's exception is not hidden by one of aborting."""
        if self._ended:
            return
        if error is None:
            self.abort("its agent ended without completing it")
            return
        why = kind_of(error)
        if why in ("cancelled", "stale"):
            # There is nothing left to abort.
            return
        with last_words(_LAST_WORDS):
            try:
                reason = f"{type(error).__name__}: {error}"[:200]
                self.abort(reason, why == "infrastructure")
            except Fault as fault:
                _log.warning("trajectory %s is not aborted: %s", self.trajectory_id, fault)

    def look(self) -> Trajectory:
        """Where it stands."""
        return Trajectory.from_json((self._transport.call("GET", self._url)).json())

    def step(
        self,
        *,
        name: str | None = None,
        seconds: float | None = None,
        observation_tokens: int | None = None,
    ) -> StepTaken:
        """Reports that a tool call ended; raises `Cancelled` when the trajectory was aborted."""
        answer = self._transport.call(
            "POST",
            f"{self._url}/steps",
            json=present(name=name, seconds=seconds, observation_tokens=observation_tokens),
            idempotent=False,
        )
        body = answer.json()
        return StepTaken(body["state"], body["version"])

    def complete(self, *, reward: float | None = None, metadata: object = None) -> TrajectoryState:
        """Ends the rollout: scored with `reward`, or by the job's reward services.

        `metadata` is any JSON of at most 64 KiB and comes back in the batch.
        """
        body = present(reward=reward) | ({} if metadata is None else {"metadata": metadata})
        backoff = self._transport.backoff()
        while True:
            try:
                answer = self._transport.call(
                    "POST", f"{self._url}/complete", json=body, idempotent=False
                )
            except InfrastructureFault as fault:
                if not outcome_unknown(fault):
                    raise
                # It may have arrived: sent again only where it did not.
                state = (self.look()).state
                if state == "running":
                    self._transport.pause(backoff, fault)
                    continue
            else:
                state = cast(TrajectoryState, answer.json()["state"])
            self._ended = True
            return state

    def abort(self, reason: str = "", infrastructure: bool = False) -> None:
        """Gives it up; with `infrastructure` it was not the policy's fault, and is replaced."""
        body = present(reason=reason) | ({"infrastructure": True} if infrastructure else {})
        self._transport.call("POST", f"{self._url}/abort", json=body)
        self._ended = True

    def add_tokens(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        version: int,
    ) -> None:
        """Records a turn that was generated elsewhere, from its whole context."""
        body = {
            "prompt_ids": list(prompt_ids),
            "response_ids": list(response_ids),
            "logprobs": list(logprobs),
            "version": version,
        }
        self._transport.call("POST", f"{self._url}/tokens", json=body, idempotent=False)
