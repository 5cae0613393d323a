"""What is said between the policy and the sandbox, as text."""

import re

SYSTEM = """\
You work on a Python package in a sandbox without network. Each of your replies holds one command
in a fenced block, which is run by sh in a new shell in /workspace:

```bash
cd repo && ls
```

The next message tells its exit code and output. When your work is finished, reply with the one
line DONE and no block."""

# For a policy that is played back: what it does is settled.
PLAYED = "Work on {package}: its source is in /opt/sdist/{package}.tar.gz."

# For a real one.
REPAIR = """\
The package {package} is in /workspace/repo. A bug was planted in its source (not in its tests).
Find it, repair it, and make the whole test suite pass. Run tests like this:
cd repo && PYTHONPATH=src:. python3 -m pytest -q -o addopts= -n $ROLLWRIGHT_CPUS"""

LOST = "There was neither a ```bash block nor DONE in your reply."

_BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)\n```\s*$", re.DOTALL | re.MULTILINE)
_DONE = re.compile(r"^DONE\s*$", re.MULTILINE)
_SHOWN = 4000  # characters of an output that the policy sees


def command_of(reply):
    """The command of the first fenced block, if there is one."""
    found = _BLOCK.search(reply)
    return found[1] if found else None


def is_done(reply):
    """The policy says that it has finished."""
    return command_of(reply) is None and _DONE.search(reply) is not None


def profile_of(command):
    """Test runs get cores of their own, everything else shares some."""
    return "tests" if "pytest" in command else "shell"


def name_of(command):
    """A word for timelines: the first program after `cd DIR &&`."""
    if "pytest" in command:
        return "pytest"
    rest = re.sub(r"^(cd \S+|mkdir [^&]+) && ", "", command.strip())
    return (rest.split() or ["sh"])[0][:20]


def observation(exit_code, output):
    """What the policy is told of a command that ended."""
    if len(output) > _SHOWN:
        half = _SHOWN // 2
        left_out = len(output) - 2 * half
        output = f"{output[:half]}\n[{left_out} characters left out]\n{output[-half:]}"
    ended = "a signal ended it" if exit_code is None else f"exit code {exit_code}"
    return f"{ended}\n{output}"
