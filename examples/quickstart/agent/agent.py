"""The agent of the quickstart: plays all trajectories of a run, and takes the batches.

Each trajectory asks the gateway for a reply, runs the command in it as an action in its sandbox,
and sends the output back, until the policy says that it is done. Then the job's reward service
scores it. Standard output is for programs: see records.py.
"""

import argparse
import asyncio
import os
from pathlib import Path

import openai
from rollwright import (
    ActionFault,
    ActionTimeout,
    AsyncActionClient,
    AsyncRolloutClient,
    Fault,
    InfrastructureFault,
)
from rollwright.faults import from_answer

import dialogue
import records

STEPS = 30  # turns after which a policy that does not end is stopped
BATCH_GROUPS = 2  # groups of a batch
SANDBOX_MEMORY = 384 << 20  # as the manifests say
TENANT_PLACES = 16  # sandboxes at once on nodes that are not ours to see


class Agent:
    """Everything that the trajectories of a run share."""

    def __init__(self, options, queue, gateway, key):
        self._queue, self._gateway = queue, gateway
        self._prefix, self._edits, self._job = options.prefix, options.edits, options.job
        self._openai = openai.AsyncOpenAI(base_url=options.gateway, api_key=key, timeout=600)
        engine, engine_key = (options.engine, "none") if options.engine else (options.gateway, key)
        self._engine = openai.AsyncOpenAI(base_url=f"{engine}/v1", api_key=engine_key)
        self._model = ""
        # A queue tells the nodes to those alone who may open its socket.
        self._tenant = not options.queue.startswith("unix:")
        self._places = asyncio.Semaphore(1)
        self._aborted = 0
        self._out = records.Output()

    async def run(self, packages):
        cores = await self._prepare()
        self._out.write("begin", {"cores": cores})
        telling = asyncio.create_task(self._tell())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._train(len(packages)))
            for package in packages:
                tasks.create_task(self._group(package))
        telling.cancel()
        granted = self._out.mean_busy()
        self._out.write("end", {"at_s": self._out.now(), "granted_cores": granted})

    async def _prepare(self):
        """Waits for the services; says how many cores there are, or 0 to a tenant."""
        nodes = []
        while not (nodes or self._tenant):
            await asyncio.sleep(0.1)
            nodes = [n for n in (await self._queue.stats())["nodes"] if n["connected"]]
        while not any(w["state"] == "ready" for w in (await self._gateway.status())["workers"]):
            await asyncio.sleep(0.1)
        self._model = (await self._engine.models.list()).data[0].id
        # A trajectory keeps its memory while another sandbox scores it: some is left for those.
        fit = sum(node["memory_bytes"] // SANDBOX_MEMORY for node in nodes)
        self._places = asyncio.Semaphore(TENANT_PLACES if self._tenant else max(1, fit - 2))
        return sum(node["cores"] for node in nodes)

    async def _tell(self):
        """The state of the run, for those who watch."""
        while True:
            stats = await self._queue.stats()
            busy = sum(node["exclusive_cores"] + node["shared_cores"] for node in stats["nodes"])
            queue = {"waiting": stats["waiting"], "running": stats["running"], "busy_cores": busy}
            self._out.sample(busy)
            self._out.write("live", self._out.live | queue)
            await asyncio.sleep(0.5)

    async def _train(self, groups):
        """The trainer's side: takes and acknowledges all batches."""
        taken = 0
        while (left := groups - taken - self._aborted) > 0:
            batch = await self._gateway.take(groups=min(BATCH_GROUPS, left), wait=2)
            if batch is not None:
                self._out.write("batch", records.batch(batch))
                await self._gateway.ack(batch.id)
                taken += len(batch.groups)

    async def _group(self, package):
        group = await self._gateway.open_group(
            group_id=f"{self._prefix}-{package}",
            task=package,
            payload={"package": package},
            wait=600,
        )
        begun = set()
        while group.state == "open":
            # Those to start now; later those that replace what a fault of a machine ended.
            start = [member.id for member in group.trajectories if member.id not in begun]
            begun.update(start)
            async with asyncio.TaskGroup() as tasks:
                for trajectory in start:
                    tasks.create_task(self._trajectory(trajectory, package))
            group = await self._gateway.group(group.id, wait=1)
        self._aborted += group.state == "aborted"

    async def _trajectory(self, trajectory, package):
        record = {"id": trajectory, "group": package, "begin_s": self._out.now(), "thinks": []}
        record |= {"sandbox": None, "actions": [], "scoring": None, "fault": None}
        try:
            async with self._gateway.rollout(trajectory) as rollout, self._places:
                await self._roll_out(rollout, package, record)
        except Fault as fault:
            record["fault"] = str(fault)
        about = await self._gateway.rollout(trajectory).look()
        for name in ("turns", "prompt_tokens", "generated_tokens", "reward"):
            record[name] = getattr(about, name)
        record["fault"] = record["fault"] or (str(about.fault) if about.fault else None)
        record["end_s"] = self._out.now()
        self._out.live["done"] += 1
        self._out.write("trajectory", record)

    async def _roll_out(self, rollout, package, record):
        sandbox = self._queue.sandbox(
            "python", trajectory_id=rollout.trajectory_id, job=self._job
        )
        with self._out.during("opening") as opening:
            await sandbox.open()
        waited = sandbox.ready.times.queue
        record["sandbox"] = {
            "requested_s": opening["begin_s"],
            "ready_s": opening["end_s"],
            "closed_s": 0.0,
            "queue_s": waited,
        }
        try:
            await self._converse(rollout, sandbox, package, record)
            with self._out.during("scoring") as record["scoring"]:
                await rollout.complete(metadata={"package": package})
                # What is scored is copied out of the sandbox: it must stay until then.
                while (await rollout.look()).state in ("running", "scoring"):
                    await asyncio.sleep(0.25)
            await self._scored(rollout.trajectory_id, package, record)
        finally:
            await sandbox.close()
            record["sandbox"]["closed_s"] = self._out.now()

    async def _scored(self, trajectory, package, record):
        """Takes up the action that scored it: an ended id that is sent again gives its result."""
        reward = f"{trajectory}.reward"
        result = None
        # In a pristine sandbox, which has the action's name, or in the trajectory's own. Were it
        # a second attempt, it would have another id: then its first gives the fault again.
        for sandbox in (reward, trajectory):
            try:
                result = await self._queue.execute(sandbox, "true", action_id=reward)
                break
            except Fault:
                continue
        if result is None:
            return
        took = result.queued + result.ran + result.overhead
        span = {**record["scoring"], "begin_s": record["scoring"]["end_s"] - took}
        graded = records.action("reward", f"grade {package}", "tests", span, result, 0.0)
        record["actions"].append(graded)

    async def _converse(self, rollout, sandbox, package, record):
        """The policy and the sandbox by turns."""
        task = dialogue.PLAYED
        if self._edits:
            task = dialogue.REPAIR
            await self._act(rollout, sandbox, self._planted(package), record)
        messages = [
            {"role": "system", "content": dialogue.SYSTEM},
            {"role": "user", "content": task.format(package=package)},
        ]
        for _ in range(STEPS):
            with self._out.during("thinking") as thinking:
                reply = await self._ask(rollout, messages)
            record["thinks"].append(thinking)
            if dialogue.is_done(reply):
                return
            command = dialogue.command_of(reply)
            seen = dialogue.LOST
            if command is not None:
                seen = await self._act(rollout, sandbox, command, record)
            messages += [
                {"role": "assistant", "content": reply},
                {"role": "user", "content": seen},
            ]

    async def _ask(self, rollout, messages):
        client = self._openai.with_options(
            base_url=rollout.openai_base_url,
            # For the engine: it reads no path.
            default_headers={"X-Rollwright-Trajectory": rollout.trajectory_id},
        )
        try:
            answer = await client.chat.completions.create(model=self._model, messages=messages)
        except openai.APIStatusError as error:
            answer = error.response
            raise from_answer(answer.status_code, answer.headers, answer.content) from error
        except openai.APIConnectionError as error:
            raise InfrastructureFault("GatewayUnreachable", str(error)) from error
        return answer.choices[0].message.content or ""

    async def _act(self, rollout, sandbox, command, record):
        """Runs a command as an action; what the policy is told of it."""
        try:
            with self._out.during("acting") as acting:
                profile = dialogue.profile_of(command)
                result = await sandbox.run(command, profile=profile)
        except (ActionTimeout, ActionFault) as fault:
            return f"{fault}\n{fault.output}"
        name = dialogue.name_of(command)
        # Cores that are held for life were waited for before the first action.
        waited = record["sandbox"]["queue_s"] if not record["actions"] else 0.0
        record["actions"].append(records.action(name, command, profile, acting, result, waited))
        await rollout.step(name=name, seconds=result.ran)
        return dialogue.observation(result.exit_code, result.output)

    def _planted(self, package):
        """A command that unpacks the package and breaks it."""
        patch = (self._edits / f"{package}-1.patch").read_text()
        untar = f"tar -xf /opt/sdist/{package}.tar.gz --strip-components=1 -C repo"
        return f"mkdir -p repo && {untar} && patch -p1 -d repo <<'PATCH'\n{patch}PATCH"


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", required=True, help="URL; the key is in ROLLWRIGHT_API_KEY")
    parser.add_argument("--queue", required=True, help="unix:/path or URL of the action queue")
    parser.add_argument("--engine", help="URL of what is asked for its model; default: the gateway")
    parser.add_argument("--job", default="quickstart", help="the job, as the queue calls it")
    parser.add_argument("--prefix", required=True, help="start of all ids")
    parser.add_argument("--edits", type=Path, help="for a real model: directory of planted bugs")
    parser.add_argument("packages", nargs="+", help="a group of trajectories for each")
    options = parser.parse_args()
    key = os.environ["ROLLWRIGHT_API_KEY"]
    # Who may open the socket needs no key.
    queue_key = None if options.queue.startswith("unix:") else key
    async with (
        AsyncActionClient(options.queue, api_key=queue_key) as queue,
        AsyncRolloutClient(options.gateway, api_key=key) as gateway,
    ):
        await Agent(options, queue, gateway, key).run(options.packages)


if __name__ == "__main__":
    asyncio.run(main())
