"""The engine against the model that it serves."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import numpy as np
from aiohttp.test_utils import AioHTTPTestCase, TestServer

import engine
import model
import tokenizer
from batching import Batcher

CONFIG = model.Config(width=32, layers=2)
LOGPROBS = jax.jit(model.logprobs, static_argnames="config")
PROMPT = tokenizer.chat([{"role": "user", "content": "4912"}])


def weights(seed):
    params = model.init(CONFIG, jax.random.key(seed))
    # Random logits are nearly flat; these are not.
    return {**params, "unembed": params["unembed"] * 100}


def expected_logprobs(params, prompt, output):
    tokens = [*prompt, *output]
    padded = np.array([tokens + [0] * (CONFIG.context - len(tokens))])
    return np.asarray(LOGPROBS(params, CONFIG, padded)[0][0, len(prompt) : len(tokens)])


class Engine(AioHTTPTestCase):
    async def get_application(self):
        self.old, self.new = weights(1), weights(2)
        self.batcher = Batcher(self.old, CONFIG, "0", slots=4)
        return engine.app(self.batcher, "tiny")

    async def get_server(self, service):
        return TestServer(service, handler_cancellation=True)

    async def post(self, path, **body):
        async with self.client.post(path, json=body) as response:
            return response.status, await response.json()

    async def chat(self, **body):
        wanted = {"logprobs": True, "return_token_ids": True}
        message = {"role": "user", "content": "4912"}
        status, reply = await self.post(
            "/v1/chat/completions", messages=[message], **wanted, **body
        )
        self.assertEqual(status, 200, reply)
        return reply

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)

    def check(self, params, output, logprobs):
        np.testing.assert_allclose(logprobs, expected_logprobs(params, PROMPT, output), atol=1e-3)

    async def test_many_at_once_have_the_models_own_logprobs(self):
        replies = await asyncio.gather(*(self.chat(max_tokens=1 + i % 9) for i in range(30)))
        for i, reply in enumerate(replies):
            self.assertEqual(reply["prompt_token_ids"], PROMPT)
            (choice,) = reply["choices"]
            ids = choice["token_ids"]
            self.assertEqual(choice["message"]["content"], tokenizer.decode(ids))
            ended = ids[-1] == tokenizer.END
            self.assertEqual(choice["finish_reason"], "stop" if ended else "length")
            self.assertTrue(ended or len(ids) == 1 + i % 9)
            self.check(self.old, ids, [entry["logprob"] for entry in choice["logprobs"]["content"]])
        self.assertGreater(len({tuple(reply["choices"][0]["token_ids"]) for reply in replies}), 5)

    async def test_streams_say_the_same_as_whole_replies(self):
        whole = await self.chat(temperature=0)
        body = {
            "prompt": PROMPT,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
            "logprobs": 1,
        }
        async with self.client.post("/v1/completions", json=body) as response:
            lines = (await response.text()).split("\n\n")
        self.assertEqual(lines[-2:], ["data: [DONE]", ""])
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        self.assertEqual(events[0]["prompt_token_ids"], PROMPT)
        choices = [event["choices"][0] for event in events]
        (expected,) = whole["choices"]
        self.assertEqual(
            [token for c in choices for token in c["token_ids"]], expected["token_ids"]
        )
        self.assertEqual("".join(c["text"] for c in choices), expected["message"]["content"])
        self.assertEqual(choices[-1]["finish_reason"], expected["finish_reason"])
        native = {
            "input_ids": PROMPT,
            "sampling_params": {"temperature": 0},
            "return_logprob": True,
        }
        _, reply = await self.post("/generate", **native)
        self.assertEqual(reply["output_ids"], expected["token_ids"])
        entries = reply["meta_info"]["output_token_logprobs"]
        self.check(self.old, [entry[1] for entry in entries], [entry[0] for entry in entries])

    async def test_retracted_requests_go_on_by_the_new_weights(self):
        # Temperature 100 seldom draws the end.
        running = [
            asyncio.create_task(self.chat(temperature=100, request_id=str(i))) for i in range(8)
        ]
        await self.until(lambda: any(len(request.output) > 1 for request in self.batcher.running))
        await self.post("/pause_generation", mode="retract")
        kept = {f"chatcmpl-{request.name}": len(request.output) for request in self.batcher.waiting}
        self.assertEqual(self.batcher.running, [])
        self.assertTrue(any(kept.values()))
        with tempfile.TemporaryDirectory() as directory:
            model.save(self.new, Path(directory, "model.safetensors"))
            body = {"model_path": directory, "weight_version": "1"}
            status, reply = await self.post("/update_weights_from_disk", **body)
        self.assertEqual(status, 200, reply)
        async with self.client.get("/get_model_info") as response:
            self.assertEqual((await response.json())["weight_version"], "1")
        await self.post("/continue_generation")
        for reply in await asyncio.gather(*running):
            (choice,) = reply["choices"]
            ids, cut = choice["token_ids"], kept.get(reply["id"], len(choice["token_ids"]))
            self.check(
                self.old, ids[:cut], [e["logprob"] for e in choice["logprobs"]["content"]][:cut]
            )
            after = expected_logprobs(self.new, PROMPT, ids)[cut:]
            logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            np.testing.assert_allclose(logprobs[cut:], after, atol=1e-3)

    async def test_aborted_requests_return_what_they_have(self):
        running = asyncio.create_task(self.chat(temperature=0))
        await self.until(lambda: any(request.output for request in self.batcher.running))
        async with self.client.post("/pause?mode=abort&clear_cache=true") as response:
            self.assertEqual(response.status, 200)
        (choice,) = (await running)["choices"]
        self.assertEqual(choice["finish_reason"], "abort")
        self.check(
            self.old, choice["token_ids"], [e["logprob"] for e in choice["logprobs"]["content"]]
        )
        waiting = asyncio.create_task(self.chat())
        await self.until(lambda: self.batcher.waiting)
        async with self.client.get("/is_paused") as response:
            self.assertEqual(await response.json(), {"is_paused": True})
        await self.post("/resume")
        self.assertIn((await waiting)["choices"][0]["finish_reason"], ("stop", "length"))

    async def test_a_client_that_leaves_frees_its_slot(self):
        task = asyncio.create_task(self.chat())
        await self.post("/pause_generation", mode="retract")
        await self.until(lambda: self.batcher.waiting)
        task.cancel()
        await self.until(lambda: not self.batcher.waiting)

    async def test_wrong_requests_are_refused(self):
        for path, body in (
            ("/v1/completions", {"prompt": [99]}),
            ("/v1/completions", {"prompt": []}),
            ("/v1/completions", {"prompt": "1", "max_tokens": 0}),
            ("/v1/completions", {"prompt": "1" * CONFIG.context}),
            ("/v1/chat/completions", {"messages": "hello"}),
            ("/generate", {}),
            ("/pause_generation", {"mode": "in_place"}),
            ("/update_weights_from_disk", {"model_path": "/nowhere"}),
        ):
            status, reply = await self.post(path, **body)
            self.assertEqual(
                (status, reply["error"]["type"]), (400, "invalid_request_error"), (path, body)
            )
