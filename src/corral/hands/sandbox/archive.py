"""Packs the program that runs inside, so that a sandbox needs no file of Corral's installation.

Beside each module is its byte code, made once by the interpreter that will run it: compiling takes longer
than all else that the program does before its first call.
"""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from corral.hands.sandbox.provider import Limits

_START = "from inside.main import main\nmain()\n"

_COMPILE_SECONDS: Final = 20.0

# Takes the archive and gives it back with byte code beside the sources. Its flag says that nobody compares
# the two; an interpreter of another version passes it over and takes the source.
_COMPILE: Final = """
import importlib.util, io, marshal, sys, zipfile
packed = io.BytesIO(sys.stdin.buffer.read())
with zipfile.ZipFile(packed, "a") as archive:
    for name in [name for name in archive.namelist() if name.startswith("inside/")]:
        code = marshal.dumps(compile(archive.read(name), name, "exec", dont_inherit=True))
        archive.writestr(name + "c", importlib.util.MAGIC_NUMBER + b"\\1\\0\\0\\0" + bytes(8) + code)
sys.stdout.buffer.write(packed.getvalue())
"""


def program_archive() -> bytes:
    """Return the program as a zip archive that `python3 -I -S` runs."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", _START)
        for source in resources.files("corral.hands.sandbox.inside").iterdir():
            if source.name.endswith(".py"):
                archive.writestr(f"inside/{source.name}", source.read_bytes())
    return packed.getvalue()


def with_byte_code(
    archive: bytes,
    interpreter: Path,
    *,
    user: int | None = None,
    group: int | None = None,
    extra_groups: Sequence[int] | None = None,
) -> bytes:
    """Return `archive` with byte code for `interpreter`, which is run as `user`; as it is if that fails."""
    try:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-c", _COMPILE],
            input=archive,
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
        return archive
    return done.stdout


def program_config(
    workdir: str,
    limits: Limits,
    *,
    own_namespace: bool,
    roots: Sequence[str],
    read_only: Sequence[str],
    egress: str | None = None,
) -> str:
    """Return the program's one argument; see `inside.main.Program` for the fields."""
    return json.dumps(
        {
            "workdir": workdir,
            "own_namespace": own_namespace,
            "roots": list(roots),
            "read_only": list(read_only),
            "limits": limits.as_rlimits(),
            "egress": egress,
        }
    )
