"""Packs the program that runs inside, so that a sandbox needs no file of Corral's installation."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from importlib import resources

from corral.hands.sandbox.provider import Limits

_START = "from inside.main import main\nmain()\n"


def program_archive() -> bytes:
    """Return the program as a zip archive that `python3 -I -S` runs."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", _START)
        for source in resources.files("corral.hands.sandbox.inside").iterdir():
            if source.name.endswith(".py"):
                archive.writestr(f"inside/{source.name}", source.read_bytes())
    return packed.getvalue()


def program_config(
    workdir: str, limits: Limits, *, own_namespace: bool, roots: Sequence[str], read_only: Sequence[str]
) -> str:
    """Return the program's one argument; see `inside.main.Program` for the fields."""
    return json.dumps(
        {
            "workdir": workdir,
            "own_namespace": own_namespace,
            "roots": list(roots),
            "read_only": list(read_only),
            "limits": limits.as_rlimits(),
        }
    )
