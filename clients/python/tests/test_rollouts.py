"""What a real gateway cannot be made to do on demand: lost answers, proxies' answers, odd pieces.

All else is in test_gateway.py and test_training.py, on a real one.
"""

from __future__ import annotations

import hashlib
import pickle
from contextlib import closing
from typing import Any

import httpx
import pytest
from stub_gateway import Answer, Cut, StubGateway, refusal

from rollwright import (
    AsyncRolloutClient,
    Cancelled,
    EventsMissed,
    Fault,
    GroupSettled,
    InfrastructureFault,
    RolloutClient,
    Stale,
    TrajectoryAborted,
    TrajectoryStarted,
    UserFault,
    VersionChanged,
)

GROUP: dict[str, Any] = {
    "id": "g/1",
    "task": "math",
    "state": "open",
    "needed": 1,
    "start": 2,
    "trajectories": [
        {"id": "g/1.0", "state": "running"},
        {
            "id": "g/1.1",
            "state": "aborted",
            "fault": {
                "message": "too old",
                "type": "stale",
                "code": "TooOld",
                "param": None,
            },
        },
    ],
    "version": 7,
    "evaluation": False,
}
TRAJECTORY: dict[str, Any] = {
    "id": "g/1.0",
    "group": "g/1",
    "task": "math",
    "state": "running",
    "turns": 1,
    "prompt_tokens": 5,
    "generated_tokens": 3,
    "start_version": 7,
    "oldest_version": 7,
}
SAMPLE: dict[str, Any] = {
    "id": "g/1.0",
    "reward": 0.5,
    "metadata": {"a": 1},
    "turns": 1,
    "start_version": 7,
    "oldest_version": 6,
    "token_ids": [1, 5, 7],
    "logprobs": [None, None, -0.5],
    "loss_mask": [0, 0, 1],
    "versions": [{"start": 2, "end": 3, "version": 6}],
    "finish": "stop",
}
BEGUN = {"version": 8, "workers": [{"id": "w0", "url": "http://w0"}], "deadline_seconds": 600.0}
COMMITTED = {
    "version": 8,
    "workers": 1,
    "push_seconds": 3.0,
    "pull_seconds": 2.0,
    "exposed_seconds": 1.5,
}
LOST = httpx.ReadError("the connection broke")


def batch(number: int) -> httpx.Response:
    group = {"id": "g/1", "task": "math", "payload": [1], "trajectories": [SAMPLE]}
    body = {"id": number, "version": 7, "groups": [group], "waited_seconds": 0.25}
    return httpx.Response(200, json=body)


def client(*answers: Answer, patience: float = 5.0) -> tuple[RolloutClient, StubGateway]:
    stub = StubGateway(list(answers))
    gateway = RolloutClient(
        "http://gateway:8080", api_key="k", patience=patience, transport=stub.transport()
    )
    return gateway, stub


def ok(body: object = None, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body if body is not None else {})


def test_a_group_is_opened_under_an_id_that_the_client_makes() -> None:
    gateway, stub = client(LOST, ok(GROUP, 201))
    group = gateway.open_group(task="math", rollouts=1, payload={}, wait=5)
    first, second = stub.body(0), stub.body(1)
    assert first == second
    assert len(first.pop("id")) == 32
    assert first == {"task": "math", "rollouts": 1, "payload": {}, "tokens": "required"}
    assert stub.seen() == [("POST", "/rollout/v1/groups?wait=5.000")] * 2
    assert stub.requests[0].headers["Authorization"] == "Bearer k"
    assert [member.id for member in group.trajectories] == ["g/1.0", "g/1.1"]
    assert isinstance(group.trajectories[1].fault, Stale)
    assert (group.needed, group.start, group.version) == (1, 2, 7)


def test_back_pressure_waits_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("rollwright._sync.rollouts.sleep", slept.append)
    monkeypatch.setattr("rollwright._sync.transport.sleep", slept.append)
    full = refusal(429, "infrastructure", "BufferFull", {"Retry-After": "3"})
    gateway, _ = client(full, full, ok(GROUP, 201))
    gateway.open_group()
    gateway, _ = client(full, ok([]), patience=60)
    gateway.status()
    assert slept == [3.0, 3.0, 3.0]
    # Longer than the caller wants to wait.
    gateway, _ = client(full)
    with pytest.raises(InfrastructureFault) as fault:
        gateway.open_group(wait=2)
    assert (fault.value.retry_after, fault.value.status) == (3.0, 429)
    gateway, _ = client(full, patience=1)
    with pytest.raises(InfrastructureFault):
        gateway.status()
    assert len(slept) == 3


def test_what_is_aborted_already_is_left_alone() -> None:
    gateway, stub = client(refusal(409, "cancelled", "Aborted"))
    with pytest.raises(Cancelled) as fault, gateway.rollout("t") as rollout:
        rollout.step()
    assert fault.value.reason == "Aborted"
    assert len(stub.requests) == 1


def test_a_step_is_never_reported_twice() -> None:
    gateway, stub = client(LOST, ok({"state": "aborted"}))
    with pytest.raises(InfrastructureFault), gateway.rollout("t") as rollout:
        rollout.step()
    assert [path.rsplit("/", 1)[1] for _, path in stub.seen()] == ["steps", "abort"]
    gateway, stub = client(refusal(503, "infrastructure", "Stopping"))
    with pytest.raises(InfrastructureFault):
        gateway.rollout("t").step()
    assert len(stub.requests) == 1
    # What never left is sent again.
    gateway, stub = client(httpx.ConnectError("no"), ok({"state": "running", "version": 1}))
    gateway.rollout("t").step()
    assert len(stub.requests) == 2


@pytest.mark.parametrize("lost", [LOST, refusal(503, "infrastructure", "Stopping")])
@pytest.mark.parametrize(("state", "sent"), [("running", 2), ("scoring", 1), ("aborted", 1)])
def test_a_lost_completion_is_looked_for_first(lost: Answer, state: str, sent: int) -> None:
    looked = ok(TRAJECTORY | {"state": state})
    gateway, stub = client(lost, looked, ok({"state": "scored"}, 202))
    ended = gateway.rollout("t").complete(reward=1)
    assert ended == ("scored" if state == "running" else state)
    methods = [method for method, _ in stub.seen()]
    assert methods == ["POST", "GET", "POST"][: sent + 1]


def test_a_batch_is_acknowledged_after_its_body() -> None:
    gateway, stub = client(httpx.Response(204), LOST, batch(1), LOST, ok(), batch(2), ok())
    seen = []
    for taken in gateway.batches(groups=4, limit=2):
        seen.append(taken.id)
        assert ("POST", f"/rollout/v1/batches/{taken.id}/ack") not in stub.seen()
        (group,) = taken.groups
        (sample,) = group.trajectories
        assert (group.payload, sample.reward, sample.oldest_version) == ([1], 0.5, 6)
        assert [(r.start, r.end, r.version) for r in sample.versions] == [(2, 3, 6)]
        assert (sample.logprobs, sample.metadata) == ([None, None, -0.5], {"a": 1})
    assert seen == [1, 2]
    assert stub.seen()[-1] == ("POST", "/rollout/v1/batches/2/ack")
    assert stub.body(0) == {"groups": 4, "wait": 60.0}


def test_weights_begin_and_commit() -> None:
    gateway, stub = client(ok(BEGUN), LOST, ok(status=201), LOST, ok(COMMITTED))
    data = bytes(range(256)) * 5000
    with gateway.update_weights(8, transfer="store", deadline=60) as update:
        assert update.begun is not None
        assert [worker.url for worker in update.begun.workers] == ["http://w0"]
        update.push_bucket("bucket-0", memoryview(data).cast("H"))
    assert update.committed is not None
    assert update.committed.exposed_seconds == 1.5
    assert stub.body(0) == {"version": 8, "transfer": "store", "deadline_seconds": 60}
    for put in stub.requests[1:3]:
        assert put.url.path == "/rollout/v1/weights/8/buckets/bucket-0"
        assert put.content == data
        assert put.headers["Content-Length"] == str(len(data))
        assert "Transfer-Encoding" not in put.headers
        assert put.headers["X-Rollwright-Sha256"] == hashlib.sha256(data).hexdigest()
    assert stub.body(4) == {"version": 8}


def test_an_update_of_whose_begin_nobody_knows_is_aborted() -> None:
    gateway, stub = client(LOST, ok())
    with pytest.raises(InfrastructureFault), gateway.update_weights(8):
        pytest.fail("it has not begun")
    assert stub.seen()[-1] == ("POST", "/rollout/v1/weights/abort")
    assert len(stub.requests) == 2


def test_a_commit_after_the_deadline_is_not_aborted_again() -> None:
    gateway, stub = client(ok(BEGUN), refusal(409, "stale", "UpdateExpired"))
    with pytest.raises(Fault) as fault, gateway.update_weights(8):
        pass
    assert fault.value.reason == "UpdateExpired"
    assert len(stub.requests) == 2


def test_events_resume_where_they_were_cut() -> None:
    first = (
        b': hello\n\nid: 41\nevent: abort\ndata: {"trajectory":"t","group":"g",',
        b'"reason":"a\xe2\x80\xa8b"}\n\nid: 42\nevent: news\ndata: {}\n\n',
        b'id: 43\nevent: settled\ndata: {"gro',
    )
    second = (
        b'id: 43\nevent: settled\r\ndata: {"group":"g","kept":["t"]}\r\n\r\n'
        b'id: 44\nevent: start\ndata: {"trajectory":"u","group":"g"}\n\n'
        b"event: gap\ndata: {}\n\n"
        b'id: 45\nevent: version\ndata: {"version":8}\n\n'
    )
    gateway, stub = client(
        httpx.Response(200, stream=Cut(*first)),
        httpx.ConnectError("no"),
        httpx.Response(200, stream=Cut(second)),
    )
    with closing(gateway.events(group_id="g")) as events:
        seen = [next(events) for _ in range(5)]
    assert seen == [
        TrajectoryAborted("t", "g", "a\u2028b"),
        GroupSettled("g", ("t",)),
        TrajectoryStarted("u", "g"),
        EventsMissed(),
        VersionChanged(8),
    ]
    assert [request.headers.get("Last-Event-ID") for request in stub.requests] == [None, "42", "42"]
    assert stub.seen()[0] == ("GET", "/rollout/v1/events?group=g")


def test_events_before_the_first_id_count_as_missed() -> None:
    version = b'id: 1\nevent: version\ndata: {"version":8}\n\n'
    gateway, _ = client(
        httpx.Response(200, stream=Cut(b": hello\n\n")), httpx.Response(200, stream=Cut(version))
    )
    with closing(gateway.events()) as events:
        assert [next(events), next(events)] == [EventsMissed(), VersionChanged(8)]


def test_answers_that_are_not_the_gateways() -> None:
    gateway, _ = client(httpx.Response(502, text="Bad gateway"), ok({"version": 7, "workers": []}))
    assert gateway.weights() == {"version": 7, "workers": []}
    gateway, _ = client(httpx.Response(404, text="nginx"))
    with pytest.raises(UserFault) as fault:
        gateway.status()
    assert "nginx" in fault.value.message


def test_patience_ends() -> None:
    gateway, _ = client(*[httpx.ConnectError("refused")] * 50, patience=0.3)
    with pytest.raises(InfrastructureFault) as fault:
        gateway.status()
    assert (fault.value.reason, fault.value.status) == ("Unreachable", None)


def test_faults_cross_processes() -> None:
    fault = Stale("TooOld", "by two versions", retry_after=1.5, status=409)
    fault.output = "partial"
    again = pickle.loads(pickle.dumps(fault))  # noqa: S301
    assert (type(again), str(again), again.__dict__) == (Stale, str(fault), fault.__dict__)


@pytest.mark.parametrize("address", ["gateway:8080", "unix:relative", "ftp://x", ""])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        RolloutClient(address)


@pytest.mark.anyio
async def test_async_is_the_same() -> None:
    stub = StubGateway([ok(BEGUN), ok(status=201), ok(COMMITTED), LOST, batch(1), ok()])
    async with AsyncRolloutClient("http://gateway", transport=stub.transport()) as gateway:
        async with gateway.update_weights(8, transfer="store") as update:
            await update.push_bucket("b", b"bytes")
        async for taken in gateway.batches(limit=1):
            assert taken.id == 1
    assert stub.requests[1].content == b"bytes"
    assert stub.seen()[-1] == ("POST", "/rollout/v1/batches/1/ack")
