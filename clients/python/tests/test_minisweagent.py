"""The real mini-swe-agent, on a stub of a model and a real sandbox."""

from __future__ import annotations

import platform
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.models.litellm_model import LitellmModel
from stack import Stack
from stub_openai import StubOpenAi

from rollwright import ActionClient, InfrastructureFault, UserFault
from rollwright.actions import new_id
from rollwright.minisweagent import RollwrightEnvironment

pytestmark = pytest.mark.queue

TEMPLATES = get_config_from_spec("mini.yaml")


def agent(stub: StubOpenAi, env: RollwrightEnvironment, tmp_path: Path) -> DefaultAgent:
    """The agent as its own configuration has it, on the trajectory's URL of a gateway."""
    model = LitellmModel(
        **{key: value for key, value in TEMPLATES["model"].items() if key != "model_class"}
        | {
            "model_name": "openai/policy",
            "model_kwargs": {"api_base": f"{stub.url}/t/g.0/v1", "api_key": "job-key"},
            "cost_tracking": "ignore_errors",
        }
    )
    config = TEMPLATES["agent"]
    return DefaultAgent(
        model,
        env,
        system_template=config["system_template"],
        instance_template=config["instance_template"],
        output_path=tmp_path / "trajectory.json",
    )


def environment(stack: Stack, **config: Any) -> RollwrightEnvironment:
    """As `environment_class` selects it."""
    env = get_environment(
        {
            "environment_class": "rollwright.minisweagent.RollwrightEnvironment",
            "address": stack.address,
            "template": "box",
        }
        | config
    )
    assert isinstance(env, RollwrightEnvironment)
    return env


def test_a_real_agent_solves_its_task(stack: Stack, tmp_path: Path) -> None:
    script = [
        "echo 41 > answer; echo told >&2",
        "cat missing",
        "sleep 1000",
        "cd /none && pwd",
        "sed -i s/41/42/ answer",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
    ]
    with StubOpenAi(script) as stub, environment(stack, timeout=1, env={"PAGER": "cat"}) as env:
        mini = agent(stub, env, tmp_path)
        end = mini.run("Write the answer.")
        assert end == {"exit_status": "Submitted", "submission": "42\n"}
        assert [(path, key) for path, key, _ in stub.requests] == [
            ("/t/g.0/v1/chat/completions", "Bearer job-key")
        ] * len(script)
        told, missing, late, nowhere, edited = stub.observations()
    assert "told" in told
    assert "No such file" in missing
    assert "timed out after 1 seconds" in late
    assert "-1" in late
    assert "/none" in nowhere
    assert "-1" not in edited
    saved = (tmp_path / "trajectory.json").read_text()
    assert "rollwright.minisweagent.RollwrightEnvironment" in saved


def test_an_infrastructure_fault_is_no_observation(stack: Stack, tmp_path: Path) -> None:
    trajectory = new_id()
    with StubOpenAi(["echo begun", "sleep 1000", "unreached"]) as stub:
        env = environment(stack, trajectory_id=trajectory, timeout=600)

        def take_away() -> None:
            with ActionClient(stack.address) as client:
                while client.stats()["running"] == 0 or len(stub.requests) < 2:
                    time.sleep(0.05)
            label = f"label=rollwright.dev/trajectory={trajectory}"
            listed = ["docker", "ps", "-q", "--filter", label]
            ids = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
            subprocess.run(["docker", "rm", "-f", *ids], check=True, capture_output=True)

        thread = threading.Thread(target=take_away)
        thread.start()
        with pytest.raises(InfrastructureFault), env:
            agent(stub, env, tmp_path).run("Wait.")
        thread.join()
        assert len(stub.requests) == 2


def test_what_the_environment_tells(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED", "outside")
    config = {"cwd": "/home/agent", "env": {"B": "two"}, "forward_env": ["FORWARDED", "NOT_SET"]}
    with environment(stack, **config) as env:
        names = env.get_template_vars(extra=1)
        assert (names["system"], names["machine"], names["extra"]) == (
            "Linux",
            platform.machine(),
            1,
        )
        # The sandbox's name, not this machine's.
        assert names["node"] != platform.node()
        shown = env.execute({"command": "pwd; echo $FORWARDED $B; echo oops >&2; exit 7"})
        said = "/home/agent\noutside two\noops\n"
        assert shown == {"output": said, "returncode": 7, "exception_info": ""}
        assert env.execute({"command": "pwd"}, cwd="/workspace")["output"] == "/workspace\n"
        assert env.execute({"command": "kill -9 $$"})["returncode"] == -9
        nowhere = env.execute({"command": "pwd"}, cwd="/none")
        assert (nowhere["returncode"], nowhere["extra"]["exception_type"]) == (-1, "ActionFault")
        late = env.execute({"command": "echo begun; sleep 1000"}, timeout=0.5)
        assert (late["output"], late["returncode"]) == ("begun\n", -1)
        nul = env.execute({"command": "echo \0"})
        assert (nul["returncode"], nul["extra"]["exception_type"]) == (-1, "UserFault")
    with environment(stack, interpreter=["/bin/sh", "-ec"]) as env:
        assert env.execute({"command": "false; echo no"})["output"] == ""
    env.cleanup()
    with pytest.raises(UserFault):
        environment(stack, template="none")
