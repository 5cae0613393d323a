"""A stub of the gateway: answers that a test lists, for tests of what goes over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

Answer = httpx.Response | httpx.TransportError


def refusal(
    status: int, kind: str, code: str, headers: dict[str, str] | None = None
) -> httpx.Response:
    """A refusal as the gateway sends it."""
    error = {"message": f"no: {code}", "type": kind, "code": code, "param": None}
    return httpx.Response(status, json={"error": error}, headers=headers)


class Cut(httpx.SyncByteStream):
    """A body that breaks off."""

    def __init__(self, *pieces: bytes) -> None:
        """Sends these pieces first."""
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        """Breaks off after the pieces."""
        yield from self._pieces
        raise httpx.ReadError("cut")


@dataclass
class StubGateway:
    """Gives one answer after the other and keeps the requests."""

    answers: list[Answer]
    requests: list[httpx.Request] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        """For a client's `transport`."""
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers[len(self.requests) - 1]
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    def seen(self) -> list[tuple[str, str]]:
        """Method and path with query of each request."""
        return [(request.method, request.url.raw_path.decode()) for request in self.requests]

    def body(self, number: int = -1) -> Any:
        """The JSON body of a request."""
        return json.loads(self.requests[number].content)
