# Made by scripts/unasync.py from _async/actions.py: change that one.
"""The action queue: sandboxes, actions, files and permits."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

import httpx

from .. import actions
from ..actions import ActionLog, Ready, Result, Stats, new_id, present
from ..address import segment
from ..faults import Fault
from .runtime import last_words
from .sandbox import Sandbox
from .transport import Transport

_log = logging.getLogger("rollwright")
_BUSY = 429
"""HTTP: too many requests."""
_SILENCE = 60.0
"""Seconds without a word after which an action or an opening is asked for again."""
_LAST_WORDS = 10.0


class ActionClient:
    """A client of one action queue.

    `patience` is how many seconds a queue that is away or full is tried for; the ids make sure
    that nothing runs twice. One client serves any number of tasks; each running action holds a
    connection.
    """

    def __init__(
        self,
        address: str = "unix:/run/rollwright/queue.sock",
        *,
        api_key: str | None = None,
        patience: float = 60.0,
        max_connections: int = 1024,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Takes `unix:/path`, or a URL and the job's API key."""
        self._transport = Transport(
            address,
            api_key=api_key,
            patience=patience,
            max_connections=max_connections,
            verify=verify,
            transport=transport,
        )

    def __enter__(self) -> ActionClient:
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
        """Closes the connections; what runs goes on."""
        self._transport.close()

    def sandbox(
        self,
        template: str,
        *,
        trajectory_id: str | None = None,
        job: str = "",
        env: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> Sandbox:
        """The sandbox of a trajectory: a context manager that opens and closes it.

        `deadline` bounds the seconds until it is ready; without it the template's limits hold.
        """
        return Sandbox(
            self,
            template,
            trajectory_id=trajectory_id or new_id(),
            job=job,
            env=env,
            deadline=deadline,
        )

    def open_trajectory(
        self,
        trajectory_id: str,
        template: str,
        *,
        job: str = "",
        env: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> Ready:
        """Makes a trajectory's sandbox ready; the same id again gives the same sandbox."""
        body = {
            "trajectory_id": trajectory_id,
            "template": template,
            **present(job=job, env=dict(env or {}), deadline=deadline),
        }
        answer = self._transport.call(
            "POST", "/v1/trajectories", json=body, timeout=_SILENCE, alive="/readyz"
        )
        return Ready.from_json(answer.json())

    def close_trajectory(self, trajectory_id: str) -> None:
        """Cancels what it runs and removes its sandbox; of an unknown one, nothing."""
        self._transport.call(
            "DELETE",
            f"/v1/trajectories/{segment(trajectory_id)}",
            timeout=_SILENCE,
            alive="/readyz",
        )

    def execute(
        self,
        trajectory_id: str,
        command: str | Sequence[str],
        *,
        action_id: str | None = None,
        profile: str = "",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        queue_deadline: float | None = None,
        cpu_units: Sequence[float] = (),
        quota: Mapping[str, int] | None = None,
        output_limit: int | None = None,
        expected_duration: float | None = None,
        serial_fraction: float | None = None,
        malleable: bool | None = None,
        remaining: float | None = None,
    ) -> Result:
        """Runs an action to its end; a string is run by `/bin/sh -c`.

        What is left out is the action profile's to say. `timeout` bounds the seconds that it runs,
        `queue_deadline` those that it waits, `output_limit` the bytes kept of each of head and
        tail. `expected_duration` and `serial_fraction` say of this very action how many seconds it
        runs on one core and which part of them more cores do not shorten; else that is learned. A
        `malleable` one may be given other cores while it runs. `remaining` is for how many seconds
        the trajectory is predicted to go on after it: a queue whose ordering is `TrajectoryAware`
        serves the longest first. A dropped connection attaches to the same action again.
        Interrupting the call cancels the action.
        """
        action_id = action_id or new_id()
        body = actions.execute_body(
            action_id,
            trajectory_id,
            command,
            profile=profile,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=timeout,
            queue_deadline=queue_deadline,
            cpu_units=cpu_units,
            quota=quota,
            output_limit=output_limit,
            expected_duration=expected_duration,
            serial_fraction=serial_fraction,
            malleable=malleable,
            remaining=remaining,
        )
        try:
            log = self._attend(action_id, body)
        except Exception:
            raise
        except BaseException:
            with last_words(_LAST_WORDS):
                try:
                    self.cancel(action_id)
                except Fault as fault:
                    _log.warning("action %s is not cancelled: %s", action_id, fault)
            raise
        return log.result()

    def _attend(self, action_id: str, body: dict[str, Any]) -> ActionLog:
        """Attaches to an action, as often as it takes to see its end."""
        backoff = self._transport.backoff()
        while True:
            log = ActionLog(action_id)
            try:
                with self._transport.lines(
                    "POST", "/v1/actions", json=body, silence=_SILENCE
                ) as lines:
                    for line in lines:
                        log.feed(line)
                        backoff.progress()
                if log.ended:
                    return log
                raise httpx.RemoteProtocolError("the stream ended before the action")
            except (Fault, httpx.TransportError) as error:
                if log.ended:
                    return log
                self._transport.pause(backoff, error)

    def cancel(self, action_id: str) -> bool:
        """Cancels an action wherever it is; false when it has ended or was never known."""
        path = f"/v1/actions/{segment(action_id)}/cancel"
        return bool((self._transport.call("POST", path)).json()["cancelled"])

    def read_file(self, trajectory_id: str, path: str, *, tar: bool = False) -> bytes:
        """A file of a sandbox, or with `tar` an archive of a file or directory."""
        url, params = _file(trajectory_id, path, tar=tar)
        return (self._transport.call("GET", url, params=params)).content

    def write_file(
        self,
        trajectory_id: str,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        tar: bool = False,
    ) -> None:
        """Writes a file, or with `tar` unpacks an archive in a directory; makes the parents."""
        url, params = _file(trajectory_id, path, tar=tar)
        if mode is not None:
            params["mode"] = f"{mode:o}"
        self._transport.call("PUT", url, params=params, content=data)

    @contextmanager
    def permit(
        self,
        quota: str,
        *,
        amount: int = 1,
        job: str = "",
        deadline: float | None = None,
        ttl: float | None = None,
    ) -> Iterator[None]:
        """Holds a permit of a quota while the body runs.

        A fault with `retry_after` that leaves the body keeps everybody away for that time, one
        with status 429 alone for 1, 2, 4, ... 60 s until a call is answered.
        `deadline` bounds the seconds of waiting; after `ttl` seconds it returns by itself.
        """
        permit_id, held, later = new_id(), False, None
        body = {"permit_id": permit_id, "quota": quota, "amount": amount}
        try:
            self._transport.call(
                "POST",
                "/v1/permits",
                json=body | present(job=job, deadline=deadline, ttl=ttl),
                timeout=_SILENCE,
                alive="/readyz",
            )
            held = True
            yield
        except Fault as fault:
            if held:
                later = fault.retry_after
                if later is None and fault.status == _BUSY:
                    later = 0.0
            raise
        finally:
            with last_words(_LAST_WORDS):
                self._transport.call(
                    "DELETE", f"/v1/permits/{permit_id}", params=present(retry_after_s=later)
                )

    def stats(self) -> Stats:
        """What the queue holds at this moment."""
        return cast(Stats, (self._transport.call("GET", "/v1/stats")).json())


def _file(trajectory_id: str, path: str, *, tar: bool) -> tuple[str, dict[str, Any]]:
    url = f"/v1/trajectories/{segment(trajectory_id)}/files"
    return url, {"path": path} | ({"tar": "true"} if tar else {})
