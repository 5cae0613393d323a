"""A real queue and agent, and gateway, in one process, on this machine's Docker engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
from gateway import job
from programs import API_KEY, ROOT, built, free_port, program

READY = 60.0
INIT = ROOT / "target" / "quick" / "rollwright-init"
"""The static helper is always in `quick`."""


def missing() -> str | None:
    """Why no stack can be started here."""
    if os.geteuid() != 0:
        return "cgroups need root: run scripts/test.sh"
    if built("rollwright") is None or not INIT.exists():
        return "no `rollwright` with its static helper in target/quick or target/debug: make build"
    if shutil.which("docker") is None:
        return "no Docker client: scripts/docker-engine.sh start"
    image = ["docker", "image", "inspect", "rollwright/busybox:local"]
    if subprocess.run(image, capture_output=True, check=False).returncode != 0:
        return "no Docker engine, or no image rollwright/busybox:local: scripts/busybox-image.sh"
    return None


class Stack:
    """`rollwright standalone`: on a Unix socket, or on TCP with an API key."""

    def __init__(
        self, *, tcp: bool = False, engine: str | None = None, policy: str | None = None
    ) -> None:
        """Starts it, with a gateway before `engine`, and waits until its node is there.

        `policy` takes the place of the manifest's, as YAML in braces.
        """
        # Short, so that the sockets below fit in 108 bytes.
        self.dir = Path(tempfile.mkdtemp(prefix="rwpy-", dir="/tmp"))
        self.port = free_port() if tcp else None
        self._engine = engine
        self._policy = policy
        self._gateway = f"127.0.0.1:{free_port()}"
        self.address = f"http://127.0.0.1:{self.port}" if tcp else f"unix:{self.dir}/q.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def gateway(self) -> str:
        """Where trainers and agents call."""
        return f"http://{self._gateway}"

    @property
    def api_key(self) -> str | None:
        """What a caller over TCP must send."""
        return API_KEY if self.port else None

    def start(self) -> None:
        """Starts the process anew on what an earlier one left."""
        (self.dir / "keys").write_text(f"py:{API_KEY}\njob-b:another-key-0123456789\n")
        shutil.copytree(ROOT / "e2e/manifests", self.dir / "manifests", dirs_exist_ok=True)
        if self._policy:
            queue = self.dir / "manifests" / "queue.yaml"
            own = re.compile(r"^  policy:\n(    .*\n)+", re.MULTILINE)
            queue.write_text(own.sub(f"  policy: {self._policy}\n", queue.read_text()))
        place = ["--socket", f"{self.dir}/q.sock"]
        if self.port:
            place = ["--listen", f"127.0.0.1:{self.port}", "--api-keys", f"{self.dir}/keys"]
        manifests = self.dir / "manifests"
        command: list[str | Path] = [program("rollwright"), "standalone", "-f", manifests]
        command += [*place, "--state-dir", self.dir / "state"]
        command += ["--init", INIT]
        command += ["--node", self.dir.name, "--metrics-addr", "127.0.0.1:0"]
        command += ["--agent-metrics-addr", "127.0.0.1:0"]
        if self._engine:
            (manifests / "job.yaml").write_text(job())
            command += ["--engine", f"{self._engine},slots=8", "--gateway-listen", self._gateway]
            command += ["--api-keys", self.dir / "keys", "--gateway-metrics-addr", "127.0.0.1:0"]
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
                    stats = client.get("/v1/stats").json()
                    # Nodes are not shown to the holder of a key: that the queue answers must do.
                    if self.port or any(node["connected"] for node in stats["nodes"]):
                        return
                except (httpx.TransportError, KeyError):
                    pass
                time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the queue does not start:\n{(self.dir / 'log').read_text()[-4000:]}")
