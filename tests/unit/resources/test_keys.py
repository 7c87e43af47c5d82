"""Keys are shown once, stored hashed, bound to their kind, and revoked at once."""

import pytest

from corral.resources.keys import Keys
from corral.store.database import Database
from corral.wire.errors import InvalidRequest, NotFound


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


async def an_environment(database: Database, environment_id: str = "env_01test") -> str:
    await database.execute(
        "insert into environments (id, name, config) values (%s, 'test', '{}')", (environment_id,)
    )
    return environment_id


@pytest.mark.parametrize(("kind", "mark"), [("api", "corral_ak_"), ("pool", "corral_pk_")])
async def test_a_created_key_verifies_as_itself(keys: Keys, kind: str, mark: str) -> None:
    assert kind in ("api", "pool")
    key, text = await keys.create(kind, "mine")
    assert text.startswith(mark)
    assert await keys.verify(text) == key
    assert (key.kind, key.name, key.environment_id, key.revoked_at) == (kind, "mine", None, None)


async def test_an_environment_key_carries_its_environment(keys: Keys, database: Database) -> None:
    environment_id = await an_environment(database)
    key, text = await keys.create("environment", "worker", environment_id)
    assert text.startswith("corral_ek_")
    assert key.id.startswith("ekey_")
    verified = await keys.verify(text)
    assert verified is not None
    assert verified.environment_id == environment_id


async def test_the_key_itself_is_nowhere_in_the_database(keys: Keys, database: Database) -> None:
    _, text = await keys.create("api", "mine")
    rows = await database.fetch("select keys::text as row from keys")
    assert rows
    assert not any(text in row["row"] or text.removeprefix("corral_ak_") in row["row"] for row in rows)


async def test_a_revoked_key_stops_at_once_and_revoking_again_is_no_error(keys: Keys) -> None:
    key, text = await keys.create("api", "mine")
    revoked = await keys.revoke(key.id)
    assert revoked.revoked_at is not None
    assert await keys.verify(text) is None
    assert await keys.revoke(key.id) == revoked


@pytest.mark.parametrize("token", ["", "corral_ak_", "corral_ak_unknown", "\udcff", "x\x00y", "x" * 10_000])
async def test_an_unknown_token_is_none(keys: Keys, token: str) -> None:
    await keys.create("api", "mine")
    assert await keys.verify(token) is None


async def test_revoking_an_unknown_key_is_not_found(keys: Keys) -> None:
    with pytest.raises(NotFound, match="apikey_01none"):
        await keys.revoke("apikey_01none")
    key, text = await keys.create("api", "mine")
    with pytest.raises(NotFound, match="no pool key"):
        await keys.revoke(key.id, "pool")
    assert await keys.verify(text) == key


async def test_an_environment_key_needs_a_living_environment(keys: Keys, database: Database) -> None:
    with pytest.raises(NotFound):
        await keys.create("environment", "worker", "env_01none")
    environment_id = await an_environment(database)
    await database.execute("update environments set archived_at = now() where id = %s", (environment_id,))
    with pytest.raises(NotFound):
        await keys.create("environment", "worker", environment_id)


async def test_only_an_environment_key_has_an_environment(keys: Keys) -> None:
    with pytest.raises(InvalidRequest):
        await keys.create("environment", "worker")
    with pytest.raises(InvalidRequest):
        await keys.create("api", "mine", "env_01")


async def test_keys_are_listed_newest_first_with_revoked_ones(keys: Keys, database: Database) -> None:
    first, _ = await keys.create("api", "first")
    second, _ = await keys.create("api", "second")
    await keys.create("pool", "other kind")
    await keys.revoke(first.id)
    listed = await keys.list("api")
    assert [key.id for key in listed] == [second.id, first.id]
    assert listed[1].revoked_at is not None
    one, other = await an_environment(database, "env_01a"), await an_environment(database, "env_01b")
    key, _ = await keys.create("environment", "worker", one)
    await keys.create("environment", "worker", other)
    assert [found.id for found in await keys.list("environment", one)] == [key.id]


async def test_a_given_key_is_made_known_once(keys: Keys) -> None:
    first = await keys.ensure("api", "an-operators-own-key", "bootstrap")
    assert await keys.ensure("api", "an-operators-own-key", "bootstrap") == first
    assert await keys.verify("an-operators-own-key") == first
    assert len(await keys.list("api")) == 1


async def test_a_given_key_that_was_revoked_stays_revoked(keys: Keys) -> None:
    key = await keys.ensure("api", "an-operators-own-key", "bootstrap")
    await keys.revoke(key.id)
    with pytest.raises(InvalidRequest, match="has been revoked"):
        await keys.ensure("api", "an-operators-own-key", "bootstrap")
    assert await keys.verify("an-operators-own-key") is None


async def test_a_given_key_keeps_its_kind(keys: Keys) -> None:
    await keys.ensure("api", "an-operators-own-key", "bootstrap")
    with pytest.raises(InvalidRequest, match="in use already as api key"):
        await keys.ensure("pool", "an-operators-own-key", "pool")


async def test_a_short_given_key_is_refused_without_repeating_it(keys: Keys) -> None:
    with pytest.raises(InvalidRequest, match="too short") as error:
        await keys.ensure("api", "hunter2", "bootstrap")
    assert "hunter2" not in str(error.value)
