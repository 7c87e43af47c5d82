"""Where the embedded PostgreSQL keeps its cluster: folders, owner, lock, left-over servers.

Under the data folder:

    postgres.lock        held (flock) by the Corral that runs this cluster; contains its process id
    postgres.location    only if the cluster had to live elsewhere: the path of its home
    postgres/            the home: data/, socket/, postgres.log
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import structlog

from corral.store.binaries import Owner, PostgresError, reachable

_log = structlog.get_logger(__name__)

SOCKET_NAME: Final = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH: Final = 100  # bytes; the kernels take 107 (Linux) and 103 (macOS)
_LOG_LIMIT: Final = 8 * 1024 * 1024
_ORPHAN_SECONDS: Final = 15.0


class Lock:
    """The right to run the cluster of one data folder; the kernel gives it back when its holder dies."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "postgres.lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock at once, or raise `PostgresError` naming the process that has it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise PostgresError(
                f"Another Corral (process {holder}) is running on {self._path.parent}. Use that one, stop it "
                f"(`kill {holder}`), or give this one a folder of its own with --data."
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two holders lock different files."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    @classmethod
    def is_held(cls, data_dir: Path) -> bool:
        """Whether some process holds the lock of ``data_dir`` now."""
        try:
            fd = os.open(data_dir / "postgres.lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


@dataclass(frozen=True)
class Cluster:
    """The folders of one cluster and the user they belong to (None: the present one)."""

    data_dir: Path
    home: Path
    owner: Owner | None

    @property
    def data(self) -> Path:
        """PostgreSQL's own data directory."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """What PostgreSQL says, of this start and some before."""
        return self.home / "postgres.log"

    @property
    def exists(self) -> bool:
        """Whether the cluster has been made; it appears whole or not at all."""
        return (self.data / "PG_VERSION").exists()

    @classmethod
    def locate(cls, data_dir: Path, fallback: Path) -> Self:
        """The cluster of ``data_dir``: inside it, or under ``fallback`` if PostgreSQL's user cannot go there.

        Raises `PostgresError` if a cluster that was there before is out of reach or gone.
        """
        owner = Owner.unprivileged()
        pointer, own = data_dir / "postgres.location", data_dir / "postgres"
        if pointer.exists():
            cluster = cls(data_dir, Path(pointer.read_text("utf-8").strip()), owner)
            if not cluster.exists:
                raise PostgresError(
                    f"{pointer} says that the database is in {cluster.home}, and it is not there. "
                    f"Restore that folder, or remove {pointer} to begin with an empty database."
                )
            return cluster._with_present_owner()
        cluster = cls(data_dir, own, owner)._with_present_owner()
        if reachable(data_dir, cluster.owner):
            return cluster
        if cluster.exists:
            uid = cluster.owner.uid if cluster.owner else os.geteuid()
            raise PostgresError(
                f"PostgreSQL runs as user {uid}, which may not "
                f"enter {data_dir}, where its database is. Allow it: `chmod o+x` on each folder of that path."
            )
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
        home = fallback / f"postgres-{digest}"
        if home.exists():  # of a data folder that had this name before and was deleted
            home = fallback / f"postgres-{digest}-{secrets.token_hex(4)}"
        _log.info(
            "the database lives outside the data folder, which PostgreSQL's user may not enter",
            home=str(home),
            data_dir=str(data_dir),
        )
        return cls(data_dir, home, owner)

    def _with_present_owner(self) -> Self:
        """Root keeps running a cluster as the user who made it."""
        if self.owner is None or not self.exists:
            return self
        status = self.data.stat()
        return type(self)(self.data_dir, self.home, Owner(status.st_uid, status.st_gid))

    def remember(self) -> None:
        """Note where the cluster is, if it is not inside the data folder."""
        if self.home != self.data_dir / "postgres":
            pointer = self.data_dir / "postgres.location"
            fresh = pointer.with_suffix(".new")
            fresh.write_text(f"{self.home}\n", "utf-8")
            fresh.replace(pointer)

    def make_home(self) -> None:
        """Create the home, and clear away what an interrupted start left in it."""
        if self.owner is not None:
            self.home.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        self.home.mkdir(exist_ok=True)
        self.home.chmod(0o711 if self.owner is not None else 0o700)
        for left in self.home.glob("initdb-*"):
            shutil.rmtree(left)

    def give(self, path: Path) -> None:
        """Make ``path`` (a folder, with all in it) belong to the cluster's user, closed to everyone else."""
        path.chmod(0o700)
        if self.owner is None:
            return
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(Path(folder, name), *self.owner, follow_symlinks=False)
        os.chown(path, *self.owner, follow_symlinks=False)

    def open_log(self) -> int:
        """A descriptor that appends to the log, which is begun afresh once it has grown to 8 MB."""
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def last_words(self, since: int) -> str:
        """The log's lines after byte ``since``, at most ten: why a start failed."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(since)
            return "\n".join(log.read()[-8192:].decode("utf-8", "replace").strip().splitlines()[-10:])
        return ""

    def make_socket_folder(self) -> Path:
        """A folder, closed to all but the cluster's user, for the socket; short enough for the kernel."""
        folder = self.home / "socket"
        if len(os.fsencode(folder / SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
            base = Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
            folder = base / f"corral-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid not in (os.geteuid(), self.owner.uid if self.owner else -1):
            folder = Path(tempfile.mkdtemp(prefix="corral-"))  # somebody else has taken the name
        self.give(folder)
        return folder

    def running_url(self) -> str | None:
        """The address of the server that runs on this cluster now, or None."""
        if postmaster(self.data) is None:
            return None
        lines = (self.data / "postmaster.pid").read_text("utf-8", "replace").splitlines()
        return socket_url(Path(lines[4])) if len(lines) > 4 and lines[4] else None


def socket_url(folder: Path, database: str = "corral") -> str:
    """The address of a database on the server whose socket is in ``folder``."""
    return f"postgresql:///{database}?host={quote(str(folder), safe='')}&user=corral"


def running_url(data_dir: Path, fallback: Path) -> str | None:
    """The address of the embedded server that runs on ``data_dir`` now, or None if none does.

    Raises `PostgresError` like `Cluster.locate`.
    """
    if not Lock.is_held(data_dir):
        return None
    return Cluster.locate(data_dir, fallback).running_url()


def postmaster(data: Path) -> int | None:
    """The process id of the server that runs on the cluster ``data``, or None.

    The id in ``postmaster.pid`` alone proves nothing: after a crash another process may have got it.
    """
    try:
        pid = int((data / "postmaster.pid").read_text("utf-8", "replace").split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    if pid <= 0:
        return None
    if sys.platform == "linux":
        try:
            return pid if os.path.samefile(f"/proc/{pid}/cwd", data) else None
        except OSError:
            return None
    told = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return pid if str(data) in told.stdout else None


async def stop_left_over(data: Path) -> None:
    """Stop a server that outlived its Corral, and clear away the mark of one whose id another process has.

    Nothing is lost: the server is asked to shut down, and PostgreSQL recovers from its log otherwise.
    """
    mark = data / "postmaster.pid"
    pid = postmaster(data)
    if pid is None:
        if mark.exists():
            # PostgreSQL trusts the id alone and would refuse to start if it lives again as something else.
            # Its shared memory block, tied to the folder, still guards against children of the dead server.
            _log.info("removing the mark of a PostgreSQL that died", file=str(mark))
            mark.unlink()
        return
    _log.info("stopping a PostgreSQL that was left over", pid=pid)
    deadline = asyncio.get_running_loop().time() + _ORPHAN_SECONDS
    os.kill(pid, signal.SIGINT)
    while postmaster(data) is not None:
        if asyncio.get_running_loop().time() > deadline:
            _log.warning("it does not shut down; stopping it at once", pid=pid)
            os.kill(pid, signal.SIGQUIT)
            deadline += _ORPHAN_SECONDS
        await asyncio.sleep(0.02)
