"""What the agent tells of itself: lines of JSON on standard output, times in seconds since its
start. The tables and the timeline are made of them."""

import json
import time
from contextlib import contextmanager


class Output:
    """Writes the lines, and counts what the trajectories do at this moment."""

    def __init__(self):
        self._begin = time.monotonic()
        self._samples = self._busy = 0
        self.live = dict.fromkeys(("opening", "thinking", "acting", "scoring", "done"), 0)

    def now(self):
        return time.monotonic() - self._begin

    def sample(self, busy_cores):
        """Takes up how many cores are granted at this moment."""
        self._samples += 1
        self._busy += busy_cores

    def mean_busy(self):
        return self._busy / max(1, self._samples)

    def write(self, kind, value):
        print(json.dumps({kind: value}), flush=True)

    @contextmanager
    def during(self, state):
        """Counts a trajectory in a state, and yields the stretch of time, complete at the end."""
        span = {"begin_s": self.now(), "end_s": 0.0}
        self.live[state] += 1
        try:
            yield span
        finally:
            self.live[state] -= 1
            span["end_s"] = self.now()


def action(name, command, profile, span, result, waited):
    """An action that ran to its end; `waited` is what its sandbox waited for a place before."""
    return {
        "name": name,
        "profile": profile,
        "command": command,
        "submitted_s": span["begin_s"],
        "ended_s": span["end_s"],
        "queue_s": result.queued,
        "sandbox_queue_s": waited,
        "exec_s": result.ran,
        "cpu_s": result.cpu_seconds,
        "units": result.units,
        "cores": list(result.cores),
        "exit_code": result.exit_code,
    }


def batch(taken):
    """A batch as the trainer got it; raises where its parts do not fit together."""
    samples = [sample for group in taken.groups for sample in group.trajectories]
    for sample in samples:
        mask = sample.loss_mask
        fits = len(sample.token_ids) == len(mask) == len(sample.logprobs)
        # A log-prob for each token that the loss counts, and for no other.
        if not fits or [bit == 1 for bit in mask] != [p is not None for p in sample.logprobs]:
            raise ValueError(f"{sample.id}: tokens, log-probs and loss mask do not fit together")
    return {
        "id": taken.id,
        "groups": len(taken.groups),
        "trajectories": len(samples),
        "tokens": sum(len(sample.token_ids) for sample in samples),
        "trained_tokens": sum(sum(sample.loss_mask) for sample in samples),
        "versions": sorted({part.version for sample in samples for part in sample.versions}),
        "mean_reward": sum(sample.reward for sample in samples) / len(samples),
    }
