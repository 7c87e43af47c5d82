"""Behind a pooler in transaction mode (PgBouncer), with an address that goes past it for what needs it."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from anthropic import AsyncAnthropic

from corral.api.app import create_app
from corral.cli.doctor import _own_connections  # pyright: ignore[reportPrivateUsage]
from corral.server import listen, open_services, provider_of, serving
from corral.settings import Inference, Settings
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral
from tests.pgbouncer import pgbouncer


@pytest.fixture
def short_folder() -> Generator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="pgb-") as folder:
        yield Path(folder)


async def test_turns_run_through_a_pooler_in_transaction_mode(
    database_url: str, short_folder: Path, model: ScriptedModel
) -> None:
    settings = Settings(inference=Inference(provider="gateway", base_url=model.base_url))
    async with pgbouncer(database_url, short_folder) as pooled:
        provider = provider_of(settings.inference)
        async with Database(pooled, direct_url=database_url) as database:
            async with open_services(settings, database, provider) as services:
                _, key = await services.keys.create("api", "test")
                async with serving(create_app(services), listen("127.0.0.1", 0)) as base_url:
                    async with AsyncAnthropic(base_url=base_url, api_key=key) as client:
                        corral = Corral(base_url, key, model, database, services, client)
                        session = await corral.session()
                        for word in ("one", "two", "three"):
                            idle = None if word == "one" else (await session.events())[-1].id
                            await session.says("go", script=[{"text": word}])
                            assert (await session.idle(after=idle)).stop_reason.type == "end_turn"
                    services.closing.set()
        await provider.close()


async def test_the_doctor_tells_a_pooler_from_a_server(database_url: str, short_folder: Path) -> None:
    async with pgbouncer(database_url, short_folder) as pooled:
        async with Database(pooled, max_size=1) as through:
            finding = await _own_connections(through)
            assert finding.state == "failure"
            assert "CORRAL_STORE__DIRECT_URL" in (finding.advice or "")
        async with Database(pooled, max_size=1, direct_url=database_url) as past:
            assert (await _own_connections(past)).state == "ok"
