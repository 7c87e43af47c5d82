"""Packs the program that runs inside into one file, so that a sandbox needs no file of Corral's installation.

The file holds the byte code of each module, made once by the interpreter that will run it, and a few lines
that import modules from there. Compiling takes longer than all else that the program does before its first
call, and running an archive instead costs the import of what reads archives.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from corral.hands.sandbox.provider import Limits

# `MODULES` stands before it: name -> source, or its byte code. A module is made when it is first imported.
_START: Final = """
import marshal, sys

class Modules:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in MODULES:
            return None
        return type(sys.__spec__)(name, Modules, origin=name, is_package="." not in name)

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        code = MODULES[module.__name__]
        if isinstance(code, bytes):
            code = marshal.loads(code)
        else:
            code = compile(code, module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)

sys.meta_path.insert(0, Modules)
from inside.main import main
main()
"""

_COMPILE_SECONDS: Final = 20.0

# Takes `[sources, start]` as JSON and gives back what `python3` runs as byte code.
_COMPILE: Final = """
import importlib.util, json, marshal, sys
sources, start = json.load(sys.stdin)
def code(name, text):
    return marshal.dumps(compile(text, name, "exec", dont_inherit=True))
codes = {name: code(name, text) for name, text in sources.items()}
start = code("inside", f"MODULES = {codes!r}\\n{start}")
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + start)
"""


def program_sources() -> dict[str, str]:
    """Return the program's modules: name -> source."""
    sources: dict[str, str] = {}
    for source in resources.files("corral.hands.sandbox.inside").iterdir():
        name, dot, kind = source.name.partition(".")
        if f"{dot}{kind}" == ".py":
            sources["inside" if name == "__init__" else f"inside.{name}"] = source.read_text("utf-8")
    return sources


def packed_program(
    interpreter: Path,
    *,
    user: int | None = None,
    group: int | None = None,
    extra_groups: Sequence[int] | None = None,
) -> bytes:
    """Return the file that `interpreter -I -S` runs; it is run once for that, as `user`. Blocking."""
    sources = program_sources()
    try:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-c", _COMPILE],
            input=json.dumps([sources, _START]).encode("ascii"),
            capture_output=True,
            check=True,
            timeout=_COMPILE_SECONDS,
            env={},
            cwd="/",
            user=user,
            group=group,
            extra_groups=extra_groups,
        )
    except (OSError, subprocess.SubprocessError):
        # Slower, and otherwise the same.
        return f"MODULES = {sources!r}\n{_START}".encode()
    return done.stdout


def program_config(
    workdir: str,
    limits: Limits,
    *,
    own_namespace: bool,
    roots: Sequence[str],
    read_only: Sequence[str],
    egress: str | None = None,
) -> bytes:
    """Return the first line that the program is sent; see `inside.main.Program` for the fields."""
    config = {
        "workdir": workdir,
        "own_namespace": own_namespace,
        "roots": list(roots),
        "read_only": list(read_only),
        "limits": limits.as_rlimits(),
        "egress": egress,
    }
    return json.dumps(config).encode("ascii") + b"\n"
