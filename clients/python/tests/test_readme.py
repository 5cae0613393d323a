"""The examples of the README."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gateway import Engine, Gateway, job
from programs import API_KEY
from stack import Stack

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SOURCE = {name: str(ROOT / "src") for name in ("PYTHONPATH", "MYPYPATH")}


def test_every_example_is_python() -> None:
    assert len(BLOCKS) == 6
    for block in BLOCKS:
        ast.parse(block)


def test_the_examples_of_the_clients_have_its_types(tmp_path: Path) -> None:
    ours = [block for block in BLOCKS if "verl" not in block and "slime" not in block]
    paths = [tmp_path / f"example_{number}.py" for number in range(len(ours))]
    for path, block in zip(paths, ours, strict=True):
        path.write_text(block)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path),
        *map(str, paths),
    ]
    checked = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | SOURCE, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.queue
def test_the_first_example_runs(stack: Stack, tmp_path: Path) -> None:
    block = BLOCKS[0].replace("unix:/run/rollwright/queue.sock", stack.address)
    path = tmp_path / "example.py"
    path.write_text(block)
    command = [sys.executable, str(path)]
    run = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | SOURCE, check=True
    )
    shown = run.stdout.splitlines()
    assert shown[0] == "0 42"
    assert "0.2 units" in shown[1]
    assert shown[2].startswith("ActionTimeout")


@pytest.mark.gateway
@pytest.mark.usefixtures("programs")
def test_the_trainer_runs(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if "ThreadPoolExecutor" in block]
    path = tmp_path / "trainer.py"
    path.write_text(block)
    with Gateway(job(groupSize=4, batchGroups=4), engine=Engine("--mean-tokens", "8")) as gateway:
        env = os.environ | SOURCE | {"GATEWAY": gateway.address, "GATEWAY_KEY": API_KEY}
        run = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            env=env | {"WEIGHTS": str(tmp_path)},
            check=False,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        shown = run.stdout.splitlines()
        assert [line.split(",")[0] for line in shown[:-1:2]] == [
            f"batch {number}: 16 samples" for number in (1, 2, 3)
        ], run.stdout
        assert [line.split(",")[0] for line in shown[1:-1:2]] == [
            f"  version {number} on 1 engines" for number in (1, 2, 3)
        ]
        assert gateway.client().weights()["version"] == 3
