"""HTTP with retries."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from .. import faults
from ..address import Address
from ..lines import Lines
from ..retry import Backoff, Trouble
from .runtime import sleep

TIMEOUT = 30.0
"""Seconds that an answer may take which waits for nothing."""
FULL = 429
"""Status of a refusal for want of room."""
_CONNECT_TIMEOUT = 5.0
_PIECE = 1 << 20


class AsyncTransport:
    """One server, its key, and how long it may be away."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None,
        patience: float,
        max_connections: int,
        verify: ssl.SSLContext | bool,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        """Connects at the first call."""
        self.address = Address.parse(address)
        self._patience = patience
        headers = {"User-Agent": "rollwright-python"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        # With a transport of its own, httpx takes no proxy from the environment.
        limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(
            base_url=self.address.url,
            headers=headers,
            transport=transport
            or httpx.AsyncHTTPTransport(uds=self.address.socket, verify=verify, limits=limits),
        )

    def backoff(self) -> Backoff:
        """For the tries of one call."""
        return Backoff(self._patience)

    async def pause(self, backoff: Backoff, trouble: Trouble, *, idempotent: bool = True) -> None:
        """Waits until the next try is due; raises the fault when there is to be none."""
        await sleep(backoff.delay(trouble, idempotent=idempotent))

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: dict[str, Any] | None = None,
        content: bytes | memoryview | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT,
        idempotent: bool = True,
        alive: str | None = None,
        wait_for_room: bool = True,
    ) -> httpx.Response:
        """One request with its whole answer; what is not idempotent is sent once.

        Where an answer may take any time, `alive` is a path that is asked after each `timeout`:
        while it answers, the request is sent again. Without `wait_for_room` a server that is
        full is for the caller to wait for. Content in a `memoryview` of bytes is not
        copied as a whole.
        """
        if isinstance(content, memoryview):
            headers = (headers or {}) | {"Content-Length": str(content.nbytes)}
        backoff = self.backoff()
        while True:
            try:
                response = await self._client.request(
                    method,
                    path,
                    json=json,
                    params=params,
                    content=_pieces(content) if isinstance(content, memoryview) else content,
                    headers=headers,
                    timeout=_limits(timeout),
                )
                if not response.is_success:
                    raise faults.from_answer(
                        response.status_code, response.headers, response.content
                    )
            except httpx.ReadTimeout as error:
                if alive is None:
                    await self.pause(backoff, error, idempotent=idempotent)
                else:
                    await self.call("GET", alive)
                    backoff.progress()
            except (faults.Fault, httpx.TransportError) as error:
                full = isinstance(error, faults.Fault) and error.status == FULL
                if full and not wait_for_room:
                    raise
                await self.pause(backoff, error, idempotent=idempotent)
            else:
                return response

    @asynccontextmanager
    async def lines(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        silence: float,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of one answer, tried once; `silence` is the most seconds between two."""
        async with self._client.stream(
            method, path, json=json, params=params, headers=headers, timeout=_limits(silence)
        ) as response:
            if not response.is_success:
                content = await response.aread()
                raise faults.from_answer(response.status_code, response.headers, content)
            yield _split(response)

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._client.aclose()


async def _split(response: httpx.Response) -> AsyncIterator[bytes]:
    lines = Lines()
    async for piece in response.aiter_bytes():
        for line in lines.feed(piece):
            yield line


async def _pieces(view: memoryview) -> AsyncIterator[bytes]:
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])


def _limits(read: float) -> httpx.Timeout:
    return httpx.Timeout(read, connect=_CONNECT_TIMEOUT, write=TIMEOUT, pool=None)
