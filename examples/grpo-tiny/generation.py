"""The routes that generate: OpenAI's, with vLLM's `return_token_ids`, and SGLang's `/generate`."""

import json
import time
import uuid

from aiohttp import web

import tokenizer
from batching import Request
from service import BATCHER, NAME, Refused, fields, number


def request_of(config, prompt, body, name):
    """A request with its limits checked. `n` other than 1 is not offered."""
    if not prompt or not all(type(token) is int and 0 <= token < config.vocab for token in prompt):
        raise Refused(f"the prompt must be tokens from 0 to {config.vocab - 1}, at least one")
    room = config.context - len(prompt)
    if room < 1:
        raise Refused(f"the prompt has {len(prompt)} tokens; the context holds {config.context}")
    if body.get("n", 1) != 1:
        raise Refused("n must be 1")
    limits = ("max_completion_tokens", "max_tokens", "max_new_tokens")
    limit = int(number(body, limits, room, 1, 1 << 30))
    extra = body.get("stop_token_ids") or ()
    return Request(
        name=name,
        prompt=list(prompt),
        max_tokens=min(limit, room),
        temperature=float(number(body, ("temperature",), 1.0, 0, 100)),
        stops=frozenset((tokenizer.END, *extra)),
    )


async def pieces(batcher, request):
    """Yields `(start, end)` of newly generated tokens until it has ended."""
    batcher.submit(request)
    seen = 0
    try:
        while True:
            await request.news.wait()
            request.news.clear()
            end = len(request.output)
            if end > seen or request.finish:
                yield seen, end
            seen = end
            if request.finish and seen == len(request.output):
                return
    finally:
        # Reached early when the client has gone.
        if request.finish is None:
            batcher.abort([request])


async def whole(batcher, request):
    async for _ in pieces(batcher, request):
        pass


def usage(request):
    prompt, output = len(request.prompt), len(request.output)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def logprobs_of(request, start, end, is_chat):
    tokens = [tokenizer.CHARACTERS[token] for token in request.output[start:end]]
    values = request.logprobs[start:end]
    if not is_chat:
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": []}
    pairs = zip(tokens, values, strict=True)
    return {
        "content": [
            {"token": t, "logprob": v, "bytes": list(t.encode()), "top_logprobs": []}
            for t, v in pairs
        ]
    }


def choice(request, body, start, end, kind):
    """One choice, of the tokens from `start` to `end`; `kind` is chat, delta or text."""
    text = tokenizer.decode(request.output[start:end])
    shown = {"text": text} if kind == "text" else None
    if kind == "chat":
        shown = {"message": {"role": "assistant", "content": text}}
    if kind == "delta":
        shown = {"delta": {"content": text, **({"role": "assistant"} if start == 0 else {})}}
    wanted = body.get("logprobs")
    logprobs = (
        logprobs_of(request, start, end, kind != "text") if wanted not in (None, False) else None
    )
    ids = {"token_ids": request.output[start:end]} if body.get("return_token_ids") else {}
    done = request.finish if end == len(request.output) else None
    return {"index": 0, **shown, "logprobs": logprobs, "finish_reason": done, **ids}


async def openai(http, body, prompt, is_chat):
    batcher = http.app[BATCHER]
    name = body.get("request_id") or http.headers.get("X-Request-Id") or uuid.uuid4().hex
    request = request_of(batcher.config, prompt, body, name)
    head = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{name}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": http.app[NAME],
    }
    ids = {"prompt_token_ids": request.prompt} if body.get("return_token_ids") else {}
    if not body.get("stream"):
        await whole(batcher, request)
        end = len(request.output)
        choices = [choice(request, body, 0, end, "chat" if is_chat else "text")]
        return web.json_response({**head, **ids, "choices": choices, "usage": usage(request)})
    if is_chat:
        head["object"] += ".chunk"
    request.streamed = True
    response = await event_stream(http)
    async for start, end in pieces(batcher, request):
        choices = [choice(request, body, start, end, "delta" if is_chat else "text")]
        await send(response, {**head, **(ids if start == 0 else {}), "choices": choices})
    if (body.get("stream_options") or {}).get("include_usage"):
        await send(response, {**head, "choices": [], "usage": usage(request)})
    await response.write(b"data: [DONE]\n\n")
    return response


async def event_stream(http):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(http)
    return response


async def send(response, event):
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def chat_completions(http):
    body = await fields(http)
    try:
        prompt = tokenizer.chat(body["messages"])
    except (KeyError, TypeError) as error:
        raise Refused("messages must be a list of {role, content: text}") from error
    return await openai(http, body, prompt, is_chat=True)


async def completions(http):
    body = await fields(http)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompt = tokenizer.encode(prompt)
    if not isinstance(prompt, list):
        raise Refused("prompt must be text or a list of token ids")
    return await openai(http, body, prompt, is_chat=False)


async def generate(http):
    """SGLang's own form; in a stream each event repeats what came before."""
    body, batcher = await fields(http), http.app[BATCHER]
    prompt = body.get("input_ids")
    if prompt is None and isinstance(body.get("text"), str):
        prompt = tokenizer.encode(body["text"])
    if not isinstance(prompt, list):
        raise Refused("give text, or input_ids as a list of token ids")
    name = body.get("rid") or uuid.uuid4().hex
    request = request_of(batcher.config, prompt, body.get("sampling_params") or {}, name)
    if not body.get("stream"):
        await whole(batcher, request)
        return web.json_response(native(request, body, len(request.output)))
    request.streamed = True
    response = await event_stream(http)
    async for _, end in pieces(batcher, request):
        await send(response, native(request, body, end))
    await response.write(b"data: [DONE]\n\n")
    return response


def native(request, body, end):
    meta = {
        "id": request.name,
        "finish_reason": {"type": request.finish} if request.finish else None,
        "prompt_tokens": len(request.prompt),
        "completion_tokens": end,
        "cached_tokens": 0,
        "weight_version": request.weight_version,
    }
    if body.get("return_logprob"):
        pairs = zip(request.logprobs[:end], request.output[:end], strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    output = request.output[:end]
    return {"text": tokenizer.decode(output), "output_ids": output, "meta_info": meta}
