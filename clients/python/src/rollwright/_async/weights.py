"""One update of the policy's weights."""

from __future__ import annotations

import logging
from types import TracebackType

from ..actions import present
from ..address import segment
from ..faults import Fault
from ..weights import Begun, Buffer, Committed, Transfer, sha256
from .runtime import in_thread, last_words
from .transport import TIMEOUT, AsyncTransport

_log = logging.getLogger("rollwright")
_LAST_WORDS = 10.0
_PUSH_TIMEOUT = 300.0


class AsyncWeightUpdate:
    """Begins at `with`; commits at the end of the body, or aborts when it raises."""

    def __init__(
        self,
        transport: AsyncTransport,
        version: int,
        *,
        transfer: Transfer,
        path: str | None,
        deadline: float | None,
    ) -> None:
        """Made by the client's `update_weights`."""
        self._transport = transport
        self._transfer = transfer
        self._path = path
        self._deadline = deadline
        self.version = version
        self.begun: Begun | None = None
        """The workers that will get the weights."""
        self.committed: Committed | None = None
        """What the update took, once it is committed."""

    async def __aenter__(self) -> AsyncWeightUpdate:
        """Begins it; an update whose begin brought no answer is aborted."""
        try:
            self.begun = await self.begin()
        except Fault as fault:
            if fault.status is None:
                await self._give_up()
            raise
        except BaseException:
            await self._give_up()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commits it, unless the body did; aborts it when the body raised."""
        if error is not None:
            if self.committed is None:
                await self._give_up()
        elif self.committed is None:
            await self.commit()

    async def begin(self) -> Begun:
        """Begins it; with transfer `external` generation stands still from now on."""
        body = {"version": self.version, "transfer": self._transfer}
        answer = await self._transport.call(
            "POST",
            "/rollout/v1/weights/begin",
            json=body | present(deadline_seconds=self._deadline),
            timeout=_PUSH_TIMEOUT,
            idempotent=False,
        )
        return Begun.from_json(answer.json())

    async def push_bucket(self, name: str, data: Buffer) -> None:
        """Stores a part of the weights of about 1 GiB (transfer `store`), with its checksum."""
        view = memoryview(data).cast("B")
        digest = await in_thread(sha256, view)
        await self._transport.call(
            "PUT",
            f"/rollout/v1/weights/{self.version}/buckets/{segment(name)}",
            content=view,
            headers={
                "Content-Type": "application/octet-stream",
                "X-Rollwright-Sha256": digest,
            },
            timeout=_PUSH_TIMEOUT,
        )

    async def commit(self) -> Committed:
        """Brings the weights to every worker; returns when each holds them."""
        deadline = self.begun.deadline_seconds if self.begun is not None else _PUSH_TIMEOUT
        answer = await self._transport.call(
            "POST",
            "/rollout/v1/weights/commit",
            json={"version": self.version} | present(path=self._path),
            timeout=deadline + TIMEOUT,
        )
        self.committed = Committed.from_json(answer.json())
        return self.committed

    async def abort(self) -> None:
        """Gives it up: the old version goes on."""
        await self._transport.call(
            "POST", "/rollout/v1/weights/abort", json={"version": self.version}
        )

    async def _give_up(self) -> None:
        with last_words(_LAST_WORDS):
            try:
                await self.abort()
            except Fault as fault:
                _log.warning("the update to %s is not aborted: %s", self.version, fault)
