"""Holds what goes over the wire against the gateway's own OpenAPI document."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

ROOT = "/rollout/v1/"


class Checked(httpx.BaseTransport):
    """A transport that refuses answers, and accepted requests, of which the document knows nothing.

    Routes of OpenAI's interface are not in it, and pass.
    """

    def __init__(self, inner: httpx.BaseTransport, document: dict[str, Any]) -> None:
        """Takes the document as it is served."""
        self._inner = inner
        self._document = document

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends it, and checks both ways."""
        response = self._inner.handle_request(request)
        path = request.url.raw_path.decode().partition("?")[0]
        if not path.startswith(ROOT):
            return response
        operation = self._operation(request.method, path)
        told = operation["responses"][str(response.status_code)].get("content", {})
        if "application/json" in told:
            response.read()
            self._check(told["application/json"]["schema"], response.json())
        elif not told:
            assert response.read() == b"", "a body that the document does not have"
        else:
            assert response.headers["Content-Type"] in told
        asked = operation.get("requestBody", {}).get("content", {})
        if response.is_success and "application/json" in asked:
            self._check(asked["application/json"]["schema"], json.loads(request.read() or b"{}"))
        return response

    def close(self) -> None:
        """Closes the connections."""
        self._inner.close()

    def _operation(self, method: str, path: str) -> dict[str, Any]:
        for template, operations in self._document["paths"].items():
            pattern = re.sub(r"\\\{[^}]+\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, path):
                operation: dict[str, Any] = operations[method.lower()]
                return operation
        raise AssertionError(f"the document has no path {path}")

    def _check(self, schema: dict[str, Any], body: object) -> None:
        whole = {"allOf": [schema], "components": self._document["components"]}
        Draft202012Validator(whole).validate(body)
