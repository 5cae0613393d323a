"""Batches, weights and events on a real gateway."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path

import openai
import pytest
from cutting_proxy import CuttingProxy
from gateway import MODEL, Engine, Gateway, job
from programs import API_KEY
from test_gateway import ASK, HELLO, agent, play, take_one, talk, until

from rollwright import (
    Batch,
    Event,
    EventsMissed,
    GroupSettled,
    InfrastructureFault,
    RolloutClient,
    Stale,
    Status,
    TrajectoryAborted,
    TrajectoryStarted,
    UserFault,
    VersionChanged,
)

pytestmark = [pytest.mark.gateway, pytest.mark.usefixtures("programs")]


def settle(trainer: RolloutClient, name: str) -> None:
    """A group of two, rolled out."""
    group = trainer.open_group(group_id=name, payload={"name": name})
    for reward, member in enumerate(group.trajectories):
        play(trainer.rollout(member.id), reward)


def weights(directory: Path, version: int) -> str:
    """Weights as the simulator reads them."""
    path = directory / f"weights-{version}"
    path.mkdir()
    (path / "version.json").write_text(json.dumps({"version": version}))
    return str(path)


def content(batch: Batch | None) -> tuple[object, ...]:
    """All but how long a taker waited."""
    assert batch is not None
    return batch.id, batch.version, batch.groups


def test_a_batch_is_given_until_it_is_acknowledged(gateway: Gateway) -> None:
    trainer, another = gateway.client(), gateway.client()
    assert trainer.take(wait=0) is None
    settle(trainer, "a")
    settle(trainer, "b")
    seen: list[Batch] = []
    with pytest.raises(RuntimeError):
        for batch in trainer.batches():
            seen.append(batch)
            raise RuntimeError
    for batch in trainer.batches():
        seen.append(batch)
        break
    asked_for_more = another.take(groups=2, wait=30)
    assert asked_for_more is not None
    assert [content(batch) for batch in [*seen, asked_for_more]] == [content(seen[0])] * 3
    payloads = [group.payload for batch in another.batches(limit=2) for group in batch.groups]
    assert payloads == [{"name": "a"}, {"name": "b"}]
    assert trainer.take(wait=0) is None
    trainer.ack(seen[0].id)
    with pytest.raises(UserFault) as unknown:
        trainer.ack(99)
    assert (unknown.value.reason, unknown.value.status) == ("UnknownBatch", 404)
    status = trainer.status()
    assert (status["batches"]["taken"], status["batches"]["acknowledged"]) == (2, 2)


def test_what_is_scored_outlives_the_gateway(gateway: Gateway) -> None:
    trainer = gateway.client()
    settle(trainer, "a")
    settle(trainer, "b")
    taken = trainer.take(wait=30)
    gateway.kill()
    again: list[Batch | None] = []
    # The client waits for a gateway that is away.
    waiting = threading.Thread(target=lambda: again.append(trainer.take(wait=30)))
    waiting.start()
    gateway.start()
    waiting.join(60)
    assert [content(batch) for batch in again] == [content(taken)]
    assert taken is not None
    trainer.ack(taken.id)
    gateway.kill()
    gateway.start()
    trainer.ack(taken.id)
    (left,) = trainer.batches(limit=1)
    assert left.id != taken.id
    assert [group.id for group in left.groups] == ["b"]
    gateway.kill()
    gateway.start()
    assert trainer.take(wait=0) is None


def test_a_taker_that_waits_does_not_hold_up_the_end(gateway: Gateway) -> None:
    taken: list[Batch | None] = []
    patient = gateway.client()
    waiting = threading.Thread(target=lambda: taken.append(patient.take(wait=600)))
    waiting.start()
    with gateway.http() as http:
        until(lambda: http.get("/rollout/v1/status").is_success)
    again = gateway.client()
    gateway.end()
    gateway.start()
    settle(again, "a")
    waiting.join(60)
    (batch,) = taken
    assert batch is not None
    assert batch.groups[0].id == "a"


def test_weights_from_disk_in_the_middle_of_a_trajectory(
    gateway: Gateway, trainer: RolloutClient, tmp_path: Path
) -> None:
    group = trainer.open_group(rollouts=1)
    with pytest.raises(Stale) as stale, trainer.rollout(group.trajectories[0].id) as rollout:
        play_turn = agent(rollout).chat.completions.create
        first = play_turn(model=MODEL, messages=ASK)
        with trainer.update_weights(1, path=str(tmp_path / "weights-1")) as update:
            assert update.begun is not None
            assert [worker.url for worker in update.begun.workers] == [gateway.engine.url]
            assert trainer.weights().get("begun") == 1
            weights(tmp_path, 1)
        assert update.committed is not None
        assert (update.committed.version, update.committed.workers) == (1, 1)
        assert rollout.step().version == 1
        play_turn(model=MODEL, messages=talk(HELLO, first.choices[0].message.content, "Go on."))
        looked = rollout.look()
        assert (looked.start_version, looked.oldest_version) == (0, 0)
        with trainer.update_weights(2, path=weights(tmp_path, 2)):
            pass
        rollout.step()
    assert (stale.value.reason, stale.value.status) == ("Aborted", 409)
    assert isinstance(rollout.look().fault, Stale)
    told = trainer.weights()
    assert (told["version"], [worker["version"] for worker in told["workers"]]) == (2, [2])
    with pytest.raises(UserFault) as older, trainer.update_weights(2):
        pytest.fail("it has not begun")
    assert older.value.status == 409


def test_each_token_has_its_version(tmp_path: Path) -> None:
    with Gateway(job(stalenessBound=4), engine=Engine("--mean-tokens", "8")) as gateway:
        trainer = gateway.client()
        group = trainer.open_group(rollouts=1)
        with trainer.rollout(group.trajectories[0].id) as rollout:
            model = agent(rollout)
            said: list[str | None] = [HELLO]
            for version in (1, 2, 3):
                answer = model.chat.completions.create(model=MODEL, messages=talk(*said))
                said += [answer.choices[0].message.content, "Go on."]
                with trainer.update_weights(version, path=weights(tmp_path, version)):
                    pass
            rollout.complete(reward=1)
        (sample,) = take_one(trainer).trajectories
        assert (sample.start_version, sample.oldest_version) == (0, 0)
        assert [r.version for r in sample.versions] == [0, 1, 2]
        # The simulator's log-probs are minus the version that made them, and a fraction.
        for stretch in sample.versions:
            made = [sample.logprobs[i] for i in range(stretch.start, stretch.end)]
            assert all(p is not None and 0 <= -stretch.version - p <= 0.5 for p in made)


def test_weights_from_the_store(trainer: RolloutClient) -> None:
    data = bytes(range(256)) * 20_000
    with trainer.update_weights(1, transfer="store", deadline=60) as update:
        update.push_bucket("model-0.safetensors", memoryview(data).cast("H"))
        update.push_bucket("model-0.safetensors", data)
        update.push_bucket("model-1.safetensors", b"")
        with pytest.raises(UserFault) as changed:
            update.push_bucket("model-0.safetensors", b"other")
        assert (changed.value.reason, changed.value.status) == ("BucketConflict", 409)
        for name in ("..", "a/b", "\xfc"):
            with pytest.raises(UserFault) as wrong:
                update.push_bucket(name, b"x")
            assert wrong.value.reason == "InvalidBucketName"
    assert update.committed is not None
    assert update.committed.push_seconds > 0
    assert trainer.weights()["version"] == 1
    assert trainer.weights()["workers"][0]["version"] == 1


def test_weights_that_the_trainer_moves(gateway: Gateway, trainer: RolloutClient) -> None:
    engine = gateway.engine.http
    with trainer.update_weights(5, transfer="external") as update:
        assert engine.get("/is_paused").json()["is_paused"]
        for path, body in (
            ("/init_weight_transfer_engine", {"init_info": {}}),
            ("/start_weight_update", {"is_checkpoint_format": True}),
            ("/update_weights", {"update_info": {}}),
            ("/finish_weight_update", {"weight_version": "5"}),
        ):
            answer = engine.post(path, json=body)
            assert answer.is_success, f"{path}: {answer.text}"
    assert update.committed is not None
    assert update.committed.exposed_seconds > 0
    assert not engine.get("/is_paused").json()["is_paused"]
    assert trainer.weights()["version"] == 5


def test_updates_that_come_to_nothing(trainer: RolloutClient) -> None:
    with pytest.raises(RuntimeError), trainer.update_weights(1):
        raise RuntimeError
    assert "begun" not in trainer.weights()
    with pytest.raises(Stale) as late, trainer.update_weights(1, deadline=0.1) as update:
        until(lambda: "begun" not in trainer.weights())
    assert (late.value.reason, late.value.status) == ("UpdateExpired", 409)
    assert update.committed is None
    update = trainer.update_weights(1, path="/no/such/weights")
    with pytest.raises(InfrastructureFault) as nowhere, update:
        assert trainer.weights().get("begun") == 1
    assert nowhere.value.reason == "UpdateFailed"
    assert trainer.weights()["version"] == 0
    # The engine comes back with what it had.
    until(lambda: trainer.status()["workers"][0]["state"] == "ready")
    group = trainer.open_group(rollouts=1)
    play(trainer.rollout(group.trajectories[0].id), 1)
    assert len(take_one(trainer).trajectories) == 1


class Watched:
    """Events that a thread reads."""

    def __init__(self, client: RolloutClient, trainer: RolloutClient) -> None:
        """Subscribes: a group is aborted until an event tells of one."""
        self.told: list[Event] = []
        self._client = client
        self._trainer = trainer
        self._over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        until(lambda: self._provoked() and bool(self.told))

    def _provoked(self) -> bool:
        self._trainer.abort_group(self._trainer.open_group().id)
        return True

    def _read(self) -> None:
        with closing(self._client.events()) as events:
            for event in events:
                self.told.append(event)
                if self._over:
                    return

    def until(self, wanted: Event) -> None:
        """Waits for an event."""
        until(lambda: wanted in list(self.told))

    def close(self) -> None:
        """Ends it by a last event."""
        self._over = True
        until(lambda: self._provoked() and not self._thread.is_alive())
        self._thread.join()

    def of(self, *groups: str) -> list[Event]:
        """What is told of these groups."""
        return [event for event in self.told if getattr(event, "group", None) in groups]


def test_events_tell_what_happens(tmp_path: Path) -> None:
    with Gateway(job(redundancy={"environments": 1})) as gateway:
        trainer = gateway.client()
        events = Watched(gateway.client(), trainer)
        group = trainer.open_group(group_id="g/1")
        first, second, third = (trainer.rollout(member.id) for member in group.trajectories)
        first.abort("the browser crashed", infrastructure=True)
        play(second, 1)
        play(third, 0)
        with trainer.update_weights(1, path=weights(tmp_path, 1)):
            pass
        events.until(VersionChanged(1))
        events.close()
    crashed, started, *ends = events.of("g/1")
    assert isinstance(crashed, TrajectoryAborted)
    assert crashed.trajectory == first.trajectory_id
    assert "the browser crashed" in crashed.reason
    assert isinstance(started, TrajectoryStarted)
    (settled,) = [event for event in ends if isinstance(event, GroupSettled)]
    assert set(settled.kept) == {second.trajectory_id, third.trajectory_id}
    (late,) = [event for event in ends if isinstance(event, TrajectoryAborted)]
    assert late.trajectory == started.trajectory
    assert EventsMissed() not in events.told


def test_events_resume_where_they_were_cut(tmp_path: Path) -> None:
    with Gateway(unix=True) as gateway:
        trainer = gateway.client()
        names = [f"g{number}" for number in range(6)]
        with (
            CuttingProxy(tmp_path / "p", str(gateway.socket), cuts=0) as proxy,
            RolloutClient(proxy.address) as watcher,
        ):
            events = Watched(watcher, trainer)
            for number, name in enumerate(names):
                trainer.open_group(group_id=name)
                proxy.sever()
                # While nobody listens.
                trainer.rollout(f"{name}.0").abort("for this test")
                until(lambda number=number: proxy.connections >= number + 2)
            events.until(TrajectoryAborted("g5.0", "g5", "for this test"))
            until(lambda: len(events.of(*names)) == 2 * len(names))
            events.close()
        told = [getattr(event, "trajectory", None) for event in events.of(*names)]
        assert told == [f"{name}.{index}" for name in names for index in (0, 1)]
        assert EventsMissed() not in events.told


def test_a_gateway_that_was_killed_has_forgotten_its_events(gateway: Gateway) -> None:
    trainer = gateway.client()
    events = Watched(gateway.client(), trainer)
    gateway.kill()
    gateway.start()
    events.until(EventsMissed())
    trainer.open_group(group_id="after")
    trainer.rollout("after.0").abort("for this test")
    events.until(TrajectoryAborted("after.0", "after", "for this test"))
    events.close()


def test_the_status_has_all_that_its_type_names(gateway: Gateway, trainer: RolloutClient) -> None:
    status = trainer.status()
    assert status.keys() == Status.__annotations__.keys()
    assert (status["job"], status["version"]) == ("py", 0)
    (worker,) = status["workers"]
    assert (worker["url"], worker["state"]) == (gateway.engine.url, "ready")
    assert (worker["slots"], worker["class"]) == (64, "default")


def test_a_commit_is_a_pause_in_a_stream(tmp_path: Path) -> None:
    engine = Engine("--step-ms", "10", "--mean-tokens", "0")
    with Gateway(job(stalenessBound=4), engine=engine) as gateway:
        trainer = gateway.client()
        group = trainer.open_group(rollouts=1)
        rollout = trainer.rollout(group.trajectories[0].id)
        model = openai.OpenAI(base_url=rollout.openai_base_url, api_key=API_KEY, max_retries=0)
        said: list[str] = []

        def generate() -> None:
            pieces = model.chat.completions.create(
                model=MODEL, messages=ASK, stream=True, max_tokens=200
            )
            said.extend(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)

        thread = threading.Thread(target=generate)
        thread.start()
        until(lambda: engine.sim("state")["running"] == 1)
        with trainer.update_weights(1, path=weights(tmp_path, 1)):
            pass
        thread.join(60)
        rollout.complete(reward=1)
        (sample,) = take_one(trainer).trajectories
        assert sum(sample.loss_mask) == 200
        assert [r.version for r in sample.versions] == [0, 1]
        made = [t for t, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
        assert bytes(t for t in made if t < 256).decode() == "".join(said)
