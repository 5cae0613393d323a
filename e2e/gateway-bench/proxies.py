"""The engines that are served, and the proxies before them, each with its configuration.

Every proxy keeps the requests of a trajectory on one engine, by the header it knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processes import Process, free_port

CHAT = "/v1/chat/completions"
ENGINES = 4
# Between two tokens of a stream.
INTERVAL_MS = 400
KEY = "bench-key-0123456789abcdef"
MODEL = "engine-sim"
SLOTS = 16_384
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@dataclass
class Target:
    """Something that answers chats at a port."""

    name: str
    port: int
    process: Process
    header: str = "X-Session-ID"
    authorization: str = ""

    def headers(self) -> dict[str, str]:
        """Those that name a trajectory and a caller."""
        named = {self.header: "bench-0"}
        return named | ({"Authorization": self.authorization} if self.authorization else {})

    def ready(self) -> Target:
        """Waits until it answers a chat."""
        self.process.wait_for(self.port, CHAT, self.headers(), ASK)
        return self


@dataclass
class Place:
    """Where things are for one run."""

    dir: Path
    engines: list[int]
    rollwright: Path
    routers: Path
    programs: Path
    files: int

    def urls(self) -> list[str]:
        """The engines' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.engines]

    def scratch(self, name: str) -> Path:
        """A directory for one proxy."""
        path = self.dir / name
        path.mkdir(parents=True, exist_ok=True)
        return path


def start_engines(place: Place, tokens: int) -> Process:
    """One cheap engine-like process on every engine's port; its streams have so many tokens."""
    command = [place.programs / "engine", tokens, INTERVAL_MS, *place.engines]
    return Process("engines", command, place.scratch("engines"))


def start_nginx(place: Place) -> Target:
    """nginx, one worker, a consistent hash, bodies and replies passed on as they come."""
    port, scratch = free_port(), place.scratch("nginx")
    servers = "".join(f"    server 127.0.0.1:{engine} max_fails=0;\n" for engine in place.engines)
    paths = "".join(
        f"  {kind}_temp_path {scratch}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (scratch / "nginx.conf").write_text(f"""
worker_processes 1;
worker_rlimit_nofile {place.files};
daemon off;
pid {scratch}/pid;
events {{ worker_connections {place.files}; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  client_max_body_size 0;
{paths}
  upstream engines {{
    hash $http_x_session_id consistent;
{servers}
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_request_buffering off;
      proxy_buffering off;
    }}
  }}
}}
""")
    command = ["nginx", "-e", scratch / "error.log", "-c", scratch / "nginx.conf"]
    return Target("nginx", port, Process("nginx", command, scratch))


def start_haproxy(place: Place) -> Target:
    """haproxy, one thread, a consistent hash."""
    port, scratch = free_port(), place.scratch("haproxy")
    servers = "".join(f"  server e{i} 127.0.0.1:{at}\n" for i, at in enumerate(place.engines))
    (scratch / "haproxy.cfg").write_text(f"""
global
  nbthread 1
  maxconn {(place.files - 60) // 2}
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  http-reuse always
frontend callers
  bind 127.0.0.1:{port} backlog 4096
  default_backend engines
backend engines
  balance hdr(X-Session-ID)
  hash-type consistent
{servers}""")
    command = ["haproxy", "-db", "-f", scratch / "haproxy.cfg"]
    return Target("haproxy", port, Process("haproxy", command, scratch))


def start_sglang_router(place: Place) -> Target:
    """sglang-router with its policy for routing keys."""
    port, scratch = free_port(), place.scratch("sglang-router")
    command = [place.routers / "bin/sglang-router", "launch", "--host", "127.0.0.1"]
    command += ["--port", port, "--policy", "manual", "--assignment-mode", "min_group"]
    command += ["--log-level", "warn", "--prometheus-host", "127.0.0.1"]
    command += ["--prometheus-port", free_port(), "--shutdown-grace-period-secs", 1]
    command += ["--worker-startup-check-interval", 1, "--worker-urls", *place.urls()]
    process = Process("sglang-router", command, scratch)
    return Target("sglang-router", port, process, header="X-SMG-Routing-Key")


def start_vllm_router(place: Place) -> Target:
    """vllm-router with its policy for sessions."""
    port, scratch = free_port(), place.scratch("vllm-router")
    command = [place.routers / "bin/vllm-router", "--host", "127.0.0.1", "--port", port]
    command += ["--policy", "consistent_hash", "--log-level", "warning"]
    command += ["--prometheus-port", free_port(), "--worker-startup-check-interval", 1]
    command += ["--worker-urls", *place.urls()]
    return Target("vllm-router", port, Process("vllm-router", command, scratch))


def start_rollwright(place: Place) -> Target:
    """The gateway, with an API key."""
    return start_build(place, "rollwright", place.rollwright)


def start_build(place: Place, name: str, program: Path) -> Target:
    """Any build of the gateway."""
    port, scratch = free_port(), place.scratch(name)
    pool = {
        "gpu": {
            "class": "local",
            "profile": {"tflops": 1, "hbm": "1Gi", "hbmTbps": 1},
            "gpusPerNode": ENGINES,
        }
    }
    group = {"pool": "gpus", "degree": 1, "workers": ENGINES}
    job = {
        "model": {"path": MODEL},
        "engine": {"type": "vLLM", "image": MODEL},
        "allocation": {"fixed": {"groups": [group]}},
        "rollout": {"groupSize": 2, "batchGroups": 1},
    }
    manifests = scratch / "manifests"
    manifests.mkdir(exist_ok=True)
    documents = [
        _manifest("RolloutJob", {"name": "bench", "namespace": "default"}, job),
        _manifest("ResourcePool", {"name": "gpus"}, pool),
    ]
    # JSON is YAML.
    (manifests / "job.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    (scratch / "keys").write_text(f"bench:{KEY}\n")
    command: list[object] = [program, "gateway", "-f", manifests]
    for url in place.urls():
        command += ["--engine", f"{url},class=local,slots={SLOTS}"]
    command += ["--listen", f"127.0.0.1:{port}", "--api-keys", scratch / "keys"]
    command += ["--state-dir", scratch / "state", "--metrics-addr", "127.0.0.1:0"]
    process = Process(name, command, scratch)
    return Target(name, port, process, "X-Rollwright-Trajectory", f"Bearer {KEY}")


def _manifest(kind: str, metadata: object, spec: object) -> dict[str, object]:
    version = "rollwright.dev/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


STARTS: dict[str, Callable[[Place], Target]] = {
    "nginx": start_nginx,
    "haproxy": start_haproxy,
    "sglang-router": start_sglang_router,
    "vllm-router": start_vllm_router,
    "rollwright": start_rollwright,
}
