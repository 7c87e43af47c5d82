"""What a sandbox is to the rest of Corral: a recipe in, a sandbox out, `execute(name, input)`.

Errors:

    SandboxError
      SandboxUnavailable   no sandbox can be started here as asked; the text says what to do
      SandboxLost          a sandbox that ran is gone; the call that hit it may or may not have had effects
      DiskFull             the session, or the machine, has no room left; the text is for the model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

MIB = 1024 * 1024


class SandboxError(Exception):
    """Base of what providers and sandboxes raise."""


class SandboxUnavailable(SandboxError):
    """No sandbox can be started. The text is for the operator and says what to do about it.

    Never answered by running the tools anywhere else: Corral fails closed.
    """


class SandboxLost(SandboxError):
    """The sandbox has died or was stopped. Provision another one from the same recipe.

    The worker tells the model so, as an error result of the call; the call is not repeated.
    """


class DiskFull(SandboxError):
    """The session holds more files than it may, or the machine's disk is almost full.

    The text is for the model, and says whether the call was run and what to do.
    """


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of one tool call, in the wire form of `user.tool_result` (contract, section 10.3).

    content: `text`, `image` or `document` blocks, never empty. Holds no lone surrogate; may hold NUL.
    """

    content: list[dict[str, Any]]
    is_error: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a sandbox, enforced by the kernel: by a control group where there can be one, and
    always by rlimits.

    memory_bytes: all memory of the sandbox, files in memory and the page cache included; by rlimit the
    private memory of each process. processes: processes and threads of the sandbox; by rlimit, on kernels
    before 5.14, of all sandboxes with the same outer user together. cpus: processors' worth of time, None for
    no limit; there is no rlimit for it. file_bytes: size of one file. cpu_seconds: processor time of one
    process, None for no limit. open_files: descriptors of one process. scratch_bytes: each of the file
    systems in memory (/tmp, /dev/shm), with bubblewrap; never more than a quarter of the memory.
    """

    memory_bytes: int = 4096 * MIB
    processes: int = 1024
    file_bytes: int = 8192 * MIB
    open_files: int = 4096
    cpu_seconds: int | None = None
    scratch_bytes: int = 1024 * MIB
    cpus: float | None = None

    def as_rlimits(self) -> dict[str, int]:
        """Return rlimit name (without `RLIMIT_`) -> value."""
        limits = {
            "DATA": self.memory_bytes,
            "NPROC": self.processes,
            "FSIZE": self.file_bytes,
            "NOFILE": self.open_files,
            "CORE": 0,
        }
        if self.cpu_seconds is not None:
            limits["CPU"] = self.cpu_seconds
        return limits


@dataclass(frozen=True, slots=True)
class Bind:
    """A further host directory or file that the sandbox shows.

    source: absolute host path. target: absolute path inside, outside the working directory. The file tools
    may reach it; they and the sandbox refuse to change it unless it is writable. The provider may change the
    owner of a writable directory, as it does of the workspace.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Egress:
    """The sandbox's way out: the gateway's door on the host, and the certificate (PEM) to trust inside."""

    socket: Path
    certificate: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that is needed to make a session's sandbox, and to make it again after a loss.

    session_id: for names and logs only. workspace: host directory that survives the sandbox, made if it is
    missing; the provider may change its owner. workdir: where it appears inside (provider `process`: ignored,
    the workspace itself is used). env: added to the few variables that a sandbox has; put no secret here.
    network: the host's network; otherwise there is none at all but for egress, the way to the gateway
    (provider `process`: ignored, it has the host's). skills: a directory that appears as `skills` in the
    working directory and cannot be changed there (provider `process`: a copy of it, which can).
    """

    session_id: str
    workspace: Path
    workdir: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    binds: tuple[Bind, ...] = ()
    egress: Egress | None = None
    skills: Path | None = None


class Sandbox(Protocol):
    """A running sandbox."""

    @property
    def alive(self) -> bool:
        """Whether the next call can be tried here."""
        ...

    async def execute(self, name: str, input: Mapping[str, Any]) -> ToolOutput:
        """Run one tool call. Several may run at once; bash calls among them run one after another.

        A tool that fails is a `ToolOutput` with `is_error`. Raises `SandboxLost` if the sandbox dies. When
        cancelled, the tool and every process it started are dead before the cancellation goes on; the sandbox
        stays usable, or is stopped if it does not obey.
        """
        ...

    async def stop(self) -> None:
        """Kill all processes of the sandbox and wait until they are gone. The workspace stays. Idempotent."""
        ...


class SandboxProvider(Protocol):
    """A way to make sandboxes."""

    async def probe(self) -> None:
        """Start a sandbox and throw it away. If that fails raises `SandboxUnavailable`, saying what to do."""
        ...

    async def provision(self, recipe: Recipe) -> Sandbox:
        """Start a sandbox. Raises `SandboxUnavailable` if it does not start; then nothing is left of it."""
        ...

    async def close(self) -> None:
        """Stop every sandbox that this provider made and give back what it holds. Idempotent."""
        ...
