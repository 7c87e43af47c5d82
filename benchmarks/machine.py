"""What a table of ratios has to say about the machine that they were taken on."""

import asyncio
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psycopg

_MIB = 1024 * 1024


async def described(postgres_url: str, folder: Path) -> list[str]:
    """The machine in lines: processor, memory, kernel, versions, PostgreSQL with its fsync, the disk's."""
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        settings: list[str] = []
        for name in ("server_version", "fsync", "synchronous_commit"):
            cursor = await connection.execute("select current_setting(%s)", (name,))
            row = await cursor.fetchone()
            assert row is not None
            settings.append(str(row[0]))
    synced = await asyncio.to_thread(_sync_milliseconds, folder)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB
    return [
        f"{os.cpu_count()} cores ({_processor()}), {memory / 1024:.0f} GiB of memory",
        f"{platform.system()} {platform.release()}, Python {platform.python_version()},"
        f" uvicorn {version('uvicorn')}, Starlette {version('starlette')}",
        f"PostgreSQL {settings[0]}, embedded, fsync {settings[1]}, synchronous_commit {settings[2]}",
        f"a write of 8 KiB synced to its disk: {synced:.2f} ms, median",
    ]


def today() -> str:
    """The date, as the page shows it."""
    return datetime.now(UTC).date().isoformat()


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with `text` between its marks."""
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}"


def waiting() -> float:
    """How many processes have wanted each core, on average of the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _sync_milliseconds(folder: Path) -> float:
    taken: list[float] = []
    with (folder / "synced").open("wb") as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(8192))
            file.flush()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000
