"""Groups, trajectories and generation on a real gateway."""

from __future__ import annotations

import threading
import time
from typing import Any

import anyio
import httpx
import openai
import pytest
from gateway import MODEL, Engine, Gateway, job
from openai.types.chat import ChatCompletionMessageParam
from programs import API_KEY

from rollwright import (
    AsyncRolloutClient,
    Cancelled,
    Group,
    InfrastructureFault,
    Rollout,
    RolloutClient,
    SampleGroup,
    UserFault,
)

pytestmark = [pytest.mark.gateway, pytest.mark.usefixtures("programs")]


def talk(*texts: str | None) -> list[ChatCompletionMessageParam]:
    """A conversation that the user begins."""
    return [
        {"role": "assistant", "content": text}
        if turn % 2
        else {"role": "user", "content": text or ""}
        for turn, text in enumerate(texts)
    ]


HELLO = "Grüße \u2028 💥"
ASK = talk(HELLO)


def agent(rollout: Rollout) -> openai.OpenAI:
    """The unchanged client at a trajectory's own URL."""
    return openai.OpenAI(base_url=rollout.openai_base_url, api_key=API_KEY, max_retries=0)


def play(rollout: Rollout, reward: float) -> None:
    """A rollout of one turn."""
    agent(rollout).chat.completions.create(model=MODEL, messages=ASK)
    rollout.complete(reward=reward)


def take_one(trainer: RolloutClient) -> SampleGroup:
    """The group of the next batch, which is acknowledged."""
    batch = trainer.take(wait=30)
    assert batch is not None
    trainer.ack(batch.id)
    (group,) = batch.groups
    return group


def test_a_group_settles_with_those_that_it_needs() -> None:
    with Gateway(job(redundancy={"environments": 1})) as gateway:
        trainer = gateway.client()
        payload = {"Grüße": ["💥", "\u2028", "\x00", 1e300, None], "long": "x" * 1_000_000}
        group = trainer.open_group(group_id="step-7/prompt.3", task="math", payload=payload)
        assert (group.state, group.needed, group.start, group.version) == ("open", 2, 3, 0)
        again = trainer.open_group(group_id="step-7/prompt.3", task="math", payload=payload)
        assert again == group
        with pytest.raises(UserFault) as other:
            trainer.open_group(group_id="step-7/prompt.3", task="math", rollouts=5)
        assert (other.value.reason, other.value.status) == ("GroupExists", 409)

        late, first, second = (trainer.rollout(member.id) for member in group.trajectories)
        play(first, -1.5)
        play(second, 0.0)
        settled = trainer.group(group.id, wait=30)
        assert settled.state == "settled"
        told = {member.id: (member.state, member.reward) for member in settled.trajectories}
        assert told == {
            late.trajectory_id: ("aborted", None),
            first.trajectory_id: ("settled", -1.5),
            second.trajectory_id: ("settled", 0.0),
        }
        with pytest.raises(Cancelled) as aborted, late:
            late.step(name="bash")
        assert (aborted.value.reason, aborted.value.status) == ("Aborted", 409)
        assert isinstance(late.look().fault, Cancelled)
        given = take_one(trainer)
        assert (given.id, given.task, given.payload) == (group.id, "math", payload)
        assert {sample.id for sample in given.trajectories} == {
            first.trajectory_id,
            second.trajectory_id,
        }


def test_turns_are_recorded_token_by_token(trainer: RolloutClient) -> None:
    group = trainer.open_group(rollouts=1)
    with trainer.rollout(group.trajectories[0].id) as rollout:
        model = agent(rollout)
        assert [served.id for served in model.models.list()] == [MODEL]
        first = model.chat.completions.create(model=MODEL, messages=ASK)
        said = first.choices[0].message.content or ""
        more = talk(HELLO, said, "Go on.")
        assert rollout.step(name="bäsh", seconds=0.5, observation_tokens=7).state == "running"
        pieces = model.chat.completions.create(model=MODEL, messages=more, stream=True)
        streamed = "".join(
            chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices
        )
        looked = rollout.look()
        assert (looked.state, looked.turns, looked.start_version) == ("running", 2, 0)
        # The answer comes when it is on disk, and then its group may have settled.
        assert rollout.complete(reward=1, metadata={"ü": "💥"}) in ("scored", "settled")
        # Again is fine, and changes nothing.
        assert rollout.complete(reward=0) in ("scored", "settled")

    (sample,) = take_one(trainer).trajectories
    assert (sample.reward, sample.metadata, sample.turns) == (1.0, {"ü": "💥"}, 2)
    length = len(sample.token_ids)
    assert len(sample.logprobs) == len(sample.loss_mask) == length
    assert [logprob is not None for logprob in sample.logprobs] == list(map(bool, sample.loss_mask))
    covered = [i for r in sample.versions for i in range(r.start, r.end)]
    assert covered == [i for i, bit in enumerate(sample.loss_mask) if bit]
    assert looked.generated_tokens == len(covered)
    assert looked.prompt_tokens == length - len(covered)
    # The simulator's tokens are bytes, with 256 and 257 around a message.
    texts = [
        bytes(t for t in sample.token_ids[r.start : r.end] if t < 256).decode()
        for r in sample.versions
    ]
    assert texts == [said, streamed]


def test_headers_name_the_trajectory_too(gateway: Gateway, trainer: RolloutClient) -> None:
    group = trainer.open_group(group_id="by/header", rollouts=1)
    (member,) = group.trajectories
    for header in ("X-Rollwright-Trajectory", "X-SMG-Routing-Key", "X-Session-ID"):
        model = openai.OpenAI(
            base_url=f"{gateway.address}/v1", api_key=API_KEY, default_headers={header: member.id}
        )
        turns = trainer.rollout(member.id).look().turns
        text = model.completions.create(model=MODEL, prompt="x", max_tokens=1).choices[0].text
        assert text
        # The same prompt again is the same turn again: its first answer may have been lost.
        assert trainer.rollout(member.id).look().turns == max(turns, 1)
    free = openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=API_KEY)
    assert free.chat.completions.create(model=MODEL, messages=ASK).choices
    assert trainer.rollout(member.id).look().turns == 1


def test_refusals_are_openais_own_exceptions(gateway: Gateway, trainer: RolloutClient) -> None:
    group = trainer.open_group(rollouts=1)
    rollout = trainer.rollout(group.trajectories[0].id)

    def refused(key: str = API_KEY, **request: Any) -> openai.APIStatusError:
        model = openai.OpenAI(base_url=rollout.openai_base_url, api_key=key, max_retries=0)
        with pytest.raises(openai.APIStatusError) as error:
            model.chat.completions.create(**{"model": MODEL, "messages": ASK} | request)
        return error.value

    assert isinstance(refused(key="wrong"), openai.AuthenticationError)
    assert isinstance(refused(key="key-of-another-job-0123456789"), openai.PermissionDeniedError)
    assert isinstance(refused(model="another"), openai.NotFoundError)
    assert isinstance(refused(n=2), openai.BadRequestError)
    agent(rollout).chat.completions.create(model=MODEL, messages=ASK)
    rewritten = refused(messages=[{"role": "user", "content": "another history"}])
    assert isinstance(rewritten, openai.ConflictError)
    rollout.abort("for this test")
    aborted = refused()
    assert (aborted.code, aborted.type) == ("Aborted", "cancelled")
    for wrong in ("\xfc", "a b", "x" * 200):
        with pytest.raises(UserFault) as fault:
            trainer.rollout(wrong).look()
        assert fault.value.status == 400
        with pytest.raises(UserFault) as fault:
            trainer.open_group(group_id=wrong)
        assert fault.value.status == 400
    with RolloutClient(gateway.address, api_key="wrong") as stranger:
        with pytest.raises(UserFault) as unknown:
            stranger.status()
        assert unknown.value.status == 401


def test_an_infrastructure_fault_is_replaced(trainer: RolloutClient) -> None:
    group = trainer.open_group()
    first, second = (trainer.rollout(member.id) for member in group.trajectories)
    with pytest.raises(InfrastructureFault), first:
        raise InfrastructureFault("SandboxLost", "the node is gone")
    replaced = trainer.group(group.id)
    assert [member.state for member in replaced.trajectories] == ["aborted", "running", "running"]
    fault = replaced.trajectories[0].fault
    assert isinstance(fault, InfrastructureFault)
    assert "the node is gone" in fault.message
    play(second, 1)
    play(trainer.rollout(replaced.trajectories[2].id), 0)
    assert trainer.group(group.id, wait=30).state == "settled"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_fault_is_no_fault_of_the_policy(
    gateway: Gateway, trainer: RolloutClient, stream: bool
) -> None:
    group = trainer.open_group(rollouts=1)
    fault = {"fault": "error_body", "times": 0, "path": "/v1/chat/completions"}
    gateway.engine.http.post("/sim/faults", json=fault)
    rollout = trainer.rollout(group.trajectories[0].id)
    with pytest.raises(openai.InternalServerError) as error, rollout:
        list(agent(rollout).chat.completions.create(model=MODEL, messages=ASK, stream=stream))
    assert error.value.type == "infrastructure"
    broken, replacement = trainer.group(group.id).trajectories
    assert isinstance(broken.fault, InfrastructureFault)
    gateway.engine.http.delete("/sim/faults")
    play(trainer.rollout(replacement.id), 1)
    assert [sample.id for sample in take_one(trainer).trajectories] == [replacement.id]


def test_a_stream_goes_on_where_the_engine_broke_off(
    gateway: Gateway, trainer: RolloutClient
) -> None:
    group = trainer.open_group(rollouts=1)
    fault = {"fault": "reset", "after_tokens": 3, "times": 2, "path": "/v1/chat/completions"}
    gateway.engine.http.post("/sim/faults", json=fault)
    with trainer.rollout(group.trajectories[0].id) as rollout:
        pieces = agent(rollout).chat.completions.create(
            model=MODEL, messages=ASK, stream=True, max_tokens=6, extra_body={"ignore_eos": True}
        )
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        rollout.complete(reward=1)
    (sample,) = take_one(trainer).trajectories
    made = [t for t, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
    assert len(made) == 6
    assert bytes(made).decode() == streamed


def test_too_few_are_left(trainer: RolloutClient) -> None:
    group = trainer.open_group()
    first, second = (trainer.rollout(member.id) for member in group.trajectories)
    with pytest.raises(RuntimeError), first:
        raise RuntimeError("a bug of the agent")
    ended = trainer.group(group.id, wait=30)
    assert ended.state == "aborted"
    with pytest.raises(Cancelled), second:
        second.step()
    # Its place is free.
    other = trainer.open_group(wait=0)
    trainer.abort_group(other.id)
    trainer.abort_group(other.id)
    assert trainer.group(other.id).state == "aborted"
    with pytest.raises(UserFault) as unknown:
        trainer.abort_group("none")
    assert unknown.value.status == 404


def test_turns_that_were_generated_elsewhere(trainer: RolloutClient) -> None:
    group = trainer.open_group(rollouts=1)
    with trainer.rollout(group.trajectories[0].id) as rollout:
        with pytest.raises(UserFault) as nothing:
            rollout.complete(reward=1)
        assert nothing.value.reason == "NothingGenerated"
        rollout.add_tokens([1, 2, 3], [7, 8], [-0.5, 0.0], version=0)
        rollout.add_tokens([1, 2, 3, 7, 8, 4], [9], [-2.25], version=0)
        with pytest.raises(UserFault) as rewritten:
            rollout.add_tokens([5], [9], [-1], version=0)
        assert rewritten.value.status == 409
        rollout.complete(reward=1)
    (sample,) = take_one(trainer).trajectories
    assert sample.token_ids == [1, 2, 3, 7, 8, 4, 9]
    assert sample.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert sample.logprobs == [None, None, None, -0.5, 0.0, None, -2.25]


def test_a_group_without_tokens_and_an_evaluation(trainer: RolloutClient) -> None:
    plain = trainer.open_group(rollouts=1, tokens="none")
    trainer.rollout(plain.trajectories[0].id).complete(reward=0.5)
    (sample,) = take_one(trainer).trajectories
    assert (sample.reward, sample.token_ids) == (0.5, [])
    group = trainer.open_group(evaluation=True, version=0, rollouts=1)
    assert group.evaluation
    play(trainer.rollout(group.trajectories[0].id), 0.75)
    ended = trainer.group(group.id, wait=30)
    assert (ended.state, ended.trajectories[0].reward) == ("settled", 0.75)
    assert trainer.take(wait=0) is None
    with pytest.raises(UserFault) as gone:
        trainer.open_group(evaluation=True, version=7)
    assert gone.value.status == 404


def test_back_pressure(trainer: RolloutClient) -> None:
    # Two batches of one group: of the current version, and of the next.
    groups = [trainer.open_group(), trainer.open_group()]
    with pytest.raises(InfrastructureFault) as full:
        trainer.open_group(wait=0)
    assert (full.value.reason, full.value.status) == ("BufferFull", 429)
    assert full.value.retry_after is not None
    for member in groups[0].trajectories:
        play(trainer.rollout(member.id), 1)
    opened: list[Group] = []
    waiting = threading.Thread(target=lambda: opened.append(trainer.open_group(wait=60)))
    waiting.start()
    assert take_one(trainer).id == groups[0].id
    waiting.join(60)
    assert [group.state for group in opened] == ["open"]


def test_a_stream_that_its_reader_leaves() -> None:
    engine = Engine("--step-ms", "20", "--mean-tokens", "0")
    with Gateway(engine=engine) as gateway:
        trainer = gateway.client()
        group = trainer.open_group(rollouts=1)
        with trainer.rollout(group.trajectories[0].id) as rollout:
            model = agent(rollout)
            for _ in range(3):
                with model.chat.completions.create(
                    model=MODEL, messages=ASK, stream=True, max_tokens=5000
                ) as stream:
                    next(iter(stream))
                until(lambda: engine.sim("state")["running"] == 0)
            answer = model.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5)
            assert answer.usage is not None
            looked = rollout.look()
            assert (looked.turns, looked.generated_tokens) == (1, 5)
            rollout.complete(reward=1)
        (sample,) = take_one(trainer).trajectories
        assert (sum(sample.loss_mask), sample.finish) == (5, "length")


def test_a_unix_socket_needs_no_key() -> None:
    with Gateway(unix=True) as gateway:
        trainer = gateway.client()
        group = trainer.open_group(rollouts=1)
        rollout = trainer.rollout(group.trajectories[0].id)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(gateway.socket))) as http:
            model = openai.OpenAI(
                base_url="http://localhost/v1",
                api_key="none",
                http_client=http,
                default_headers={"X-Rollwright-Trajectory": rollout.trajectory_id},
            )
            model.chat.completions.create(model=MODEL, messages=ASK)
        rollout.complete(reward=1)
        assert len(take_one(trainer).trajectories) == 1


def test_sglangs_own_interface() -> None:
    with Gateway(job("SGLang"), engine=Engine("--dialect", "sglang")) as gateway:
        trainer = gateway.client()
        group = trainer.open_group(rollouts=1)
        rollout = trainer.rollout(group.trajectories[0].id)
        with gateway.http() as http:
            body: dict[str, Any] = {
                "input_ids": [104, 105],
                "sampling_params": {"max_new_tokens": 4},
            }
            answer = http.post(f"/t/{rollout.trajectory_id}/generate", json=body)
            made = answer.json()["output_ids"]
            body |= {"input_ids": [104, 105, *made, 33], "stream": True}
            streamed = http.post(f"/t/{rollout.trajectory_id}/generate", json=body).text
            assert streamed.rstrip().endswith("data: [DONE]")
        rollout.complete(reward=1)
        (sample,) = take_one(trainer).trajectories
        assert sample.turns == 2
        assert list(sample.token_ids[:7]) == [104, 105, *made, 33]


@pytest.mark.anyio
async def test_two_hundred_trajectories_at_once() -> None:
    with Gateway(job(batchGroups=50)) as gateway:
        taken: list[str] = []
        opened: list[str] = []
        async with (
            AsyncRolloutClient(gateway.address, api_key=API_KEY) as client,
            openai.AsyncOpenAI(
                base_url=gateway.address, api_key=API_KEY, max_retries=0, timeout=60
            ) as models,
        ):

            async def rolled_out(trajectory: str, index: int) -> None:
                async with client.rollout(trajectory) as rollout:
                    model = models.with_options(base_url=rollout.openai_base_url)
                    said = await model.chat.completions.create(
                        model=MODEL, messages=ASK, max_tokens=5
                    )
                    more = talk(HELLO, said.choices[0].message.content, str(index))
                    pieces = await model.chat.completions.create(
                        model=MODEL, messages=more, stream=True, max_tokens=5
                    )
                    async for _ in pieces:
                        pass
                    await rollout.step(name="tool", seconds=0.01)
                    await rollout.complete(reward=index)

            async def group(number: int) -> None:
                group = await client.open_group(group_id=f"g/{number}", payload=number)
                opened.extend(member.id for member in group.trajectories)
                async with anyio.create_task_group() as both:
                    for index, member in enumerate(group.trajectories):
                        both.start_soon(rolled_out, member.id, index)

            async with anyio.create_task_group() as all_groups:
                for number in range(100):
                    all_groups.start_soon(group, number)
            async for batch in client.batches(groups=25, limit=4):
                for settled in batch.groups:
                    assert settled.id == f"g/{settled.payload}"
                    assert [sample.turns for sample in settled.trajectories] == [2, 2]
                    taken += [sample.id for sample in settled.trajectories]
            assert sorted(taken) == sorted(opened)
            assert len(set(taken)) == 200
            status = await client.status()
            assert status["trajectories"] == {"running": 0, "scoring": 0}
            assert status["buffer"]["groups"] == 0


def until(true: Any, seconds: float = 30.0) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)
