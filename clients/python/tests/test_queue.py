"""The client on a real queue, with real sandboxes."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import pytest
from cutting_proxy import CuttingProxy
from stack import Stack

from rollwright import (
    ActionClient,
    ActionFault,
    ActionTimeout,
    AsyncActionClient,
    Cancelled,
    UserFault,
)
from rollwright.actions import new_id

pytestmark = pytest.mark.queue


def test_an_action_tells_what_it_did(client: ActionClient) -> None:
    with client.sandbox("box", env={"WHO": "rollwright"}) as sandbox:
        assert sandbox.ready is not None
        assert sandbox.ready.times.start >= 0
        command = "echo $WHO; echo oops >&2; cat; exit 3"
        result = sandbox.run(command, stdin=b"fed", cwd="/tmp")  # noqa: S108
        assert (result.exit_code, result.signal) == (3, None)
        assert (result.stdout, result.stderr) == ("rollwright\nfed", "oops\n")
        assert result.units == 0.2
        assert result.cores
        assert result.node == sandbox.ready.node
        argv = sandbox.run(["printf", "%s|", "a b", "$c"], profile="exclusive")
        assert (argv.stdout, argv.units) == ("a b|$c|", 1)
        assert sandbox.run("kill -9 $$").signal == 9


def test_output_that_is_no_text_and_separators_in_text(client: ActionClient) -> None:
    with client.sandbox("box") as sandbox:
        # U+2028, U+0085 and form feed end no line of the stream.
        text = sandbox.run(r"printf 'a\342\200\250b\302\205c\014d\n'").stdout
        assert text == "a\u2028b\u0085c\x0cd\n"
        pieces = sandbox.run(r"printf '\377\000x'").pieces
        assert b"".join(piece.data for piece in pieces) == b"\xff\0x"
        cut = sandbox.run("yes | head -c 10000", output_limit=1000)
        assert cut.dropped_bytes == 8000
        assert "[8000 bytes dropped]" in cut.stdout


def test_files_and_archives(client: ActionClient) -> None:
    with client.sandbox("box") as sandbox:
        data = bytes(range(256)) * 8192
        sandbox.write_file("/workspace/deep/er/x", data, mode=0o755)
        assert sandbox.read_file("/workspace/deep/er/x") == data
        assert sandbox.run("test -x deep/er/x", cwd="/workspace").exit_code == 0
        archive = sandbox.read_tar("/workspace/deep")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            assert any(name.endswith("er/x") for name in tar.getnames())
        sandbox.write_tar("/workspace/copy", archive)
        assert sandbox.run("find copy -name x", cwd="/workspace").stdout.endswith("er/x\n")
        with pytest.raises(UserFault) as fault:
            sandbox.read_file("/none")
        assert (fault.value.reason, fault.value.status) == ("FileNotFound", 404)


def test_faults_have_their_kinds(client: ActionClient) -> None:
    with client.sandbox("box") as sandbox:
        with pytest.raises(ActionTimeout) as late:
            sandbox.run("echo begun; sleep 1000", timeout=0.5)
        assert (late.value.reason, late.value.output) == ("ActionTimeout", "begun\n")
        with pytest.raises(ActionFault) as failed:
            sandbox.run(["no-such-program"])
        assert failed.value.reason == "CommandNotFound"
        with pytest.raises(UserFault) as unknown:
            sandbox.run("true", profile="none")
        assert unknown.value.reason == "UnknownProfile"
    with pytest.raises(UserFault) as closed:
        sandbox.run("true")
    assert closed.value.reason == "TrajectoryNotOpen"
    with pytest.raises(UserFault), client.sandbox("no-such-template"):
        pytest.fail("it must not open")


def test_the_same_id_runs_once(client: ActionClient) -> None:
    with client.sandbox("box") as sandbox:
        ids = [new_id()] * 2
        results = [sandbox.run("echo $$ >> count; cat count", action_id=id) for id in ids]  # noqa: A001
        assert results[0] == results[1]
        assert sandbox.run("wc -l < count").stdout.strip() == "1"


def test_a_dropped_connection_attaches_again(stack: Stack, tmp_path: Path) -> None:
    target = stack.address.removeprefix("unix:")
    with (
        ActionClient(stack.address) as direct,
        direct.sandbox("box") as sandbox,
        CuttingProxy(tmp_path / "p", target, cuts=3) as proxy,
        ActionClient(proxy.address) as client,
    ):
        command = "echo once >> count; sleep 2; echo done"
        result = client.execute(sandbox.trajectory_id, command)
        assert (result.stdout, result.exit_code) == ("done\n", 0)
        assert proxy.connections == 4
        assert sandbox.read_file("/workspace/count") == b"once\n"


def test_a_queue_that_is_killed_and_started_again(stack: Stack, client: ActionClient) -> None:
    with client.sandbox("box") as sandbox:
        command = "echo once >> count; while ! test -e go; do sleep 0.1; done; echo done"
        results = []
        run = threading.Thread(target=lambda: results.append(sandbox.run(command, timeout=90)))
        run.start()
        while sandbox.run("cat count 2>/dev/null").stdout != "once\n":
            time.sleep(0.05)
        stack.kill()
        stack.start()
        sandbox.write_file("/workspace/go", "")
        run.join(60)
        assert [result.stdout for result in results] == ["done\n"]
        assert sandbox.read_file("/workspace/count") == b"once\n"


@pytest.mark.anyio
async def test_async_actions_run_at_once_and_cancel(stack: Stack) -> None:
    async with AsyncActionClient(stack.address) as client, client.sandbox("box") as sandbox:
        results: dict[int, str] = {}

        async def one(number: int) -> None:
            results[number] = (await sandbox.run(f"echo {number}")).stdout

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number)
        assert results == {number: f"{number}\n" for number in range(20)}

        # A cancelled task cancels its action, wherever it is.
        async with anyio.create_task_group() as group:
            group.start_soon(sandbox.run, "echo $$ > pid; exec sleep 1000")
            while not (await sandbox.run("cat pid 2>/dev/null")).stdout:  # noqa: ASYNC110
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()
        # The cancel is on its way when the task ends.
        with anyio.fail_after(30):
            while (await sandbox.run("kill -0 $(cat pid)")).exit_code == 0:  # noqa: ASYNC110
                await anyio.sleep(0.05)


def test_who_has_longest_to_go_is_served_first(stack: Stack) -> None:  # noqa: ARG001
    aware = Stack(policy="{type: Elastic, ordering: TrajectoryAware}")
    try:
        with (
            ActionClient(aware.address) as client,
            client.sandbox("box") as sandbox,
            ThreadPoolExecutor() as threads,
        ):
            cores = client.stats()["nodes"][0]["cores"]

            runs = []
            for name, remaining in (("first", 3000), ("nearly-done", 0), ("far-from-done", 2000)):
                # All cores: one after the other.
                run = partial(sandbox.run, cpu_units=[cores], remaining=remaining)
                wait = "while ! test -e go; do sleep 0.1; done"
                runs.append(threads.submit(run, f"{wait}; echo {name} >> order"))
                while (held := client.stats())["waiting"] + held["running"] < len(runs):
                    time.sleep(0.02)
            sandbox.write_file("/workspace/go", "")
            assert [run.result(60).exit_code for run in runs] == [0, 0, 0]
            order = sandbox.read_file("/workspace/order").decode().split()
            assert order == ["first", "far-from-done", "nearly-done"]
            with pytest.raises(UserFault) as fault:
                sandbox.run("true", remaining=-1)
            assert fault.value.reason == "InvalidDuration"
    finally:
        aware.stop()


def test_cancelling_from_elsewhere_is_told(client: ActionClient) -> None:
    with client.sandbox("box") as sandbox:
        action, faults = new_id(), []

        def run() -> None:
            try:
                sandbox.run("sleep 1000", action_id=action)
            except Cancelled as fault:
                faults.append(fault)

        thread = threading.Thread(target=run)
        thread.start()
        while not client.cancel(action):
            time.sleep(0.02)
        thread.join(30)
        assert [fault.kind for fault in faults] == ["cancelled"]


def test_stats(client: ActionClient) -> None:
    with client.sandbox("box"):
        stats = client.stats()
        assert stats["trajectories"] == 1
        assert stats["nodes"][0]["connected"]


def test_an_unknown_quota_is_refused(client: ActionClient) -> None:
    with pytest.raises(UserFault) as fault, client.permit("api"):
        pytest.fail("it must not be held")
    assert fault.value.reason == "UnknownQuota"


def test_tcp_with_a_key(stack: Stack) -> None:  # noqa: ARG001
    tcp = Stack(tcp=True)
    try:
        with ActionClient(tcp.address, api_key=tcp.api_key) as client:
            with client.sandbox("box", trajectory_id="group/t") as sandbox:
                assert sandbox.run("echo hi").stdout == "hi\n"
            with pytest.raises(UserFault) as fault, client.sandbox("box", job="job-b"):
                pytest.fail("another job's")
            assert (fault.value.reason, fault.value.status) == ("Forbidden", 403)
        with ActionClient(tcp.address, api_key="wrong") as client:
            with pytest.raises(UserFault) as fault:
                client.stats()
            assert (fault.value.reason, fault.value.status) == ("Unauthenticated", 401)
    finally:
        tcp.stop()
