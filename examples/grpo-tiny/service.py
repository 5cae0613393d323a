"""What every route of the engine shares: its state, and how bodies are read and refused."""

import json

from aiohttp import web

from batching import Batcher

BATCHER = web.AppKey("batcher", Batcher)
NAME = web.AppKey("name", str)  # of the model


class Refused(Exception):
    """A request that is wrong; says what would be right."""


async def fields(http):
    try:
        body = json.loads(await http.text() or "{}")
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    return body


def number(body, names, default, low, high):
    """The first of `names` that is given, as a number in range."""
    value = next((body[name] for name in names if body.get(name) is not None), default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refused(f"{names[0]} must be a number from {low} to {high}, not {value!r}")
    return value


@web.middleware
async def refusals(http, handler):
    try:
        return await handler(http)
    except Refused as refused:
        error = {"message": str(refused), "type": "invalid_request_error", "param": None}
        return web.json_response({"error": {**error, "code": 400}}, status=400)
