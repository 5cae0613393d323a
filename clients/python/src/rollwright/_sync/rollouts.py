# Made by scripts/unasync.py from _async/rollouts.py: change that one.
"""The gateway of one job: groups, batches, weights and events."""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, Literal, cast

import httpx

from ..actions import new_id, present
from ..address import segment
from ..events import Event, EventReader, EventsMissed
from ..faults import Fault
from ..rollouts import Batch, Group, Status
from ..weights import Transfer, Weights
from .runtime import sleep
from .trajectory import Rollout
from .transport import FULL, TIMEOUT, Transport
from .weights import WeightUpdate

_LONGEST_WAIT = 600.0
"""Seconds that one request may wait at the gateway."""
_SILENCE = 45.0
"""Seconds without an event or a comment (one comes every 15) after which a stream is dead."""


class RolloutClient:
    """A client of one job's gateway, for its trainer and its agents.

    `patience` is how many seconds a gateway that is away is tried for. Only what may be sent
    twice without harm is sent again.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        patience: float = 60.0,
        max_connections: int = 1024,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Takes a URL and the job's API key, or `unix:/path`."""
        self._transport = Transport(
            address,
            api_key=api_key,
            patience=patience,
            max_connections=max_connections,
            verify=verify,
            transport=transport,
        )

    def __enter__(self) -> RolloutClient:
        """The client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the connections."""
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def open_group(
        self,
        *,
        group_id: str | None = None,
        task: str | None = None,
        rollouts: int | None = None,
        payload: object = None,
        evaluation: bool = False,
        version: int | None = None,
        tokens: Literal["required", "none"] = "required",
        wait: float = 60.0,
    ) -> Group:
        """Opens the rollouts of one prompt and says which trajectories to start.

        Where the buffer is full, waits up to `wait` seconds for room; then the fault (HTTP
        status 429) says when to come back. `payload` is any JSON of at most 1 MiB and comes back
        in the batch. `version` pins the weights of an evaluation.
        """
        body: dict[str, Any] = {"id": group_id or new_id(), "tokens": tokens}
        body |= present(task=task, rollouts=rollouts, version=version)
        body |= {"evaluation": True} if evaluation else {}
        body |= {"payload": payload} if payload is not None else {}
        until = time.monotonic() + wait
        while True:
            left = min(max(0.0, until - time.monotonic()), _LONGEST_WAIT)
            try:
                answer = self._transport.call(
                    "POST",
                    "/rollout/v1/groups",
                    json=body,
                    params={"wait": f"{left:.3f}"},
                    timeout=left + TIMEOUT,
                    wait_for_room=False,
                )
            except Fault as fault:
                delay = fault.retry_after or 1.0
                if fault.status != FULL or time.monotonic() + delay > until:
                    raise
                sleep(delay)
            else:
                return Group.from_json(answer.json())

    def group(self, group_id: str, *, wait: float = 0.0) -> Group:
        """The group; waits up to `wait` seconds (at most 600) until it has settled or aborted."""
        answer = self._transport.call(
            "GET",
            f"/rollout/v1/groups/{segment(group_id)}",
            params=present(wait=wait or None),
            timeout=wait + TIMEOUT,
        )
        return Group.from_json(answer.json())

    def abort_group(self, group_id: str) -> None:
        """Aborts every trajectory of the group."""
        self._transport.call("DELETE", f"/rollout/v1/groups/{segment(group_id)}")

    def rollout(self, trajectory_id: str) -> Rollout:
        """One trajectory, to report to: a context manager that aborts what does not complete."""
        return Rollout(self._transport, trajectory_id)

    def take(self, *, groups: int | None = None, wait: float = 60.0) -> Batch | None:
        """The next batch, or the one that was not acknowledged; `None` when none is ready.

        `groups` is how many it has, else as many as the job says. Waits up to `wait` seconds, at
        most 600.
        """
        answer = self._transport.call(
            "POST",
            "/rollout/v1/batches/take",
            json={"wait": wait} | present(groups=groups),
            timeout=wait + TIMEOUT,
        )
        if answer.status_code == httpx.codes.NO_CONTENT:
            return None
        return Batch.from_json(answer.json())

    def ack(self, batch_id: int) -> None:
        """Acknowledges a batch: it is not given again."""
        self._transport.call("POST", f"/rollout/v1/batches/{batch_id}/ack")

    def batches(
        self, *, groups: int | None = None, limit: int | None = None
    ) -> Generator[Batch, None, None]:
        """Batches without end, or `limit` of them, however long each takes.

        A batch is acknowledged when the loop comes back for the next one. Where the body raises
        or breaks, it is not: it will be given again.
        """
        done = 0
        while limit is None or done < limit:
            batch = self.take(groups=groups)
            if batch is not None:
                yield batch
                self.ack(batch.id)
                done += 1

    def events(self, *, group_id: str | None = None) -> Generator[Event, None, None]:
        """What happens from now on, of one group or of all; comes back where it was cut off.

        `EventsMissed` says that some events will not come. Subscribe before opening groups, and
        leave the loop by `contextlib.closing`, so that the connection is closed at once.
        """
        backoff = self._transport.backoff()
        last_id: str | None = None
        connected = False
        while True:
            reader = EventReader(last_id)
            try:
                with self._transport.lines(
                    "GET",
                    "/rollout/v1/events",
                    params=present(group=group_id),
                    headers={} if last_id is None else {"Last-Event-ID": last_id},
                    silence=_SILENCE,
                ) as lines:
                    if connected and last_id is None:
                        # Nothing says where this stream goes on.
                        yield EventsMissed()
                    connected = True
                    for line in lines:
                        backoff.progress()
                        event = reader.feed(line)
                        last_id = reader.last_id
                        if event is not None:
                            yield event
                raise httpx.RemoteProtocolError("the stream of events ended")
            except (Fault, httpx.TransportError) as error:
                self._transport.pause(backoff, error)

    def update_weights(
        self,
        version: int,
        *,
        transfer: Transfer = "disk",
        path: str | None = None,
        deadline: float | None = None,
    ) -> WeightUpdate:
        """An update to a greater version: a context manager that begins, then commits or aborts.

        `path` is where the engines find the weights that the body writes (`disk`). Without a
        commit within `deadline` seconds the gateway aborts it by itself.
        """
        return WeightUpdate(
            self._transport, version, transfer=transfer, path=path, deadline=deadline
        )

    def weights(self) -> Weights:
        """The current version, and what each worker holds."""
        return cast(Weights, (self._transport.call("GET", "/rollout/v1/weights")).json())

    def status(self) -> Status:
        """How the job is."""
        return cast(Status, (self._transport.call("GET", "/rollout/v1/status")).json())
