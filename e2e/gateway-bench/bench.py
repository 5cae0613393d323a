"""What a proxy before engines costs: latency, throughput, CPU and memory, in one run.

Called by run.sh. The proxies take turns within each case, several rounds, so that what else
the machine does falls on all of them; a figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import report
from processes import Process, free_port, machine_cpu, raise_file_limit
from proxies import CHAT, ENGINES, STARTS, Place, Target, start_build, start_engines

HERE = Path(__file__).parent
# A proxy holds two files for a stream, and needs some for itself.
SPARE_FILES = 200


@dataclass(frozen=True)
class Case:
    """A load of wrk."""

    name: str
    body_bytes: int
    connections: int
    trajectories: int


CASES = [
    Case("1 KB, 1 connection", 1_000, 1, 64),
    Case("1 KB, 64 connections", 1_000, 64, 256),
    Case("200 KB, 16 connections", 200_000, 16, 16),
    Case("1 MB, 8 connections", 1_000_000, 8, 8),
]


@dataclass
class Sample:
    """What one round of wrk found."""

    case: str
    target: str
    p50_us: float
    p99_us: float
    per_second: float
    cpu_us: float
    errors: int
    other_load: float
    stolen: float


@dataclass
class Streams:
    """What a proxy held in memory."""

    target: str
    asked: int
    open: int
    idle_bytes: int
    peak_bytes: int
    complete: int
    seconds: float

    @property
    def per_stream(self) -> float:
        """Bytes that each open stream added."""
        return (self.peak_bytes - self.idle_bytes) / max(self.open, 1)


def load(case: Case, target: Target, seconds: int, ours: list[Process]) -> Sample:
    """One round of wrk."""
    variables = {
        "BODY_BYTES": str(case.body_bytes),
        "TRAJECTORIES": str(case.trajectories),
        "HEADER": target.header,
        "AUTHORIZATION": target.authorization or "none",
    }
    command = ["wrk", "-t1", f"-c{case.connections}", f"-d{seconds}s", "--timeout", "10s"]
    command += ["-s", str(HERE / "load.lua"), f"http://127.0.0.1:{target.port}{CHAT}"]
    began, own = time.monotonic(), os.times()
    (busy, stolen), cpu = machine_cpu(), target.process.cpu_seconds()
    known = sum(process.cpu_seconds() for process in ours)
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    cpu = target.process.cpu_seconds() - cpu
    known = sum(process.cpu_seconds() for process in ours) - known
    now_busy, now_stolen = machine_cpu()
    now_own = os.times()
    cores = (time.monotonic() - began) * (os.cpu_count() or 1)
    # This process and wrk, its child, are no other load.
    known += sum(now_own[:4]) - sum(own[:4])
    line = done.stdout.strip().rpartition("\n")[2]
    if not line.startswith("{"):
        raise RuntimeError(f"wrk against {target.name}: {done.stdout}{done.stderr}")
    said = json.loads(line)
    return Sample(
        case=case.name,
        target=target.name,
        p50_us=said["p50_us"],
        p99_us=said["p99_us"],
        per_second=said["requests"] / said["seconds"],
        cpu_us=cpu / max(said["requests"], 1) * 1e6,
        errors=said["errors"],
        other_load=max(0.0, now_busy - busy - known) / cores,
        stolen=(now_stolen - stolen) / cores,
    )


def loads(place: Place, rounds: int, seconds: int, names: list[str]) -> list[Sample]:
    """All cases against all proxies, in turns."""
    engines = start_engines(place, tokens=1)
    processes = [engines]
    try:
        direct = Target("engine itself", place.engines[0], engines).ready()
        targets = [direct]
        for name in names:
            target = STARTS[name](place)
            processes.append(target.process)
            targets.append(target.ready())
        for target in targets[1:]:
            load(CASES[1], target, 1, processes)
        samples = []
        for case in CASES:
            for turn in range(rounds):
                # The order changes, so that nobody always follows the same one.
                for target in targets[::-1] if turn % 2 else targets:
                    samples.append(load(case, target, seconds, processes))
            say(case.name)
        return samples
    finally:
        for process in reversed(processes):
            process.stop()


def streams(place: Place, counts: list[int], tokens: int, names: list[str]) -> list[Streams]:
    """Memory of a proxy that was just started, with so many streams open."""
    engines = start_engines(place, tokens)
    try:
        Target("engine itself", place.engines[0], engines).ready()
        found = []
        for name in names:
            target = STARTS[name](place)
            try:
                idle = target.ready().process.rss()
                found += [client(place, target, count, idle) for count in counts]
            finally:
                target.process.stop()
            say(f"streams of {name}")
        return found
    finally:
        engines.stop()


def client(place: Place, target: Target, count: int, idle: int) -> Streams:
    """Opens so many streams and reads them to their ends."""
    command = [str(place.programs / "streams"), str(target.port), str(count), target.header]
    command += [target.authorization] if target.authorization else []
    peak = idle
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while child.poll() is None:
        peak = max(peak, target.process.rss())
        time.sleep(0.1)
    said = child.communicate()[0]
    words = said.split()
    if len(words) != 4:
        raise RuntimeError(f"the streams' client said {said!r}")
    complete, _, most = map(int, words[:3])
    return Streams(target.name, count, most, idle, peak, complete, float(words[3]))


def say(done: str) -> None:
    """Progress."""
    print(f"  {done} ({time.monotonic() - BEGAN:.0f} s)", file=sys.stderr)


def main() -> None:
    """Runs it all."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--quick", action="store_true", help="under two minutes, less exact")
    parse.add_argument("--only", choices=["loads", "streams"], help="one half of it")
    parse.add_argument("--against", default=",".join(STARTS), help="proxies, by commas")
    parse.add_argument("--rollwright", type=Path, required=True)
    parse.add_argument("--routers", type=Path, required=True, help="the venv of the wheels")
    parse.add_argument("--programs", type=Path, required=True, help="compiled engine and streams")
    parse.add_argument("--json", type=Path, required=True, help="where the figures are written")
    parse.add_argument("--build", action="append", default=[], metavar="NAME=PATH",
                       help="another build of the gateway, to compare it in the same run")  # fmt: skip
    args = parse.parse_args()
    for build in args.build:
        name, _, path = build.partition("=")
        if not Path(path).is_file():
            parse.error(f"--build {build}: write NAME=PATH of a program")
        STARTS[name] = partial(start_build, name=name, program=Path(path))
        args.against += f",{name}"
    names = args.against.split(",")
    unknown = set(names) - set(STARTS)
    if unknown:
        parse.error(f"--against {unknown}: choose from {', '.join(STARTS)}")
    files = raise_file_limit()
    rounds, seconds = (1, 1) if args.quick else (3, 2)
    most = min(10_000, (files - SPARE_FILES) // 2)
    counts, tokens = ([min(2_000, most)], 10) if args.quick else ([min(2_000, most), most], 30)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as scratch:
        place = Place(
            dir=Path(scratch),
            engines=[free_port() for _ in range(ENGINES)],
            rollwright=args.rollwright,
            routers=args.routers,
            programs=args.programs,
            files=files,
        )
        samples = loads(place, rounds, seconds, names) if args.only != "streams" else []
        held = streams(place, counts, tokens, names) if args.only != "loads" else []
    figures = report.figures(samples, held)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(figures, indent=1) + "\n")
    report.table(figures, tokens)
    print(f"figures: {args.json}")


BEGAN = time.monotonic()
if __name__ == "__main__":
    main()
