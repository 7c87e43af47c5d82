"""How fast does a sandbox start, against a process and against bubblewrap alone?

Run with ``make bench`` or ``python benchmarks/sandbox_start.py [--rounds 30]``. Each round starts every kind
once, in turn, so that all meet the same machine. Ratios are what to read; milliseconds vary with the machine.

- fork and exec: ``true``, started and waited for.
- bubblewrap alone: ``true`` in namespaces of its own, on the host's files.
- program: the sandbox program as a plain process, until it says that it is ready.
- program, first call: the same until ``true`` has been answered through bash.
- sandbox: the program in bubblewrap with everything that isolates it, until it is ready.
- sandbox, first call: the same until ``true`` has been answered through bash.
"""

import argparse
import asyncio
import logging
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from corral.hands.sandbox.access import Identity
from corral.hands.sandbox.binary import find_binary
from corral.hands.sandbox.provider import Recipe, SandboxProvider
from corral.hands.sandbox.select import provider_named

_ALONE = ("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")


class Clock:
    """The milliseconds that each kind of start has taken, by its name."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}
        self._begun = 0.0

    def begin(self) -> None:
        """Start the watch."""
        self._begun = time.perf_counter()

    def note(self, name: str) -> None:
        """Write down what has passed since the start."""
        self.taken.setdefault(name, []).append((time.perf_counter() - self._begun) * 1000)


async def _command(clock: Clock, name: str, *command: str) -> None:
    clock.begin()
    await asyncio.to_thread(subprocess.run, command, check=True)
    clock.note(name)


async def _sandbox(clock: Clock, name: str, provider: SandboxProvider, workspace: Path) -> None:
    clock.begin()
    sandbox = await provider.provision(Recipe(session_id="benchmark", workspace=workspace))
    clock.note(name)
    answer = await sandbox.execute("bash", {"command": "true"})
    clock.note(f"{name}, first call")
    await sandbox.stop()
    assert not answer.is_error


async def _measure(rounds: int, folder: Path, binary: Path) -> Mapping[str, list[float]]:
    clock = Clock()
    providers = {"program": provider_named("process"), "sandbox": provider_named("bubblewrap")}
    try:
        for provider in providers.values():
            await provider.probe()
        for _ in range(rounds):
            await _command(clock, "fork and exec", "true")
            await _command(clock, "bubblewrap alone", str(binary), *_ALONE, "true")
            for name, provider in providers.items():
                await _sandbox(clock, name, provider, folder / name)
    finally:
        for provider in providers.values():
            await provider.close()
    return clock.taken


def _print(taken: Mapping[str, list[float]]) -> None:
    process, alone = (statistics.median(taken[name]) for name in ("fork and exec", "bubblewrap alone"))
    print(f"{'':24}{'p50 ms':>10}{'p95 ms':>10}{'of a process':>15}{'of bubblewrap':>15}")
    for name, times in taken.items():
        middle, late = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        print(f"{name:24}{middle:10.1f}{late:10.1f}{middle / process:14.1f}x{middle / alone:14.1f}x")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast a sandbox starts.")
    parser.add_argument("--rounds", type=int, default=30, help="starts of each kind (2 or more)")
    rounds: int = parser.parse_args().rounds
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="corral-benchmark-") as folder:
        Path(folder).chmod(0o711)
        binary, copied = find_binary(Identity.for_sandboxes(), None)
        try:
            _print(asyncio.run(_measure(rounds, Path(folder), binary)))
        finally:
            if copied is not None:
                shutil.rmtree(copied)


if __name__ == "__main__":
    main()
