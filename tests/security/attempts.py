"""What the attacks share: a hostile program, run inside a real sandbox, that says what it got.

A program prints `GOT` and what it got if it gets anywhere, and `TRIED` at its end; so one that broke down on
its way is not taken for one that was held.
"""

import platform
import textwrap
from pathlib import Path

from corral.hands.sandbox.seccomp import ARCHITECTURES
from tests.unit.hands.sandbox.given import Hands

PRELUDE = """
import ctypes, errno, fcntl, mmap, os, platform, resource, signal, socket, stat, struct, subprocess, sys
import threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *given):
    value = libc.syscall(NUMBERS[name], *given)
    return value if value >= 0 else -ctypes.get_errno()
def attempt(what, act):
    try:
        got = act()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print('refused:', what, error)
    else:
        if got is not None and got is not False and not (type(got) is int and got < 0):
            print('GOT', what, repr(got)[:300])
        else:
            print('refused:', what, got)
"""


def program(script: str) -> str:
    """The whole program of an attack; `attempt(what, act)` reports whatever `act` returns as got."""
    numbers = ARCHITECTURES[platform.machine()].numbers
    return f"NUMBERS = {numbers!r}\n{PRELUDE}\n{textwrap.dedent(script)}\nprint('TRIED')\n"


async def try_it(ours: Hands, script: str, **input: int) -> str:
    """Run an attack in the sandbox; returns all that it printed."""
    (ours.workspace / "attack.py").write_text(program(script))
    return (await ours.bash("python3 /workspace/attack.py 2>&1", **input)).text


def got_nothing(printed: str) -> bool:
    """Whether an attack was tried to its end and got nothing."""
    return "GOT" not in printed and printed.rstrip().endswith("TRIED")


def marker(folder: Path, name: str = "secret", content: str = "the-host's-secret") -> Path:
    """A file of the host's that the attacker is after. Anyone may read it: only the walls are in the way."""
    path = folder / name
    path.write_text(content)
    path.chmod(0o666)
    return path
