"""The task: say the digits backwards. Its answers are judged by a program, in a sandbox."""

import asyncio
import itertools
from pathlib import Path

from rollwright import AsyncActionClient, InfrastructureFault

NAME = "reverse"
DIGITS = 3
MAX_TOKENS = DIGITS + 2  # the answer, its end, and one that is too many
CHECKER = Path(__file__).with_name("check.awk")


def question(rng):
    return "".join(str(digit) for digit in rng.integers(0, 10, DIGITS))


class Checkers:
    """Long-lived sandboxes that score in turn: an action each time, and a share of a core."""

    def __init__(self, queue: AsyncActionClient, sandboxes):
        self._sandboxes = [queue.sandbox("checker", job="grpo-tiny") for _ in range(sandboxes)]
        self._turn = itertools.cycle(self._sandboxes)
        self._room = asyncio.Semaphore(2 * sandboxes)

    async def __aenter__(self):
        for sandbox in self._sandboxes:
            await sandbox.open()
            await sandbox.write_file("/workspace/check.awk", CHECKER.read_bytes())
        return self

    async def __aexit__(self, *_):
        for sandbox in self._sandboxes:
            await sandbox.close()

    async def score(self, asked, answer):
        """The reward, 0 to 1. A checker that fails is a fault, never a reward of 0."""
        line = answer.replace("\n", " ")
        command, stdin = ["awk", "-f", "/workspace/check.awk"], f"{asked}\n{line}\n".encode()
        async with self._room:
            ended = await next(self._turn).run(command, profile="check", stdin=stdin)
        if ended.exit_code != 0:
            raise InfrastructureFault(
                "CheckerFailed", f"exit code {ended.exit_code}: {ended.output}"
            )
        return float(ended.stdout)
