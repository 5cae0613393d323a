"""The real mini-swe-agent, unchanged, on a real gateway and in a real sandbox."""

from __future__ import annotations

import json
import platform
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway import MODEL, Engine
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.models.litellm_model import LitellmModel
from programs import API_KEY, built, skip
from stack import Stack

from rollwright import (
    ActionClient,
    Cancelled,
    InfrastructureFault,
    Rollout,
    RolloutClient,
    UserFault,
)
from rollwright.minisweagent import RollwrightEnvironment

pytestmark = pytest.mark.queue

TEMPLATES = get_config_from_spec("mini.yaml")


@contextmanager
def scripted(*scripts: Sequence[str]) -> Iterator[tuple[Stack, Engine]]:
    """Queue, agent and gateway before an engine that issues commands; each task has its own."""
    if built("engine-sim") is None:
        skip("no `engine-sim`: make build")
    script: list[dict[str, Any]] = [
        {
            "contains": f"Task {number}.",
            "turn": turn,
            "text": "I run it.",
            "tool_call": {"name": "bash", "arguments": {"command": command}},
        }
        for number, commands in enumerate(scripts)
        for turn, command in enumerate(commands)
    ]
    engine = Engine(script=script)
    try:
        stack = Stack(engine=engine.url)
        try:
            yield stack, engine
        finally:
            stack.stop()
    finally:
        engine.stop()


def agent(rollout: Rollout, env: RollwrightEnvironment, saved: Path) -> DefaultAgent:
    """The agent as its own configuration has it, on the trajectory's URL of the gateway."""
    model = LitellmModel(
        **{key: value for key, value in TEMPLATES["model"].items() if key != "model_class"}
        | {
            "model_name": f"openai/{MODEL}",
            "model_kwargs": {
                "api_base": rollout.openai_base_url,
                "api_key": API_KEY,
                "max_retries": 0,
            },
            "cost_tracking": "ignore_errors",
        }
    )
    config = TEMPLATES["agent"]
    return DefaultAgent(
        model,
        env,
        system_template=config["system_template"],
        instance_template=config["instance_template"],
        output_path=saved,
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


def test_a_real_agent_solves_its_task(tmp_path: Path) -> None:
    solves = [
        "echo 41 > answer; echo told >&2",
        "cat missing",
        "sleep 1000",
        "cd /none && pwd",
        "sed -i s/41/42/ answer; echo 'Grüße 💥'",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
    ]
    fails = ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 7"]
    with (
        scripted(solves, fails) as (stack, _),
        RolloutClient(stack.gateway, api_key=API_KEY) as trainer,
    ):
        group = trainer.open_group(payload={"answer": "42"})
        observations: list[str] = []
        for number, member in enumerate(group.trajectories):
            saved = tmp_path / f"{number}.json"
            with trainer.rollout(member.id) as rollout:
                limits = {"timeout": 1, "env": {"PAGER": "cat"}}
                with environment(stack, trajectory_id=member.id, **limits) as env:
                    mini = agent(rollout, env, saved)
                    end = mini.run(f"Task {number}.")
                assert end["exit_status"] == "Submitted"
                reward = float(end["submission"] == "42\n")
                rollout.complete(reward=reward, metadata={"submission": end["submission"]})
            observations += [m["content"] for m in mini.messages if m["role"] == "tool"]
            assert "rollwright.minisweagent.RollwrightEnvironment" in saved.read_text()
        batch = trainer.take(wait=30)
        assert batch is not None
        trainer.ack(batch.id)

    told, missing, late, nowhere, edited = observations
    assert "told" in told
    assert "No such file" in missing
    assert "timed out after 1 seconds" in late
    assert "-1" in late
    assert "/none" in nowhere
    assert json.loads(edited)["output"] == "Grüße 💥\n"

    (settled,) = batch.groups
    assert settled.payload == {"answer": "42"}
    solved, failed = settled.trajectories
    assert (solved.reward, solved.turns, solved.metadata) == (1.0, 6, {"submission": "42\n"})
    assert (failed.reward, failed.turns, failed.metadata) == (0.0, 1, {"submission": "7\n"})
    # The simulator's tokens are bytes: what the policy said, and it alone, is trained on.
    stretches = [
        bytes(token for token in solved.token_ids[r.start : r.end] if token < 256).decode()
        for r in solved.versions
    ]
    assert len(stretches) == len(solves)
    for stretch, command in zip(stretches, solves, strict=True):
        assert "I run it." in stretch
        assert json.dumps(command) in stretch or command in stretch
    context = bytes(token for token in solved.token_ids if token < 256).decode()
    assert context.count("timed out after 1 seconds") == 1
    assert sum(solved.loss_mask) == sum(r.end - r.start for r in solved.versions)
    assert all(
        (logprob is not None) == bool(bit)
        for logprob, bit in zip(solved.logprobs, solved.loss_mask, strict=True)
    )


def test_an_infrastructure_fault_is_replaced_and_no_observation(tmp_path: Path) -> None:
    with (
        scripted(["echo begun", "sleep 1000", "unreached"]) as (stack, engine),
        RolloutClient(stack.gateway, api_key=API_KEY) as trainer,
    ):
        group = trainer.open_group(rollouts=1)
        (member,) = group.trajectories

        def take_away() -> None:
            with ActionClient(stack.address) as client:
                while client.stats()["running"] == 0 or trainer_turns() < 2:
                    time.sleep(0.05)
            label = f"label=rollwright.dev/trajectory={member.id}"
            listed = ["docker", "ps", "-q", "--filter", label]
            ids = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
            subprocess.run(["docker", "rm", "-f", *ids], check=True, capture_output=True)

        def trainer_turns() -> int:
            return trainer.rollout(member.id).look().turns

        thread = threading.Thread(target=take_away)
        thread.start()
        with (
            pytest.raises(InfrastructureFault),
            trainer.rollout(member.id) as rollout,
            environment(stack, trajectory_id=member.id, timeout=600) as env,
        ):
            agent(rollout, env, tmp_path / "trajectory.json").run("Task 0.")
        thread.join()
        assert len(engine.sim("requests")["requests"]) == 2
        ended = trainer.group(group.id)
        assert [member.state for member in ended.trajectories] == ["aborted", "running"]
        assert isinstance(ended.trajectories[0].fault, InfrastructureFault)


def test_an_engines_fault_reaches_the_gateway_through_the_agent(tmp_path: Path) -> None:
    with (
        scripted(["echo begun"]) as (stack, engine),
        RolloutClient(stack.gateway, api_key=API_KEY) as trainer,
    ):
        group = trainer.open_group(rollouts=1)
        (member,) = group.trajectories
        fault = {"fault": "server_error", "times": 0, "path": "/v1/chat/completions"}
        engine.http.post("/sim/faults", json=fault)
        with (
            pytest.raises(openai.APIStatusError),
            trainer.rollout(member.id) as rollout,
            environment(stack, trajectory_id=member.id) as env,
        ):
            agent(rollout, env, tmp_path / "trajectory.json").run("Task 0.")
        ended = trainer.group(group.id)
        assert [member.state for member in ended.trajectories] == ["aborted", "running"]


def test_an_abort_ends_the_sandbox_and_the_agent(tmp_path: Path) -> None:
    with (
        scripted(["sleep 1000", "unreached"]) as (stack, _),
        RolloutClient(stack.gateway, api_key=API_KEY) as trainer,
    ):
        group = trainer.open_group()
        member = group.trajectories[0]

        def give_up() -> None:
            with ActionClient(stack.address) as client:
                while client.stats()["running"] == 0:
                    time.sleep(0.05)
            trainer.abort_group(group.id)

        thread = threading.Thread(target=give_up)
        thread.start()
        with (
            pytest.raises(Cancelled),
            trainer.rollout(member.id) as rollout,
            environment(stack, trajectory_id=member.id, timeout=600) as env,
        ):
            agent(rollout, env, tmp_path / "trajectory.json").run("Task 0.")
        thread.join()


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
