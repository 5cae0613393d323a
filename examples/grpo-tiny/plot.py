"""The picture of a run: reward, staleness of the batches, and where the time went."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt


def plot(logs, path):
    """Writes a PNG of the steps of a run."""
    steps = [log["step"] for log in logs]

    def series(name):
        return [log[name] for log in logs]

    figure, (reward, age, seconds) = plt.subplots(
        3, 1, sharex=True, figsize=(8, 8), height_ratios=(3, 1, 1.5), layout="constrained"
    )
    reward.plot(steps, series("reward"), label="mean reward")
    reward.plot(steps, series("exact"), label="answers all right")
    reward.set(
        ylim=(0, 1.02), ylabel="of the batch", title="GRPO through the gateway: reversing digits"
    )
    reward.legend(loc="upper left", frameon=False)
    age.fill_between(steps, series("staleness"), step="mid", alpha=0.4)
    age.plot(steps, series("max_staleness"), drawstyle="steps-mid", lw=1, label="oldest trajectory")
    age.set(ylabel="versions behind", ylim=(0, max(1, *series("max_staleness")) + 0.2))
    age.legend(loc="lower right", frameon=False)
    names = ("wait", "train", "sync")
    labels = ("waiting for a batch", "training", "handing weights over")
    seconds.stackplot(
        steps, *(series(f"{name}_seconds") for name in names), labels=labels, alpha=0.8
    )
    seconds.set(xlabel="step", ylabel="seconds")
    seconds.legend(loc="upper right", frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    log, picture = map(Path, sys.argv[1:])
    plot(json.loads(log.read_text())["steps"], picture)
