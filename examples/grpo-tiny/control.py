"""The routes that control the engine, in the forms of vLLM's development mode and of SGLang.

Pausing never freezes what runs (`keep`, `in_place`): it would go on with keys and values
of the old weights.
"""

from pathlib import Path

from aiohttp import web

from service import BATCHER, Refused, fields

routes = web.RouteTableDef()
done = web.json_response


def weights_file(path):
    """The file of a path as trainers give it: the file, or its directory."""
    file = Path(path or "")
    file = file / "model.safetensors" if file.is_dir() else file
    if not file.is_file():
        raise Refused(
            f"`{path}` is neither a safetensors file nor a directory with model.safetensors"
        )
    return file


async def pause(http, mode, modes):
    if mode not in modes:
        raise Refused(f"mode must be one of {', '.join(modes)}, not {mode!r}")
    await http.app[BATCHER].pause(mode)
    return done({"status": "paused", "success": True})


def abort(http, names):
    batcher = http.app[BATCHER]
    everything = [*batcher.running, *batcher.waiting]
    batcher.abort([r for r in everything if names is None or r.name in names])
    return done({"success": True})


# vLLM.


@routes.post("/pause")
async def vllm_pause(http):
    return await pause(http, http.query.get("mode", "abort"), ("abort", "wait"))


@routes.post("/resume")
@routes.post("/continue_generation")
async def resume(http):
    http.app[BATCHER].resume()
    return done({"status": "resumed", "success": True})


@routes.get("/is_paused")
async def is_paused(http):
    return done({"is_paused": http.app[BATCHER].paused})


@routes.post("/collective_rpc")
async def collective_rpc(http):
    body = await fields(http)
    if body.get("method") != "reload_weights":
        raise Refused("method must be reload_weights")
    batcher = http.app[BATCHER]
    path = (body.get("kwargs") or {}).get("weights_path")
    await batcher.load(weights_file(path), batcher.version)
    return done({"results": [None]})


@routes.post("/update_weight_version")
async def update_weight_version(http):
    body = await fields(http)
    version = body.get("new_version", body.get("weight_version"))
    if version is None:
        raise Refused("new_version is missing")
    http.app[BATCHER].version = str(version)
    return done({"success": True})


@routes.post("/reset_prefix_cache")
@routes.post("/flush_cache")
async def flush_cache(_):
    """There is no cache of prefixes."""
    return done({"success": True})


@routes.post("/abort_requests")
async def abort_requests(http):
    return abort(http, set((await fields(http)).get("request_ids") or ()))


# SGLang.


@routes.post("/pause_generation")
async def sglang_pause(http):
    body = await fields(http)
    return await pause(http, body.get("mode", "abort"), ("abort", "retract"))


@routes.post("/update_weights_from_disk")
async def update_weights_from_disk(http):
    body, batcher = await fields(http), http.app[BATCHER]
    file = weights_file(body.get("model_path"))
    if body.get("abort_all_requests"):
        batcher.abort([*batcher.running, *batcher.waiting])
    await batcher.load(file, str(body.get("weight_version", batcher.version)))
    return done({"success": True, "message": "loaded", "num_paused_requests": len(batcher.waiting)})


@routes.post("/abort_request")
async def abort_request(http):
    body = await fields(http)
    return abort(http, None if body.get("abort_all") else {body.get("rid")})


@routes.get("/get_model_info")
@routes.get("/model_info")
@routes.get("/weight_info")
async def model_info(http):
    return done({"weight_version": http.app[BATCHER].version, "is_generation": True})
