"""Continuous batching: requests share one batch of slots and come and go between steps.

Each step reads one token per slot, of its prompt or the one that it has just sampled, so
a new request joins at any step and nothing is padded to the longest.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import model
from tokenizer import END, PAD


@partial(jax.jit, static_argnames="config", donate_argnames="cache")
def _step(params, config, cache, slots, tokens, positions, temperatures, key, count):
    """Reads a token in each of `slots`, samples the next. Log-probabilities: at temperature 1."""
    logits, cache = model.decode(params, config, cache, slots, tokens, positions)
    heat = jnp.maximum(temperatures, 1e-6)[:, None]
    drawn = jax.random.categorical(jax.random.fold_in(key, count), logits / heat)
    sampled = jnp.where(temperatures > 0, drawn, logits.argmax(-1))
    table = jax.nn.log_softmax(logits)
    return sampled, jnp.take_along_axis(table, sampled[:, None], 1)[:, 0], cache


@dataclass(eq=False)
class Request:
    """A prompt and what was generated for it; `news` wakes whoever reads."""

    name: str
    prompt: list
    max_tokens: int
    temperature: float = 1.0
    stops: frozenset = frozenset((END,))
    output: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    finish: str | None = None  # stop, length or abort
    weight_version: str = ""  # of the newest token
    streamed: bool = False  # its reader wants every token at once
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, finish):
        self.finish = finish
        self.news.set()


@dataclass
class _Slot:
    request: Request
    read: int = 0  # tokens of prompt and output that are in the cache


class Batcher:
    """Owns the weights, the cache and the slots. One task runs it; all else only asks."""

    def __init__(self, params, config, version, slots=64, seed=0):
        self.config, self.version = config, version
        self.waiting, self.slots = deque(), [None] * slots
        self.paused = False
        self._params, self._cache = params, model.empty_cache(config, slots)
        self._key, self._count = jax.random.key(seed), 0
        self._wake, self._stepping = asyncio.Event(), asyncio.Lock()

    @property
    def running(self):
        return [slot.request for slot in self.slots if slot]

    def submit(self, request):
        self.waiting.append(request)
        self._wake.set()

    def abort(self, requests):
        """Ends requests with what they have."""
        for request in requests:
            self._leave(request)
            if request.finish is None:
                request.end("abort")

    def _leave(self, request):
        if request in self.waiting:
            self.waiting.remove(request)
        self.slots = [None if slot and slot.request is request else slot for slot in self.slots]

    async def pause(self, mode):
        """Stops generation: `abort` ends what runs, `retract` puts it back at the head of the
        line to be read anew from its first token, `wait` lets it end first."""
        self.paused = True
        if mode == "wait":
            while self.running:
                async with self._stepping:  # the lock is fair: one step each time
                    pass
        async with self._stepping:
            if mode == "abort":
                self.abort([*self.running, *self.waiting])
            self._retract()

    def _retract(self):
        self.waiting.extendleft(reversed(self.running))
        self.slots = [None] * len(self.slots)

    def resume(self):
        self.paused = False
        self._wake.set()

    async def load(self, path, version):
        """Takes other weights. No key or value of the old ones survives."""
        params = await asyncio.to_thread(model.load, path)
        async with self._stepping:
            self._retract()
            self._params, self.version = params, version
        self._wake.set()

    async def run(self):
        """Steps while there is work. Never ends by itself."""
        while True:
            if not self.paused:
                self._admit()
            if not self.running:
                self._wake.clear()
                await self._wake.wait()
                continue
            async with self._stepping:
                for slot, token, logprob in await asyncio.to_thread(self._step, list(self.slots)):
                    self._deliver(slot, token, logprob)

    def _admit(self):
        for index, slot in enumerate(self.slots):
            if slot is None and self.waiting:
                self.slots[index] = _Slot(self.waiting.popleft())

    def _step(self, stepped):
        # The arrays' length is a power of two, so that few programs are compiled. What
        # fills them up has a slot that is not there: it is read and written nowhere.
        busy = [(index, slot) for index, slot in enumerate(stepped) if slot]
        length = max(8, 1 << (len(busy) - 1).bit_length())
        slots = np.full(length, len(stepped), np.int32)
        tokens, positions = np.full(length, PAD, np.int32), np.zeros(length, np.int32)
        temperatures = np.ones(length, np.float32)
        for row, (index, slot) in enumerate(busy):
            request, read = slot.request, slot.read
            ahead = read - len(request.prompt)
            tokens[row] = request.prompt[read] if ahead < 0 else request.output[ahead]
            slots[row], positions[row], temperatures[row] = index, read, request.temperature
        self._count += 1
        sampled, logprobs, self._cache = _step(
            self._params, self.config, self._cache, slots, tokens, positions, temperatures,
            self._key, self._count,
        )  # fmt: skip
        found = zip(busy, np.asarray(sampled).tolist(), np.asarray(logprobs).tolist(), strict=False)
        return [(slot, token, logprob) for (_, slot), token, logprob in found]

    def _deliver(self, slot, token, logprob):
        slot.read += 1
        request = slot.request
        if slot.read < len(request.prompt) + len(request.output) or request.finish:
            return  # it is still being read, or was aborted meanwhile
        request.output.append(token)
        request.logprobs.append(logprob)
        request.weight_version = self.version
        if token in request.stops:
            request.finish = "stop"
        elif len(request.output) >= request.max_tokens:
            request.finish = "length"
        if request.finish:
            self._leave(request)
        if request.finish or request.streamed:
            request.news.set()
