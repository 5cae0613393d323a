"""What the client makes of a queue's answers that a real one seldom gives."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from stub_gateway import Answer, Cut, StubGateway

from rollwright import ActionClient, InfrastructureFault, UserFault

USAGE = {
    "queue_s": 0.5,
    "exec_s": 1.0,
    "overhead_s": 0.25,
    "cpu_s": 0.75,
    "memory_peak_bytes": 4096,
    "output_bytes": 2,
    "output_dropped_bytes": 0,
}
QUEUED: dict[str, Any] = {"action_id": "a", "queued": {}}
OUTPUT: dict[str, Any] = {"action_id": "a", "output": {"stream": "stdout", "text": "hi"}}
FINISHED: dict[str, Any] = {
    "action_id": "a",
    "finished": {"exit_code": 0, "out_of_memory": False, "cpu_units": 0.2, "usage": USAGE},
}
LATER: dict[str, Any] = {"kind": "infrastructure", "reason": "QueueFull", "message": "full"}
READY = httpx.Response(
    200,
    json={
        "trajectory_id": "t",
        "state": "ready",
        "node": "n",
        "warm": True,
        "times": {"queue_s": 1.0, "image_s": 0.0, "start_s": 0.5, "setup_s": 0.0},
    },
)


def lines(*events: dict[str, Any]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def client(*answers: Answer, patience: float = 5.0) -> tuple[ActionClient, StubGateway]:
    stub = StubGateway(list(answers))
    queue = ActionClient("http://queue", patience=patience, transport=stub.transport())
    return queue, stub


@pytest.mark.parametrize("reason", ["SlowReader", "QueueStopping"])
def test_a_stream_that_the_queue_ends_is_attached_to_again(reason: str) -> None:
    fault = {"fault": {"kind": "infrastructure", "reason": reason, "message": "come back"}}
    queue, stub = client(
        httpx.Response(200, content=lines(QUEUED, OUTPUT, fault)),
        httpx.Response(200, content=lines(QUEUED, OUTPUT)),
        httpx.Response(200, stream=Cut(lines(QUEUED)[:-1])),
        httpx.Response(200, content=lines(QUEUED, OUTPUT, FINISHED)),
    )
    result = queue.execute(
        "t", "echo hi", timeout=3, cpu_units=[0.5, 1], quota={"api": 2}, remaining=0
    )
    # The output of earlier attachments is not counted twice.
    assert (result.stdout, result.exit_code, result.queued, result.ran) == ("hi", 0, 0.5, 1.0)
    bodies = [stub.body(number) for number in range(4)]
    assert all(body == bodies[0] for body in bodies)
    assert len(bodies[0].pop("action_id")) == 32
    assert bodies[0] == {
        "trajectory_id": "t",
        "command": {"shell": "echo hi"},
        "timeout": 3,
        "cpu_units": [0.5, 1],
        "quota": {"api": 2},
        "remaining": 0,
    }


def test_the_end_of_an_action_is_no_reason_to_try_again() -> None:
    failed = {"action_id": "a", "failed": LATER | {"reason": "NodeLost", "retry_after_s": 1.0}}
    queue, stub = client(httpx.Response(200, stream=Cut(lines(QUEUED, OUTPUT, failed))))
    with pytest.raises(InfrastructureFault) as fault:
        queue.execute("t", "true")
    assert (fault.value.reason, fault.value.output, fault.value.status) == ("NodeLost", "hi", None)
    assert len(stub.requests) == 1


def test_a_full_queue_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("rollwright._sync.transport.sleep", slept.append)
    full = httpx.Response(
        429, json={"fault": LATER | {"retry_after_s": 1.5}}, headers={"Retry-After": "1"}
    )
    queue, _ = client(full, httpx.Response(200, content=lines(QUEUED, FINISHED)))
    assert queue.execute("t", "true").exit_code == 0
    assert slept == [1.5]


def test_a_sandbox_may_take_long_while_the_queue_is_ready() -> None:
    silence = httpx.ReadTimeout("nothing yet")
    ready = httpx.Response(200, text="ready\n")
    queue, stub = client(silence, ready, silence, ready, READY, httpx.Response(200, json={}))
    with queue.sandbox("box", trajectory_id="g/t", deadline=900) as sandbox:
        assert sandbox.ready is not None
        assert (sandbox.ready.warm, sandbox.ready.times.queue) == (True, 1.0)
    paths = [path for _, path in stub.seen()]
    assert paths == [
        *["/v1/trajectories", "/readyz"] * 2,
        "/v1/trajectories",
        "/v1/trajectories/g%2Ft",
    ]
    assert stub.body(4) == {"trajectory_id": "g/t", "template": "box", "deadline": 900}


def test_a_sandbox_that_brought_no_answer_is_closed() -> None:
    lost = httpx.ReadError("lost")
    queue, stub = client(lost, httpx.Response(200, json={}), patience=0)
    with pytest.raises(InfrastructureFault), queue.sandbox("box"):
        pytest.fail("it is not open")
    assert [method for method, _ in stub.seen()] == ["POST", "DELETE"]


def test_an_interrupted_action_is_cancelled() -> None:
    class Interrupted(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield lines(QUEUED)
            raise KeyboardInterrupt

    cancelled = httpx.Response(200, json={"cancelled": True})
    queue, stub = client(httpx.Response(200, stream=Interrupted()), cancelled)
    with pytest.raises(KeyboardInterrupt):
        queue.execute("t", "sleep 1000", action_id="a/1")
    assert stub.seen()[-1] == ("POST", "/v1/actions/a%2F1/cancel")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"retry_after": 7.5}, "?retry_after_s=7.5"),
        ({"status": 429}, "?retry_after_s=0.0"),
        ({"status": 400}, ""),
    ],
)
def test_a_permit_is_returned_and_tells_when_its_api_asked_to_stay_away(
    said: dict[str, Any], told: str
) -> None:
    held, returned = httpx.Response(200, json={"queue_s": 0}), httpx.Response(200, json={})
    queue, stub = client(held, returned)
    with pytest.raises(UserFault), queue.permit("api", amount=2, ttl=60):
        raise UserFault("TooManyRequests", "slow down", **said)
    body = stub.body(0)
    permit = body.pop("permit_id")
    assert body == {"quota": "api", "amount": 2, "ttl": 60}
    assert stub.seen()[-1] == ("DELETE", f"/v1/permits/{permit}{told}")
