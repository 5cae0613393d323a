"""Processes of a run: started, waited for, measured from /proc, ended."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
READY_SECONDS = 30.0


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def raise_file_limit() -> int:
    """Raises the limit on open files as far as allowed; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Process:
    """A program and its children, with its log in a file."""

    def __init__(self, name: str, command: Sequence[object], log_dir: Path):
        """Starts it."""
        self.name = name
        self._log = log_dir / f"{name}.log"
        with self._log.open("ab") as log:
            words = [str(word) for word in command]
            self._child = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def wait_for(self, port: int, path: str, headers: Mapping[str, str], body: object) -> None:
        """Waits until a request is answered with 200."""
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        request.headers.update({"Content-Type": "application/json", **headers})
        request.data = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + READY_SECONDS
        last: object = "nothing"
        while time.monotonic() < deadline and self._child.poll() is None:
            try:
                with urllib.request.urlopen(request, timeout=5) as reply:
                    reply.read()
                    return
            except (urllib.error.URLError, OSError) as error:
                last = error
            time.sleep(0.05)
        tail = self._log.read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{self.name} does not answer ({last}):\n{tail}")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left of its own session after that."""
        self._child.terminate()
        try:
            self._child.wait(3)
        except subprocess.TimeoutExpired:
            for pid in self.pids():
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            self._child.wait()

    def pids(self) -> list[int]:
        """It and its descendants."""
        found, at = [self._child.pid], 0
        while at < len(found):
            for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
                try:
                    found += [int(pid) for pid in task.read_text().split()]
                except (FileNotFoundError, ProcessLookupError):
                    continue
            at += 1
        return found

    def cpu_seconds(self) -> float:
        """User and system time so far, from /proc/PID/stat."""
        ticks = 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except FileNotFoundError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICK

    def rss(self) -> int:
        """Resident memory in bytes."""
        return sum(_rss_kib(pid) for pid in self.pids()) * 1024


def _rss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def machine_cpu() -> tuple[float, float]:
    """Seconds of all cores since boot: in processes (interrupts are nobody's), and stolen."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, fields[:8])
    return (user + nice + system) / TICK, steal / TICK
