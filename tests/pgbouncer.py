"""A real PgBouncer in transaction mode, in front of the test's database."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@asynccontextmanager
async def pgbouncer(database_url: str, folder: Path) -> AsyncGenerator[str]:
    """The address that leads to `database_url` through a pooler with two server connections."""
    assert _PROGRAM is not None, "pgbouncer is not installed: apt-get install pgbouncer"
    server = conninfo_to_dict(database_url)
    owner = Path(str(server["host"])).stat()
    folder.chmod(0o700)
    os.chown(folder, owner.st_uid, owner.st_gid)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        "[databases]\n"
        f"* = host={server['host']} port={server.get('port', 5432)} user={server['user']}\n"
        "[pgbouncer]\n"
        f"unix_socket_dir = {folder}\nlisten_addr =\nlisten_port = 6432\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\nserver_reset_query =\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    root = os.geteuid() == 0  # which PgBouncer refuses to be
    process = await asyncio.create_subprocess_exec(
        _PROGRAM,
        "-q",
        str(settings),
        stderr=asyncio.subprocess.DEVNULL,
        user=owner.st_uid if root else None,
        group=owner.st_gid if root else None,
        extra_groups=[] if root else None,
    )
    try:
        url = make_conninfo(database_url, host=str(folder), port="6432")
        await _answering(url)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def _answering(url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await (await psycopg.AsyncConnection.connect(url)).close()
            except psycopg.OperationalError:
                await asyncio.sleep(0.02)
            else:
                return
