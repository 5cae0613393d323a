"""A real gateway before simulated engines, all on the loopback interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from openapi_check import Checked
from programs import API_KEY, free_port, program

from rollwright import RolloutClient

MODEL = "policy"
READY = 60.0
KEYS = f"py:{API_KEY}\nother:key-of-another-job-0123456789\n"
POOL = {
    "apiVersion": "rollwright.dev/v1alpha1",
    "kind": "ResourcePool",
    "metadata": {"name": "gpus"},
    "spec": {
        "gpu": {
            "class": "local",
            "profile": {"tflops": 1, "hbm": "1Gi", "hbmTbps": 1},
            "gpusPerNode": 1,
        }
    },
}


def job(engine: str = "vLLM", **rollout: Any) -> str:
    """The manifests of a job `py` of groups of two, one in a batch."""
    spec = {
        "model": {"path": MODEL},
        "engine": {"type": engine, "image": "engine-sim"},
        "allocation": {"fixed": {"groups": [{"pool": "gpus", "degree": 1, "workers": 1}]}},
        "rollout": {"groupSize": 2, "batchGroups": 1} | rollout,
    }
    manifest = {
        "apiVersion": "rollwright.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": "py", "namespace": "default"},
        "spec": spec,
    }
    # JSON is YAML.
    return json.dumps(manifest) + "\n---\n" + json.dumps(POOL) + "\n"


class Engine:
    """`engine-sim`: a simulator of an engine, whose replies are a hash, or scripted."""

    def __init__(self, *options: str, script: Sequence[dict[str, Any]] = ()) -> None:
        """Starts it on a free port."""
        self._dir = Path(tempfile.mkdtemp(prefix="rwpy-", dir="/tmp"))
        (self._dir / "script").write_text("".join(json.dumps(line) + "\n" for line in script))
        command = [str(program("engine-sim")), "--model", MODEL, *options]
        if script:
            command += ["--script", str(self._dir / "script")]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self.url = said.rpartition(" ")[2].strip()
        self.http = httpx.Client(base_url=self.url)

    def sim(self, path: str) -> Any:
        """What only a simulator tells: `state`, `requests`, `calls`, `violations`."""
        return self.http.get(f"/sim/{path}").json()

    def stop(self) -> None:
        """Ends it; fails where it saw a call that a real engine would not have borne."""
        violations = self.sim("violations")["violations"]
        self.http.close()
        self._process.terminate()
        self._process.wait(READY)
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._dir)
        if violations:
            raise RuntimeError(f"the engine saw {violations}")


class Gateway:
    """`rollwright gateway` on TCP with an API key, or on a Unix socket, and its engines."""

    def __init__(
        self, manifests: str = "", *, engine: Engine | None = None, unix: bool = False
    ) -> None:
        """Starts it before `engine`, and waits until it answers."""
        self.dir = Path(tempfile.mkdtemp(prefix="rwpy-", dir="/tmp"))
        (self.dir / "manifests").mkdir()
        (self.dir / "manifests" / "job.yaml").write_text(manifests or job())
        (self.dir / "keys").write_text(KEYS)
        self.socket = self.dir / "g.sock" if unix else None
        place = f"127.0.0.1:{free_port()}"
        self.address = f"unix:{self.socket}" if unix else f"http://{place}"
        self._listen = self.address if unix else place
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[RolloutClient] = []
        self.engine = engine or Engine()
        try:
            self.start()
        except BaseException:
            self.engine.stop()
            raise

    def __enter__(self) -> Gateway:
        """It is started already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it in order, and its engine."""
        try:
            self.stop()
        finally:
            self.engine.stop()
        shutil.rmtree(self.dir)

    def start(self) -> None:
        """Starts the process anew on what an earlier one left."""
        command: list[str | Path] = [program("rollwright"), "gateway", "-f", self.dir / "manifests"]
        command += ["--engine", f"{self.engine.url},slots=64", "--listen", self._listen]
        command += ["--state-dir", self.dir / "state", "--metrics-addr", "127.0.0.1:0"]
        if self.socket is None:
            command += ["--api-keys", self.dir / "keys"]
        with (self.dir / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + READY
        with self.http() as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    workers = client.get("/rollout/v1/status").json()["workers"]
                except httpx.TransportError:
                    workers = []
                if any(worker["state"] == "ready" for worker in workers):
                    self.document = client.get("/rollout/v1/openapi.json").json()
                    return
                time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"the gateway does not start:\n{self.log()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ends it and its clients."""
        for client in self._clients:
            client.close()
        self.end()

    def end(self) -> None:
        """SIGTERM; its end must be orderly."""
        if self._process is None:
            return
        self._process.terminate()
        status = self._process.wait(READY)
        self._process = None
        if status != 0 or "panicked" in self.log():
            raise RuntimeError(f"it ended with status {status}:\n{self.log()[-4000:]}")

    def log(self) -> str:
        """What it has logged."""
        return (self.dir / "log").read_text()

    def client(self, **options: Any) -> RolloutClient:
        """A client that holds all answers against the gateway's OpenAPI document."""
        uds = str(self.socket) if self.socket else None
        transport = Checked(httpx.HTTPTransport(uds=uds), self.document)
        key = None if self.socket else API_KEY
        client = RolloutClient(self.address, api_key=key, transport=transport, **options)
        self._clients.append(client)
        return client

    def http(self) -> httpx.Client:
        """For requests that no client makes."""
        uds = str(self.socket) if self.socket else None
        return httpx.Client(
            base_url="http://localhost" if uds else self.address,
            transport=httpx.HTTPTransport(uds=uds),
            headers={"Authorization": f"Bearer {API_KEY}"},
            timeout=READY,
        )
