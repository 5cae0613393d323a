"""An OpenAI-compatible engine for the tiny model, with the control routes of vLLM and SGLang.

Requests are answered with token ids and log-probabilities where they ask for them, weights
are replaced while it runs, and nothing that the old weights computed outlives them.
"""

import argparse
import asyncio
import os
import signal
import time
import traceback
from pathlib import Path

from aiohttp import web

import control
import generation
import model
from batching import Batcher
from service import BATCHER, NAME, refusals

STARTED = time.time()


async def models(http):
    name = http.app[NAME]
    context = http.app[BATCHER].config.context
    card = {
        "id": name,
        "object": "model",
        "created": int(STARTED),
        "owned_by": "grpo-tiny",
        "max_model_len": context,
    }
    return web.json_response({"object": "list", "data": [card]})


async def health(_):
    return web.Response()


async def metrics(http):
    batcher = http.app[BATCHER]
    running = len(batcher.running)
    values = {
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": len(batcher.waiting),
        "vllm:kv_cache_usage_perc": running / len(batcher.slots),
        "process_start_time_seconds": STARTED,
    }
    return web.Response(text="".join(f"{name} {value}\n" for name, value in values.items()))


async def stepping(service):
    """Runs the batcher as long as the service. Without it nobody would be served: that ends all."""

    def ended(task):
        if not task.cancelled():
            traceback.print_exception(task.exception())
            os._exit(1)

    task = asyncio.create_task(service[BATCHER].run())
    task.add_done_callback(ended)
    yield
    task.cancel()


def app(batcher, name):
    """The whole service."""
    service = web.Application(middlewares=[refusals], client_max_size=4 << 20)
    service[BATCHER], service[NAME] = batcher, name
    service.cleanup_ctx.append(stepping)
    service.router.add_get("/health", health)
    service.router.add_get("/metrics", metrics)
    service.router.add_get("/v1/models", models)
    service.router.add_post("/v1/chat/completions", generation.chat_completions)
    service.router.add_post("/v1/completions", generation.completions)
    service.router.add_post("/generate", generation.generate)
    service.router.add_routes(control.routes)
    return service


async def serve(args):
    """Serves until it is told to stop."""
    params = model.load(args.weights)
    batcher = Batcher(params, model.Config(), args.version, args.slots, args.seed)
    runner = web.AppRunner(app(batcher, args.name), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port).start()
    print(f"engine: {model.size(params):,} weights at http://{args.host}:{args.port}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    batcher.abort([*batcher.running, *batcher.waiting])
    await runner.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--weights", type=Path, required=True, help="safetensors file")
    parser.add_argument("--version", default="0", help="version of these weights")
    parser.add_argument("--name", default="grpo-tiny", help="name of the model")
    parser.add_argument("--slots", type=int, default=64, help="requests in one batch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    asyncio.run(serve(args))


if __name__ == "__main__":
    main()
