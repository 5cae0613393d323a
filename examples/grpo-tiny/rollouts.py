"""The side that generates: opens groups at the gateway and takes each trajectory to its reward."""

import asyncio
import json

import aiohttp
import numpy as np
from rollwright import AsyncRolloutClient, Cancelled, Fault, InfrastructureFault, Stale
from rollwright.actions import new_id
from rollwright.address import Address
from rollwright.faults import from_answer

import task

ROOM = 2.0  # seconds that the gateway is waited for when it has no room
REPLACED = 5.0  # seconds after which a group that is still open is asked what to start anew
TOO_MANY = 429


class Policy:
    """Generates through the gateway, by the plain interface of OpenAI and one header."""

    def __init__(self, address, api_key):
        place = Address.parse(address)
        limit = 1024
        unix = aiohttp.UnixConnector(place.socket, limit=limit) if place.socket else None
        self._http = aiohttp.ClientSession(
            base_url=place.url,
            connector=unix or aiohttp.TCPConnector(limit=limit),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=aiohttp.ClientTimeout(total=600),
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._http.close()

    async def answer(self, trajectory, asked):
        body = {
            "model": "grpo-tiny",
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": task.MAX_TOKENS,
            "temperature": 1.0,
        }
        headers = {"X-Rollwright-Trajectory": trajectory}
        try:
            async with self._http.post("/v1/chat/completions", json=body, headers=headers) as reply:
                content = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InfrastructureFault("GatewayUnreachable", str(error)) from error
        if not reply.ok:
            raise from_answer(reply.status, reply.headers, content)
        return json.loads(content)["choices"][0]["message"]["content"]


class Rollouts:
    """Some groups at a time, without end. The gateway holds them back when they run ahead of
    the trainer."""

    def __init__(self, gateway: AsyncRolloutClient, policy: Policy, checkers: task.Checkers, seed):
        self._gateway, self._policy, self._checkers = gateway, policy, checkers
        self._rng = np.random.default_rng(seed)
        self._stopping = False
        self.faults = 0  # of the infrastructure: those trajectories were replaced
        self.aborted = 0  # by the gateway: stale, or not needed

    async def run(self, groups):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(groups):
                tasks.create_task(self._groups())

    def stop(self):
        """No more groups; `run` returns when those that are open have ended."""
        self._stopping = True

    async def _groups(self):
        while not self._stopping:
            asked = task.question(self._rng)
            group = await self._open(asked)
            if group is None:
                return
            begun = set()
            while group.state == "open":
                start = [member.id for member in group.trajectories if member.id not in begun]
                begun.update(start)
                await asyncio.gather(*(self._trajectory(name, asked) for name in start))
                group = await self._gateway.group(group.id, wait=REPLACED)

    async def _open(self, asked):
        """A group, when there is room; `None` when it has been stopped before."""
        name, payload = new_id(), {"question": asked}
        while not self._stopping:
            try:
                return await self._gateway.open_group(
                    group_id=name, task=task.NAME, payload=payload, wait=ROOM
                )
            except Fault as fault:
                if fault.status != TOO_MANY:
                    raise
        return None

    async def _trajectory(self, name, asked):
        try:
            async with self._gateway.rollout(name) as rollout:
                answer = await self._policy.answer(name, asked)
                reward = await self._checkers.score(asked, answer)
                await rollout.complete(reward=reward, metadata={"answer": answer})
        except (Cancelled, Stale):
            self.aborted += 1
        except InfrastructureFault:
            self.faults += 1
