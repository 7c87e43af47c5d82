"""How fast is a tool call?  ``python -m benchmarks.sandbox_start``

The call is the bash tool's, as a worker makes it, in a sandbox with everything that isolates it.

- cold: the session has no sandbox; the time runs until ``true``, its first call, is answered. A worker has
  one process waiting that is no session's yet, as it does by default; and once more where there is none. The
  peer is bubblewrap alone with namespaces of its own on the host's files, running ``bash -c true``.
- warm: the sandbox has been started before, and this is its first call. The same peer.
- each further call runs a program, ``/bin/true``, as nearly every command of an agent does. The peer is a
  bare bash that is kept and told the same through a pipe, and its exit status is read back.
- and once more ``true`` that is part of the shell and starts nothing, so that only the way there and back is
  left: a bare shell has one pipe each way, and between an agent's and its worker stands the program that
  bounds its time and its output.
"""

import asyncio
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.table import Row, Sample, interleaved, milliseconds, under
from benchmarks.world import World, main
from corral.hands.sandbox.access import Identity
from corral.hands.sandbox.binary import find_binary
from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.provider import Recipe, Sandbox, SandboxProvider

_ALONE: Final = (
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
)
_COLD: Final = "first tool call, cold"
_UNPREPARED: Final = "first tool call, cold, nothing waiting"
_WARM: Final = "first tool call, warm"
_FURTHER: Final = "each further tool call"
_EMPTY: Final = "each further tool call, a command that starts nothing"
_SETTLING_SECONDS: Final = 0.1
_PROGRAM, _NOTHING = "/bin/true", "true"


async def tool_calls(world: World) -> Sequence[Row]:
    """The rows of the questions about tool calls."""
    binary, copied = find_binary(Identity.for_sandboxes(), None)
    provider, prepared = BubblewrapProvider(), BubblewrapProvider(waiting=1)
    try:
        await asyncio.gather(provider.probe(), prepared.probe())
        return await _measure(provider, prepared, binary, world.folder / "workspace", world.size.rounds)
    finally:
        await asyncio.gather(provider.close(), prepared.close())
        if copied is not None:
            await asyncio.to_thread(shutil.rmtree, copied)


async def _measure(
    provider: BubblewrapProvider, prepared: BubblewrapProvider, binary: Path, workspace: Path, rounds: int
) -> list[Row]:
    kept = await provider.provision(Recipe(session_id="kept", workspace=workspace / "kept"))
    bash = await asyncio.create_subprocess_exec(
        "bash", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    contestants: dict[str, Sample] = {
        "bubblewrap": lambda: _alone(binary),
        _COLD: lambda: _cold(prepared, workspace),
        _UNPREPARED: lambda: _cold(provider, workspace),
        _WARM: lambda: _warm(provider, workspace),
        "bash": lambda: _told(bash, _PROGRAM),
        _FURTHER: lambda: _call(kept, _PROGRAM),
        "empty bash": lambda: _told(bash, _NOTHING),
        _EMPTY: lambda: _call(kept, _NOTHING),
    }
    try:
        taken = await interleaved(contestants, rounds)
    finally:
        bash.kill()
        await bash.wait()
        await kept.stop()
    middle = {name: statistics.median(samples) for name, samples in taken.items()}
    return [
        _row(_COLD, middle, "bubblewrap", 2.5),
        _row(_UNPREPARED, middle, "bubblewrap", None),
        _row(_WARM, middle, "bubblewrap", 1.3),
        _row(_FURTHER, middle, "bash", 1.3),
        _row(_EMPTY, middle, "empty bash", None),
    ]


def _row(question: str, middle: dict[str, float], peer: str, bar: float | None) -> Row:
    mine, other = middle[question], middle[peer]
    named = "bare bwrap, bash -c" if peer == "bubblewrap" else "a bare kept bash"
    shown = f"{milliseconds(other)}, {named}"
    return Row(question, milliseconds(mine), shown, mine / other, None if bar is None else under(bar))


async def _alone(binary: Path) -> float:
    began = time.perf_counter()
    command = [str(binary), *_ALONE, "bash", "-c", "true"]
    await asyncio.to_thread(
        subprocess.run, command, check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    return time.perf_counter() - began


async def _cold(provider: BubblewrapProvider, workspace: Path) -> float:
    await provider.restock()
    await asyncio.sleep(_SETTLING_SECONDS)  # what waits has been started, and is not being started
    began = time.perf_counter()
    sandbox = await provider.provision(Recipe(session_id="cold", workspace=workspace / "cold"))
    await _call(sandbox, _NOTHING)
    passed = time.perf_counter() - began
    await sandbox.stop()
    return passed


async def _warm(provider: SandboxProvider, workspace: Path) -> float:
    sandbox = await provider.provision(Recipe(session_id="warm", workspace=workspace / "warm"))
    passed = await _call(sandbox, _NOTHING)
    await sandbox.stop()
    return passed


async def _call(sandbox: Sandbox, command: str) -> float:
    began = time.perf_counter()
    answer = await sandbox.execute("bash", {"command": command})
    passed = time.perf_counter() - began
    assert not answer.is_error, answer
    return passed


async def _told(bash: asyncio.subprocess.Process, command: str) -> float:
    assert bash.stdin is not None
    assert bash.stdout is not None
    began = time.perf_counter()
    bash.stdin.write(f"{command}; echo $?\n".encode())
    assert await bash.stdout.readline() == b"0\n"
    return time.perf_counter() - began


if __name__ == "__main__":
    main(tool_calls, __doc__)
