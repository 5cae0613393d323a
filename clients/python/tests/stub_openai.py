"""A stub of the OpenAI API: it says what it is told to, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class StubOpenAi:
    """Answers each chat completion with the next of `commands`, as a call of the tool `bash`."""

    def __init__(self, commands: Sequence[str]) -> None:
        """Listens on a free port of the loopback interface."""
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        """Path, `Authorization` and body of each request."""
        self._commands = list(commands)
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                key = self.headers.get("Authorization", "")
                answer = json.dumps(stub._answer(self.path, key, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def observations(self) -> list[str]:
        """What the agent told of its commands."""
        messages = self.requests[-1][2]["messages"] if self.requests else []
        return [message["content"] for message in messages if message["role"] == "tool"]

    def _answer(self, path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
        command = self._commands[len(self.requests)]
        self.requests.append((path, key, body))
        call = {
            "id": f"call-{len(self.requests)}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        message = {"role": "assistant", "content": "I run it.", "tool_calls": [call]}
        return {
            "id": f"chat-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1,
            "model": "stub",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }

    def __enter__(self) -> StubOpenAi:
        """Begins to answer."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends."""
        self._server.shutdown()
        self._server.server_close()
