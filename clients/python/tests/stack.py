"""A real queue and agent in one process, on this machine's Docker engine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[3]
READY = 60.0
API_KEY = "key-of-the-python-tests"


def missing() -> str | None:
    """Why no stack can be started here."""
    if os.geteuid() != 0:
        return "cgroups need root: run scripts/test.sh"
    if binary() is None:
        return "no `rollwright` with its static helper in target/quick or target/debug: make build"
    if shutil.which("docker") is None:
        return "no Docker client: scripts/docker-engine.sh start"
    image = ["docker", "image", "inspect", "rollwright/busybox:local"]
    if subprocess.run(image, capture_output=True, check=False).returncode != 0:
        return "no Docker engine, or no image rollwright/busybox:local: scripts/busybox-image.sh"
    return None


def binary() -> Path | None:
    """The newest build that there is; the static helper is always in `quick`."""
    built = [ROOT / "target" / profile / "rollwright" for profile in ("quick", "debug")]
    built = [path for path in built if path.exists()]
    if not built or not (ROOT / "target" / "quick" / "rollwright-init").exists():
        return None
    return max(built, key=lambda path: path.stat().st_mtime)


class Stack:
    """`rollwright standalone`: on a Unix socket, or on TCP with an API key."""

    def __init__(self, *, tcp: bool = False) -> None:
        """Starts it and waits until its node is there."""
        # Short, so that the sockets below fit in 108 bytes.
        self.dir = Path(tempfile.mkdtemp(prefix="rwpy-", dir="/tmp"))
        self.port = _free_port() if tcp else None
        self.address = f"http://127.0.0.1:{self.port}" if tcp else f"unix:{self.dir}/q.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def api_key(self) -> str | None:
        """What a caller over TCP must send."""
        return API_KEY if self.port else None

    def start(self) -> None:
        """Starts the process anew on what an earlier one left."""
        (self.dir / "keys").write_text(f"job-a:{API_KEY}\njob-b:another-key-0123456789\n")
        place = ["--socket", f"{self.dir}/q.sock"]
        if self.port:
            place = ["--listen", f"127.0.0.1:{self.port}", "--api-keys", f"{self.dir}/keys"]
        program = binary()
        if program is None:
            raise RuntimeError("not built")
        command: list[str | Path] = [program, "standalone", "--filename", ROOT / "e2e/manifests"]
        command += [*place, "--state-dir", self.dir / "state"]
        command += ["--init", ROOT / "target/quick/rollwright-init"]
        command += ["--node", self.dir.name, "--metrics-addr", "127.0.0.1:0"]
        command += ["--agent-metrics-addr", "127.0.0.1:0"]
        with (self.dir / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_connected()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ends it in order, removes what is left, and checks that its end was orderly."""
        if self._process is None:
            return
        self._process.terminate()
        status = self._process.wait(READY)
        log = (self.dir / "log").read_text()
        shutil.rmtree(self.dir)
        left = self._containers()
        if left:
            subprocess.run(["docker", "rm", "-f", *left], check=True, capture_output=True)
        if status != 0:
            raise RuntimeError(f"it ended with status {status}:\n{log[-4000:]}")
        if left:
            raise RuntimeError(f"containers were left: {left}")

    def _containers(self) -> list[str]:
        label = f"label=rollwright.dev/agent={self.dir.name}"
        listed = ["docker", "ps", "-aq", "--filter", label]
        return subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()

    def _wait_until_connected(self) -> None:
        uds = None if self.port else f"{self.dir}/q.sock"
        base_url = self.address if self.port else "http://localhost"
        headers = {"Authorization": f"Bearer {API_KEY}"}
        deadline = time.monotonic() + READY
        transport = httpx.HTTPTransport(uds=uds)
        with httpx.Client(base_url=base_url, transport=transport, headers=headers) as client:
            while time.monotonic() < deadline:
                if self._process is not None and self._process.poll() is not None:
                    break
                try:
                    nodes = client.get("/v1/stats").json()["nodes"]
                except (httpx.TransportError, KeyError):
                    nodes = []
                if any(node["connected"] for node in nodes):
                    return
                time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the queue does not start:\n{(self.dir / 'log').read_text()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
