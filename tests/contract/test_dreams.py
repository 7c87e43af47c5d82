"""Dreams as clients ask for them (contract section 21). Nobody works here, so they stay pending."""

from typing import Any

import anthropic
import pytest

from .conftest import Api
from .refusals import refused, undocumented

DREAMS = "/v1/dreams"


async def store(api: Api) -> str:
    return (await api.sdk.beta.memory_stores.create(name="Notes")).id


async def body(api: Api, **fields: Any) -> dict[str, Any]:
    """What creates a dream over a fresh store and a fresh session; fields that are None are left out."""
    inputs = [
        {"type": "memory_store", "memory_store_id": await store(api)},
        {"type": "sessions", "session_ids": [(await api.session())["id"]]},
    ]
    whole = {"inputs": inputs, "model": "claude-opus-5", **fields}
    return {name: value for name, value in whole.items() if value is not None}


async def dream(api: Api, **fields: Any) -> Any:
    return await api.sdk.beta.dreams.create(**await body(api, **fields))


async def ended(api: Api, dream_id: str, status: str) -> None:
    error = "'internal_error', 'It broke.'" if status == "failed" else "null, null"
    query: Any = (
        "update dreams set status = %s, ended_at = now(), stopped_at = now(),"
        f" (error_type, error_message) = row({error}) where id = %s"
    )
    await api.database.execute(query, (status, dream_id))


async def test_a_dream_begins_as_pending_and_shows_what_it_was_given(api: Api) -> None:
    given = await body(
        api, instructions="Focus on style.", model={"id": "claude-opus-5", "speed": "standard"}
    )
    made = await api.sdk.beta.dreams.create(**given)
    assert made.id.startswith("drm_")
    assert made.to_dict() == {
        "id": made.id,
        "type": "dream",
        "status": "pending",
        "inputs": given["inputs"],
        "outputs": [],
        "model": {"id": "claude-opus-5", "speed": "standard"},
        "instructions": "Focus on style.",
        "output_behavior": {"type": "create_new"},
        "session_id": None,
        "error": None,
        "usage": {
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        },
        "created_at": made.to_dict()["created_at"],
        "ended_at": None,
        "archived_at": None,
    }
    assert await api.sdk.beta.dreams.retrieve(made.id) == made
    assert undocumented(made) == []


async def test_the_model_may_be_a_bare_id_and_sessions_come_back_sorted(api: Api) -> None:
    given = await body(api)
    more = [(await api.session())["id"] for _ in range(3)]
    given["inputs"][1]["session_ids"] = sorted([*given["inputs"][1]["session_ids"], *more], reverse=True)
    given["inputs"].reverse()
    made = await api.sdk.beta.dreams.create(**given)
    assert made.model.to_dict() == {"id": "claude-opus-5", "speed": "standard"}
    shown: Any = made.inputs[1]
    assert shown.session_ids == sorted(given["inputs"][0]["session_ids"])


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"inputs": []}, ["inputs: needs exactly one memory_store entry and exactly one sessions entry"]),
        ({"inputs": None}, ["inputs: Field required"]),
        ({"inputs": [{"type": "memory_store", "memory_store_id": "a"}] * 2}, ["inputs: needs exactly one"]),
        ({"inputs": [{"type": "sessions", "session_ids": ["a"]}] * 2}, ["inputs: needs exactly one"]),
        ({"inputs": [{"type": "files"}]}, ["inputs[0]"]),
        ({"model": None}, ["model: Field required"]),
        ({"model": ""}, ["model: must have at least 1 characters"]),
        ({"model": "m" * 257}, ["model: must have at most 256 characters"]),
        ({"model": {"id": "claude-opus-5", "speed": "fast"}}, ["model.speed", '"fast"']),
        ({"instructions": ""}, ["instructions: must have at least 1 characters"]),
        ({"instructions": "i" * 4097}, ["instructions: must have at most 4096 characters"]),
        ({"output_behavior": {"type": "overwrite"}}, ["output_behavior"]),
        ({"output_behavior": {"type": "update_existing"}}, ["output_behavior.memory_store_id: Field"]),
        (
            {"output_behavior": {"type": "update_existing", "memory_store_id": "memstore_other"}},
            ["output_behavior.memory_store_id: must be the memory store in inputs"],
        ),
        ({"budget": 3}, ["budget: Extra inputs are not permitted"]),
    ],
)
async def test_a_request_that_breaks_a_rule_is_refused_with_the_path(
    api: Api, fields: dict[str, Any], parts: list[str]
) -> None:
    whole = {**await body(api), **fields}
    response = await api.post(DREAMS, {name: value for name, value in whole.items() if value is not None})
    assert response.status_code == 400, response.text
    for part in parts:
        assert part in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("count", "part"), [(0, "must have at least 1 items"), (101, "must have at most 100 items")]
)
async def test_a_dream_reads_1_to_100_sessions(api: Api, count: int, part: str) -> None:
    given = await body(api)
    given["inputs"][1]["session_ids"] = [f"sesn_{n}" for n in range(count)]
    await refused(api.sdk.beta.dreams.create(**given), "inputs[", "session_ids: ", part)


async def test_a_session_counts_once(api: Api) -> None:
    given = await body(api)
    given["inputs"][1]["session_ids"] *= 2
    await refused(api.sdk.beta.dreams.create(**given), "inputs[1].session_ids[1]: ", "more than once")


async def test_what_a_dream_reads_must_be_there(api: Api) -> None:
    dreams = api.sdk.beta.dreams
    given = await body(api)
    given["inputs"][0]["memory_store_id"] = "memstore_none"
    await refused(dreams.create(**given), "inputs[0].memory_store_id: ", kind=anthropic.NotFoundError)
    given = await body(api)
    given["inputs"][1]["session_ids"].append("sesn_none")
    await refused(dreams.create(**given), "inputs[1].session_ids[1]: ", kind=anthropic.NotFoundError)
    given = await body(api)
    await api.sdk.beta.memory_stores.archive(given["inputs"][0]["memory_store_id"])
    await refused(dreams.create(**given), "inputs[0].memory_store_id: ", "archived")


async def test_sessions_that_are_archived_can_be_dreamt_about(api: Api) -> None:
    given = await body(api)
    await api.sdk.beta.sessions.archive(given["inputs"][1]["session_ids"][0])
    assert (await api.sdk.beta.dreams.create(**given)).status == "pending"


async def test_one_dream_at_a_time_updates_a_store(api: Api) -> None:
    dreams = api.sdk.beta.dreams
    given = await body(api)
    updating: Any = {"type": "update_existing", "memory_store_id": given["inputs"][0]["memory_store_id"]}
    first = await dreams.create(**given, output_behavior=updating)
    assert first.output_behavior.to_dict() == updating
    await refused(
        dreams.create(**given, output_behavior=updating), "has not stopped", kind=anthropic.ConflictError
    )
    # Copies of it may be made meanwhile, and other stores updated.
    await dreams.create(**given)
    other = await body(api)
    there: Any = {"type": "update_existing", "memory_store_id": other["inputs"][0]["memory_store_id"]}
    await dreams.create(**other, output_behavior=there)
    await dreams.cancel(first.id)
    assert (await dreams.create(**given, output_behavior=updating)).status == "pending"


async def test_a_dream_that_has_ended_but_not_stopped_keeps_its_store(api: Api) -> None:
    given = await body(api)
    updating: Any = {"type": "update_existing", "memory_store_id": given["inputs"][0]["memory_store_id"]}
    first = await api.sdk.beta.dreams.create(**given, output_behavior=updating)
    await api.database.execute("update dreams set status = 'running' where id = %s", (first.id,))
    assert (await api.sdk.beta.dreams.cancel(first.id)).status == "canceled"
    again = api.sdk.beta.dreams.create(**given, output_behavior=updating)
    await refused(again, "has not stopped", kind=anthropic.ConflictError)


async def test_cancelling_ends_a_dream_that_has_not_ended(api: Api) -> None:
    dreams = api.sdk.beta.dreams
    made = await dream(api)
    canceled = await dreams.cancel(made.id)
    assert canceled.status == "canceled"
    assert canceled.ended_at is not None
    assert await dreams.cancel(made.id) == canceled
    for status in ("completed", "failed"):
        over = await dream(api)
        await ended(api, over.id, status)
        await refused(dreams.cancel(over.id), over.id, status)


async def test_only_a_dream_that_has_ended_can_be_archived_and_its_status_stays(api: Api) -> None:
    dreams = api.sdk.beta.dreams
    made = await dream(api)
    await refused(dreams.archive(made.id), made.id, "pending", "Cancel it first")
    await ended(api, made.id, "failed")
    archived = await dreams.archive(made.id)
    assert (archived.status, archived.error) == ("failed", (await dreams.retrieve(made.id)).error)
    assert archived.error is not None
    assert (archived.error.type, archived.error.message) == ("internal_error", "It broke.")
    assert archived.archived_at is not None
    assert await dreams.archive(made.id) == archived
    assert await dreams.retrieve(made.id) == archived


async def test_a_dream_that_is_unknown_is_not_found(api: Api) -> None:
    dreams = api.sdk.beta.dreams
    for request in (dreams.retrieve("drm_none"), dreams.cancel("drm_none"), dreams.archive("drm_none")):
        await refused(request, "drm_none", kind=anthropic.NotFoundError)


async def test_a_list_comes_newest_first_and_can_be_narrowed(api: Api) -> None:
    dreams = api.sdk.beta.dreams
    made = [await dream(api) for _ in range(4)]
    ids = [one.id for one in made]
    assert [one.id async for one in dreams.list(limit=1)] == ids[::-1]
    await dreams.cancel(ids[0])
    await ended(api, ids[1], "completed")
    assert [one.id async for one in dreams.list(statuses=["canceled", "completed"])] == [ids[1], ids[0]]
    between = dreams.list(created_at_gt=made[0].created_at, created_at_lt=made[3].created_at)
    assert [one.id async for one in between] == [ids[2], ids[1]]
    await dreams.archive(ids[0])
    assert [one.id async for one in dreams.list()] == [ids[3], ids[2], ids[1]]
    assert [one.id async for one in dreams.list(include_archived=True)] == ids[::-1]


async def test_a_list_refuses_what_it_does_not_know(api: Api) -> None:
    for query, part in (
        ({"statuses[]": "asleep"}, "statuses: "),
        ({"limit": "101"}, "limit: "),
        ({"page": "x"}, "invalid page cursor"),
        ({"created_at[gt]": "yesterday"}, "created_at[gt]: "),
    ):
        response = await api.get(DREAMS, params=query)
        assert response.status_code == 400
        assert part in response.json()["error"]["message"]


async def test_strict_mode_asks_for_the_header_of_dreams_alone(strict_api: Api) -> None:
    assert [one async for one in strict_api.sdk.beta.dreams.list()] == []
    other = await strict_api.get(DREAMS, headers={"anthropic-beta": "managed-agents-2026-04-01"})
    assert other.status_code == 404


async def test_workers_see_no_dreams(api: Api) -> None:
    environment = await api.environment()
    async with api.client(await api.environment_key(environment["id"])) as worker:
        await refused(worker.beta.dreams.retrieve("drm_none"), kind=anthropic.PermissionDeniedError)
