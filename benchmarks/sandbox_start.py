"""How fast is a tool call?  ``python -m benchmarks.sandbox_start``

The call is ``true`` by the bash tool, as a worker makes it, in a sandbox with everything that isolates it.

- cold: no sandbox is there; the time runs until the first call is answered. The peer is bubblewrap alone with
  namespaces of its own on the host's files, running ``bash -c true``.
- warm: the sandbox has been started before, and this is its first call. The same peer.
- each further call: against a bare bash that is kept and told ``true; echo`` through a pipe.
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
from corral.hands.sandbox.provider import Recipe, Sandbox, SandboxProvider
from corral.hands.sandbox.select import provider_named

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
_COLD, _WARM, _FURTHER = "first tool call, cold", "first tool call, warm", "each further tool call"


async def tool_calls(world: World) -> Sequence[Row]:
    """The rows of the questions about tool calls."""
    binary, copied = find_binary(Identity.for_sandboxes(), None)
    provider = provider_named("bubblewrap")
    try:
        await provider.probe()
        return await _measure(provider, binary, world.folder / "workspace", world.size.rounds)
    finally:
        await provider.close()
        if copied is not None:
            await asyncio.to_thread(shutil.rmtree, copied)


async def _measure(provider: SandboxProvider, binary: Path, workspace: Path, rounds: int) -> list[Row]:
    kept = await provider.provision(Recipe(session_id="kept", workspace=workspace / "kept"))
    bash = await asyncio.create_subprocess_exec(
        "bash", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    contestants: dict[str, Sample] = {
        "bubblewrap": lambda: _alone(binary),
        _COLD: lambda: _cold(provider, workspace),
        _WARM: lambda: _warm(provider, workspace),
        "bash": lambda: _told(bash),
        _FURTHER: lambda: _call(kept),
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
        _row(_WARM, middle, "bubblewrap", 1.3),
        _row(_FURTHER, middle, "bash", 1.3),
    ]


def _row(question: str, middle: dict[str, float], peer: str, bar: float) -> Row:
    mine, other = middle[question], middle[peer]
    named = {"bubblewrap": "bare bwrap, bash -c", "bash": "a bare kept bash"}[peer]
    return Row(question, milliseconds(mine), f"{milliseconds(other)}, {named}", mine / other, under(bar))


async def _alone(binary: Path) -> float:
    began = time.perf_counter()
    command = [str(binary), *_ALONE, "bash", "-c", "true"]
    await asyncio.to_thread(
        subprocess.run, command, check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    return time.perf_counter() - began


async def _cold(provider: SandboxProvider, workspace: Path) -> float:
    began = time.perf_counter()
    sandbox = await provider.provision(Recipe(session_id="cold", workspace=workspace / "cold"))
    await _call(sandbox)
    passed = time.perf_counter() - began
    await sandbox.stop()
    return passed


async def _warm(provider: SandboxProvider, workspace: Path) -> float:
    sandbox = await provider.provision(Recipe(session_id="warm", workspace=workspace / "warm"))
    passed = await _call(sandbox)
    await sandbox.stop()
    return passed


async def _call(sandbox: Sandbox) -> float:
    began = time.perf_counter()
    answer = await sandbox.execute("bash", {"command": "true"})
    passed = time.perf_counter() - began
    assert not answer.is_error, answer
    return passed


async def _told(bash: asyncio.subprocess.Process) -> float:
    assert bash.stdin is not None
    assert bash.stdout is not None
    began = time.perf_counter()
    bash.stdin.write(b"true; echo $?\n")
    assert await bash.stdout.readline() == b"0\n"
    return time.perf_counter() - began


if __name__ == "__main__":
    main(tool_calls, __doc__)
