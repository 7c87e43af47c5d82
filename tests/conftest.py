"""What all tests share: a real PostgreSQL for the run, and a fresh, migrated database for each test.

The cluster differs from the real one in one point: it does not sync to disk, since no test pulls the plug.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from corral.store.database import Database
from corral.store.embedded import EmbeddedPostgres
from tests.databases import CleanDatabases


@pytest.fixture(scope="session", autouse=True)
def _an_environment_without_settings() -> None:
    for name in list(os.environ):
        if name.startswith(("CORRAL_", "ANTHROPIC_")):
            del os.environ[name]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Whoever configures logs gives them a stream of the test's own, which is closed after it."""
    root = logging.getLogger()
    handlers, level, config = list(root.handlers), root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """An empty folder that PostgreSQL's user and a sandbox's may enter (pytest's own is closed to them)."""
    folder = Path(tempfile.mkdtemp(prefix="corral-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_url() -> AsyncIterator[str]:
    """The address of a running PostgreSQL; one cluster per test process, gone at its end."""
    folder = Path(tempfile.mkdtemp(prefix="corral-test-"))
    folder.chmod(0o711)
    async with EmbeddedPostgres(
        folder / "data", settings={"fsync": "off", "max_connections": "200"}
    ) as server:
        yield server.url
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def clean_databases(postgres_url: str) -> CleanDatabases:
    """The databases of this run, handed out clean."""
    databases = CleanDatabases(postgres_url)
    await databases.prepare()
    return databases


@pytest.fixture
def database_url(clean_databases: CleanDatabases) -> Iterator[str]:
    """The address of an empty database with the present schema, which no other test sees."""
    url = clean_databases.take()
    yield url
    clean_databases.give_back(url)


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An empty, migrated database of the test's own, open."""
    async with Database(database_url) as opened:
        yield opened
