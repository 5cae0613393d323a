"""The sandbox of one trajectory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..actions import Ready, Result
from ..faults import Fault
from .runtime import last_words

if TYPE_CHECKING:
    from .actions import AsyncActionClient

_log = logging.getLogger("rollwright")
_LAST_WORDS = 10.0


class AsyncSandbox:
    """A trajectory's sandbox: opened by `with` or `open`, removed at the end."""

    def __init__(
        self,
        client: AsyncActionClient,
        template: str,
        *,
        trajectory_id: str,
        job: str,
        env: Mapping[str, str] | None,
        deadline: float | None,
    ) -> None:
        """Made by the client's `sandbox`."""
        self._client = client
        self._template = template
        self._job = job
        self._env = env
        self._deadline = deadline
        self.trajectory_id = trajectory_id
        """Names it at the queue."""
        self.ready: Ready | None = None
        """Where it is, and how long it took to make it ready."""

    async def open(self) -> None:
        """Waits until it is ready; interrupted, it leaves nothing behind."""
        try:
            self.ready = await self._client.open_trajectory(
                self.trajectory_id,
                self._template,
                job=self._job,
                env=self._env,
                deadline=self._deadline,
            )
        except Fault as fault:
            # Without an answer it may be open.
            if fault.status is None:
                await self._give_up()
            raise
        except BaseException:
            await self._give_up()
            raise

    async def close(self) -> None:
        """Cancels what still runs in it and removes it."""
        await self._client.close_trajectory(self.trajectory_id)

    async def _give_up(self) -> None:
        with last_words(_LAST_WORDS):
            try:
                await self.close()
            except Fault as fault:
                _log.warning("sandbox %s is not closed: %s", self.trajectory_id, fault)

    async def __aenter__(self) -> AsyncSandbox:
        """Opens it."""
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it; a body's exception is not hidden by one of closing."""
        if error is None:
            await self.close()
        else:
            await self._give_up()

    async def run(
        self,
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
        """Runs an action in it: see the client's `execute`."""
        return await self._client.execute(
            self.trajectory_id,
            command,
            action_id=action_id,
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

    async def read_file(self, path: str) -> bytes:
        """The bytes of a file, by its absolute path."""
        return await self._client.read_file(self.trajectory_id, path)

    async def write_file(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        """Writes a file at an absolute path and makes its parents; text as UTF-8."""
        content = data.encode() if isinstance(data, str) else data
        await self._client.write_file(self.trajectory_id, path, content, mode=mode)

    async def read_tar(self, path: str) -> bytes:
        """A tar archive of a file or directory."""
        return await self._client.read_file(self.trajectory_id, path, tar=True)

    async def write_tar(self, directory: str, archive: bytes) -> None:
        """Unpacks a tar archive in a directory."""
        await self._client.write_file(self.trajectory_id, directory, archive, tar=True)
