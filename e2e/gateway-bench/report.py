"""Figures of a run from its samples, and the table that people read."""

from __future__ import annotations

import os
from statistics import median
from typing import Any

BASE = "vllm-router"
ENGINE = "engine itself"
# More of the machine than this taken by others makes a round doubtful.
QUIET = 0.05


def figures(samples: list[Any], streams: list[Any]) -> dict[str, Any]:
    """Medians over the rounds, and what was going on besides."""
    cases: dict[str, dict[str, dict[str, float]]] = {}
    for sample in samples:
        of_case = cases.setdefault(sample.case, {})
        rounds = [s for s in samples if (s.case, s.target) == (sample.case, sample.target)]
        fields = ("p50_us", "p99_us", "per_second", "cpu_us", "other_load", "stolen")
        figure = {name: median(getattr(s, name) for s in rounds) for name in fields}
        figure["errors"] = sum(s.errors for s in rounds)
        of_case.setdefault(sample.target, figure)
    for of_case in cases.values():
        for figure in of_case.values():
            figure["added_p50_us"] = figure["p50_us"] - of_case[ENGINE]["p50_us"]
    held = [
        vars(s) | {"kib_per_stream": s.per_stream / 1024, "peak_mib": s.peak_bytes / 2**20}
        for s in streams
    ]
    disturbed = sum(s.other_load + s.stolen > QUIET for s in samples)
    machine = {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "rounds": len(samples),
        "rounds_disturbed": disturbed,
        "other_load_most": max((s.other_load for s in samples), default=0.0),
        "stolen_most": max((s.stolen for s in samples), default=0.0),
    }
    return {"machine": machine, "loads": cases, "streams": held}


def table(figures: dict[str, Any], tokens: int) -> None:
    """Prints it."""
    for case, of_case in figures["loads"].items():
        row = "{:<15} {:>9} {:>10} {:>10} {:>7} {:>10} {:>7} {:>6}".format
        print(f"\n{case} (x = against {BASE})")
        print(row("", "p50 us", "added us", "req/s", "x", "CPU us/req", "x", "other"))
        base = of_case.get(BASE)
        for target, figure in of_case.items():
            print(
                row(
                    target,
                    f"{figure['p50_us']:.0f}",
                    "-" if target == ENGINE else f"{figure['added_p50_us']:.0f}",
                    f"{figure['per_second']:.0f}",
                    _ratio(figure, base, "per_second"),
                    f"{figure['cpu_us']:.1f}",
                    _ratio(figure, base, "cpu_us"),
                    f"{figure['other_load'] + figure['stolen']:.0%}",
                )
                + (f"  {figure['errors']:.0f} ERRORS" if figure["errors"] else "")
            )
    if figures["streams"]:
        print(f"\nstreams of {tokens} tokens, one every 400 ms: resident memory of the proxy")
        row = "{:<15} {:>7} {:>9} {:>9} {:>10} {:>8}".format
        print(row("", "asked", "at once", "idle MiB", "peak MiB", "KiB each"))
        for held in figures["streams"]:
            incomplete = held["asked"] - held["complete"]
            print(
                row(
                    held["target"],
                    held["asked"],
                    held["open"],
                    f"{held['idle_bytes'] / 2**20:.1f}",
                    f"{held['peak_mib']:.1f}",
                    f"{held['kib_per_stream']:.1f}",
                )
                + (f"  {incomplete} INCOMPLETE" if incomplete else "")
            )
    machine = figures["machine"]
    if not figures["loads"]:
        print(f"\n{machine['cores']} cores, load average {machine['load_average'][0]:.1f}")
        return
    print(
        f"\n{machine['cores']} cores, load average {machine['load_average'][0]:.1f}; in "
        f"{machine['rounds_disturbed']} of {machine['rounds']} rounds others took more than "
        f"{QUIET:.0%} of the machine (most {machine['other_load_most']:.0%}, "
        f"stolen {machine['stolen_most']:.0%})"
    )
    if machine["rounds_disturbed"]:
        print("NOT A QUIET MACHINE: only compare lines of the same case, and no absolute figures")


def _ratio(figure: dict[str, float], base: dict[str, float] | None, name: str) -> str:
    return f"{figure[name] / base[name]:.2f}" if base and base[name] else "-"
