"""An environment for `mini-swe-agent` (2.x): its commands run in a Rollwright sandbox.

Selected by `environment_class: rollwright.minisweagent.RollwrightEnvironment`.
"""

from __future__ import annotations

import os
import platform
from types import TracebackType
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from ._sync.actions import ActionClient
from .actions import Result
from .faults import ActionFault, ActionTimeout, Fault, UserFault

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_OWN_TIMEOUT = "ActionTimeout"
_BAD_COMMAND = ("BodyTooLarge", "InvalidCommand", "RequestTooLarge")


class RollwrightEnvironmentConfig(BaseModel):
    """What can be configured; it is shown to the agent and saved, so it holds no key."""

    template: str
    """Sandbox template of the ActionQueue."""
    address: str = os.getenv("ROLLWRIGHT_QUEUE", "unix:/run/rollwright/queue.sock")
    """Where the queue is: `unix:/path`, `http://...` or `https://...`."""
    api_key_env: str = "ROLLWRIGHT_API_KEY"
    """Name of the variable that holds the job's API key, where one is needed."""
    trajectory_id: str = ""
    """Names the sandbox; name it as the gateway's trajectory, and one abort reaches both."""
    job: str = ""
    """Job that it belongs to in fair share."""
    profile: str = ""
    """Action profile of the commands."""
    cwd: str = ""
    """Working directory; empty: the template's."""
    env: dict[str, str] = {}
    """Environment variables of the commands."""
    forward_env: list[str] = []
    """Variables of this process that are passed on, where they are set; `env` goes first."""
    timeout: int = 30
    """Seconds that a command may run; waiting for its turn does not count."""
    open_deadline: float | None = None
    """Seconds until the sandbox must be ready."""
    interpreter: list[str] = []
    """Program that gets the command as its last argument; empty: `/bin/sh -c`."""


class RollwrightEnvironment:
    """The sandbox of one trajectory.

    What the policy's command did wrong (exit code, time-out, no such directory) is an observation.
    Any other fault is raised and ends the agent: it never becomes a return code.
    """

    def __init__(
        self,
        *,
        config_class: type[RollwrightEnvironmentConfig] = RollwrightEnvironmentConfig,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Opens the sandbox."""
        self.config = config_class(**kwargs)
        self._uname: dict[str, str] | None = None
        self._client = ActionClient(
            self.config.address, api_key=os.getenv(self.config.api_key_env) or None
        )
        try:
            self.sandbox = self._client.sandbox(
                self.config.template,
                trajectory_id=self.config.trajectory_id or None,
                job=self.config.job,
                deadline=self.config.open_deadline,
            )
            self.sandbox.open()
        except BaseException:
            self._client.close()
            raise
        self._open = True

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Runs a command and returns what it did."""
        command = action.get("command", "")
        forwarded = {
            name: os.environ[name] for name in self.config.forward_env if name in os.environ
        }
        limit = timeout or self.config.timeout
        try:
            result = self.sandbox.run(
                [*self.config.interpreter, command] if self.config.interpreter else command,
                profile=self.config.profile,
                cwd=cwd or self.config.cwd,
                env=forwarded | self.config.env,
                timeout=limit,
            )
        except (ActionFault, ActionTimeout, UserFault) as fault:
            output = _observation(fault, command, limit)
        else:
            output = _output(result)
        self._check_finished(output)
        return output

    def _check_finished(self, output: dict[str, Any]) -> None:
        """Raises `Submitted` when the output says that the task is done."""
        lines = output["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == _SUBMIT and output["returncode"] == 0:
            submission = "".join(lines[1:])
            raise Submitted(
                {
                    "role": "exit",
                    "content": submission,
                    "extra": {"exit_status": "Submitted", "submission": submission},
                }
            )

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """The configuration, and the sandbox's system as `platform.uname` names it."""
        if self._uname is None:
            self._uname = self._ask_uname()
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), self._uname, kwargs)
        return merged

    def _ask_uname(self) -> dict[str, str]:
        names = ("system", "node", "release", "version", "machine")
        result = self.sandbox.run("uname -s; uname -n; uname -r; uname -v; uname -m", timeout=30)
        lines = result.stdout.splitlines()
        if result.exit_code != 0 or len(lines) != len(names):
            # An image without uname: the kernel is the node's, of about this kind.
            return dict(platform.uname()._asdict())
        return dict(zip(names, lines, strict=True)) | {"processor": lines[-1]}

    def serialize(self) -> dict[str, Any]:
        """What is saved with the agent's trajectory."""
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": f"{type(self).__module__}.{type(self).__name__}",
                }
            }
        }

    def cleanup(self) -> None:
        """Removes the sandbox; again is fine."""
        if getattr(self, "_open", False):
            self._open = False
            with self._client:
                self.sandbox.close()

    def __enter__(self) -> RollwrightEnvironment:
        """The environment itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the sandbox."""
        self.cleanup()

    def __del__(self) -> None:
        """Removes the sandbox, as the agent's own environments do."""
        self.cleanup()


def _output(result: Result) -> dict[str, Any]:
    # A signal is told as by `subprocess`.
    code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
    killed = "The command was killed: it was out of memory" if result.out_of_memory else ""
    return {"output": result.output, "returncode": code, "exception_info": killed}


def _observation(fault: Fault, command: str, limit: float) -> dict[str, Any]:
    """What the policy caused itself, told as the agent's own environments tell it."""
    if isinstance(fault, ActionTimeout):
        if fault.reason != _OWN_TIMEOUT:
            raise fault
        what = f"Command {command!r} timed out after {limit:g} seconds"
    elif isinstance(fault, UserFault) and fault.reason not in _BAD_COMMAND:
        raise fault
    else:
        what = fault.message
    return {
        "output": fault.output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {what}",
        "extra": {"exception_type": type(fault).__name__, "exception": what},
    }
