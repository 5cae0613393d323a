"""Trains the policy by GRPO through the gateway, while the rollouts go on.

Batches come token by token as the engine generated them; weights go back as files. Writes
a line a step, `log.json`, and `reward.png`; exits with 1 when the reward has not risen.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import numpy as np
from rollwright import AsyncActionClient, AsyncRolloutClient

import grpo
import model
from plot import plot
from rollouts import Policy, Rollouts
from task import Checkers

LENGTH = 16  # tokens of a row of a batch: longer than any trajectory of the task
CONFIG = model.Config()


def pack(batch):
    """A batch of the gateway as arrays, a row per trajectory, its rewards against its group's."""
    samples = [sample for group in batch.groups for sample in group.trajectories]
    arrays = {
        "tokens": np.zeros((len(samples), LENGTH), np.int32),
        "mask": np.zeros((len(samples), LENGTH), np.float32),
        "logprobs": np.zeros((len(samples), LENGTH), np.float32),
    }
    for row, sample in enumerate(samples):
        end = len(sample.token_ids)
        arrays["tokens"][row, :end] = sample.token_ids
        arrays["mask"][row, :end] = sample.loss_mask
        arrays["logprobs"][row, :end] = [logprob or 0.0 for logprob in sample.logprobs]
    relative = [grpo.advantages(np.array([s.reward for s in g.trajectories])) for g in batch.groups]
    arrays["advantages"] = np.concatenate(relative).astype(np.float32)
    return arrays


def summary(batch):
    """What a batch says of the policy and of its age."""
    samples = [sample for group in batch.groups for sample in group.trajectories]
    rewards = np.array([sample.reward for sample in samples])
    return {
        "reward": float(rewards.mean()),
        "exact": float((rewards == 1).mean()),
        "trajectories": len(samples),
        "generated_tokens": int(sum(sum(sample.loss_mask) for sample in samples)),
        "staleness": float(np.mean([batch.version - sample.oldest_version for sample in samples])),
        "max_staleness": max(batch.version - sample.oldest_version for sample in samples),
    }


class Trainer:
    """Takes batches, updates the weights, and hands them over."""

    def __init__(self, gateway, args):
        self.gateway, self.args = gateway, args
        self.settings = grpo.Settings()
        self.params = model.load(args.weights)
        self.state = grpo.optimizer(self.params)
        self.begun = time.monotonic()

    async def step(self):
        """One batch, from the wait for it to its acknowledgement. Returns what to log."""
        before = time.monotonic()
        batch = None
        while batch is None:
            batch = await self.gateway.take()
        taken = time.monotonic()
        # In a thread: the rollouts go on meanwhile.
        self.params, self.state, logs = await asyncio.to_thread(
            grpo.train, self.params, self.state, CONFIG, self.settings, pack(batch)
        )
        trained = time.monotonic()
        version = (await self.gateway.weights())["version"] + 1
        update = await self._publish(version)
        await self.gateway.ack(batch.id)
        ended = time.monotonic()
        return {
            "version": batch.version,
            **summary(batch),
            **logs,
            "wait_seconds": taken - before,
            "train_seconds": trained - taken,
            "sync_seconds": ended - trained,
            "exposed_seconds": update.exposed_seconds,
            "elapsed_seconds": ended - self.begun,
        }

    async def _publish(self, version):
        """Writes the weights and has every engine load them. Those of earlier versions go."""
        folder = self.args.out / "weights" / str(version)
        async with self.gateway.update_weights(version, path=str(folder.resolve())) as update:
            folder.mkdir(parents=True)
            await asyncio.to_thread(model.save, self.params, folder / "model.safetensors")
            await update.commit()
        shutil.rmtree(folder.parent / str(version - 1), ignore_errors=True)
        return update.committed


def show(step, steps, log):
    bar = "#" * round(20 * log["reward"])
    print(
        f"step {step:3}/{steps}  reward {log['reward']:.3f} |{bar:20}|"
        f"  all right {log['exact']:4.0%}"
        f"  staleness {log['staleness']:.2f}  waited {log['wait_seconds']:.1f}s"
        f"  trained {log['train_seconds']:.1f}s  synced {log['sync_seconds']:.1f}s",
        flush=True,
    )


async def train(args):
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            AsyncRolloutClient(args.gateway, api_key=args.api_key)
        )
        queue = await stack.enter_async_context(AsyncActionClient(args.queue, api_key=args.api_key))
        policy = await stack.enter_async_context(Policy(args.gateway, args.api_key))
        checkers = await stack.enter_async_context(Checkers(queue, args.sandboxes))
        rollouts = Rollouts(gateway, policy, checkers, args.seed)
        trainer, logs = Trainer(gateway, args), []
        generating = asyncio.create_task(rollouts.run(args.groups))
        try:
            for step in range(1, args.steps + 1):
                stepping = asyncio.create_task(trainer.step())
                await asyncio.wait({stepping, generating}, return_when=asyncio.FIRST_COMPLETED)
                if generating.done():
                    stepping.cancel()
                    generating.result()
                logs.append({"step": step, **stepping.result()})
                show(step, args.steps, logs[-1])
            rollouts.stop()
            await generating
        finally:
            generating.cancel()
            with suppress(asyncio.CancelledError):
                await generating
        return logs, {"aborted": rollouts.aborted, "infrastructure_faults": rollouts.faults}


def verdict(logs, rise):
    """The mean reward of the first and of the last fifth of the steps, and if it rose enough."""
    fifth = max(1, len(logs) // 5)
    parts = (logs[:fifth], logs[-fifth:])
    first, last = (float(np.mean([log["reward"] for log in part])) for part in parts)
    risen = last >= first + rise
    return {"first_fifth": first, "last_fifth": last, "needed_rise": rise, "risen": risen}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gateway", required=True, help="http://HOST:PORT or unix:/PATH")
    parser.add_argument("--queue", required=True, help="address of the action queue, likewise")
    parser.add_argument("--api-key", help="of the job, for TCP addresses")
    parser.add_argument(
        "--weights", type=Path, required=True, help="what the engine serves at first"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of weights, log and plot")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--groups", type=int, default=4, help="groups that are rolled out at once")
    parser.add_argument("--sandboxes", type=int, default=4, help="checkers")
    parser.add_argument("--rise", type=float, help="by which the last fifth must beat the first")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rise = min(0.4, 0.002 * args.steps) if args.rise is None else args.rise

    logs, counts = asyncio.run(train(args))
    result = verdict(logs, rise)
    report = {
        "result": result,
        **counts,
        "weights": model.size(model.load(args.weights)),
        "steps": logs,
    }
    (args.out / "log.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(logs, args.out / "reward.png")
    print(
        f"mean reward {result['first_fifth']:.3f} in the first fifth of the steps,"
        f" {result['last_fifth']:.3f} in the last; {args.out / 'reward.png'}"
    )
    if not result["risen"]:
        sys.exit(f"the reward has not risen by {rise:.2f}")


if __name__ == "__main__":
    main()
