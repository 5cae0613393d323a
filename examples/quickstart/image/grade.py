#!/usr/bin/python3
"""Scores a trajectory's edits by the package's own test suite: `grade PACKAGE`.

Unpacks the package around the files that are there already, runs its tests, and prints the
reward as the last line: 1 when the whole suite passed, else 0. What says nothing about the
edits is no reward: then it ends with 1.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile

WORK = "/workspace"
LIMIT = 280  # seconds; a suite that the edits made slower than this has failed

# Tests that pass in the unchanged package, and those that are left out.
SUITES = {
    # The deselected ones are named after the current second: no two workers collect the same.
    "marshmallow": (
        1181,
        "tests/test_deserialization.py::TestFieldDeserialization::"
        "test_invalid_datetime_deserialization",
    ),
    "boltons": (519, None),
    "tomlkit": (1203, None),
    "lark": (1094, None),
    "parso": (1989, None),
    "more_itertools": (765, None),
}


class NoReward(Exception):
    """Nothing was learned about the edits."""


def counts(output):
    """Passed, and failed with errors, of pytest's last summary: `3 failed, 9 passed in 2s`."""
    for line in reversed(output.splitlines()):
        found = re.fullmatch(r"=*\s*(\d+ .+) in [\d.]+s.*", line.strip())
        if found:
            by_name = {"passed": 0, "failed": 0, "error": 0}
            for part in found[1].split(", "):
                number, _, what = part.partition(" ")
                by_name[what.removesuffix("s") if what == "errors" else what] = int(number)
            return by_name["passed"], by_name["failed"] + by_name["error"]
    return None


def grade(code, output, expected):
    """The reward of a run of pytest that ended by itself with an exit code."""
    if "Different tests were collected between" in output:
        raise NoReward("the workers of pytest-xdist collected different tests")
    if code in (2, 4, 5):
        return 0  # it could not collect, not import conftest, or found no test
    if code not in (0, 1):
        raise NoReward(f"pytest could not do its work: it ended with {code}")
    found = counts(output)
    if found is None:
        raise NoReward(f"pytest ended with {code} but printed no summary")
    passed, failed = found
    # A suite that lost tests did not pass.
    return int(code == 0 and failed == 0 and passed >= expected)


def run(skip):
    """Exit code and output of the suite; the code is `None` when it took too long."""
    cpus = os.environ.get("ROLLWRIGHT_CPUS", "1")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["-n", cpus] + (["--deselect", skip] if skip else [])
    env = os.environ | {"PYTHONPATH": "src:."}
    with tempfile.TemporaryFile() as output:
        pytest = subprocess.Popen(
            command, cwd=f"{WORK}/repo", env=env, stdout=output, stderr=output,
            start_new_session=True,
        )
        try:
            code = pytest.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(pytest.pid, signal.SIGKILL)
            pytest.wait()
            code = None
        output.seek(0)
        return code, output.read().decode(errors="replace")


def main(package):
    expected, skip = SUITES[package]
    os.makedirs(f"{WORK}/repo", exist_ok=True)
    untar = ["tar", "-xf", f"/opt/sdist/{package}.tar.gz", "--strip-components=1"]
    subprocess.run([*untar, "--skip-old-files", "-C", f"{WORK}/repo"], check=True)
    code, output = run(skip)
    print(output)
    print(0 if code is None else grade(code, output, expected))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except NoReward as reason:
        sys.exit(f"no reward: {reason}")
