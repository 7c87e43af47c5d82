"""Dreams at their bounds and in each status (contract 21). Nobody works here, so they stay pending."""

from typing import Any

import pytest

from .kinds import Ground, ground, ok

__all__ = ["ground"]
DREAMS = "/v1/dreams"
STATUSES = ("pending", "running", "completed", "failed", "canceled")
ENDED = STATUSES[2:]


def body(ground: Ground, **fields: Any) -> dict[str, Any]:
    inputs = [
        {"type": "memory_store", "memory_store_id": ground.store},
        {"type": "sessions", "session_ids": [ground.session]},
    ]
    return {"inputs": inputs, "model": "claude-opus-5", **fields}


async def dream(ground: Ground, status: str = "pending") -> str:
    """The path of a new dream that is said to be at a status."""
    made = await ground.made(DREAMS, body(ground))
    error = ("'internal_error'", "'It broke.'") if status == "failed" else ("null", "null")
    ended = "now()" if status in ENDED else "null"
    query: Any = (
        f"update dreams set status = %s, ended_at = {ended}, stopped_at = {ended},"
        f" error_type = {error[0]}, error_message = {error[1]} where id = %s"
    )
    await ground.api.database.execute(query, (status, made["id"]))
    return f"{DREAMS}/{made['id']}"


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ({"model": "m" * 256}, {"model": "m" * 257}, "model: must have at most 256 characters"),
        ({"model": "m"}, {"model": ""}, "model: must have at least 1 characters"),
        (
            {"model": {"id": "m" * 256, "speed": None}},
            {"model": {"id": "m" * 257}},
            "model.id: must have at most 256 characters",
        ),
        ({"model": {"id": "m"}}, {"model": {"speed": "standard"}}, "model.id: Field required"),
        ({"model": {"id": "m"}}, {"model": {"id": "m", "effort": "low"}}, "model.effort: Extra inputs"),
        ({"instructions": "i" * 4096}, {"instructions": "i" * 4097}, "instructions: must have at most 4096"),
        ({"instructions": "i"}, {"instructions": ""}, "instructions: must have at least 1 characters"),
        ({"instructions": None}, {"instructions": 1}, "instructions: Input should be a valid string"),
        (
            {"output_behavior": {"type": "create_new"}},
            {"output_behavior": {"type": "create_new", "name": "x"}},
            "output_behavior.name: Extra inputs are not permitted",
        ),
        ({}, {"output_behavior": None}, "output_behavior: Input should be a valid object"),
        ({}, {"metadata": {}}, "metadata: Extra inputs are not permitted"),
        ({}, {"inputs": {}}, "inputs: Input should be a valid list"),
    ],
)
async def test_each_bound_is_taken_and_one_more_refused(
    ground: Ground, good: dict[str, Any], bad: dict[str, Any], said: str
) -> None:
    response = await ground.api.post(DREAMS, body(ground, **bad))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(said), response.text
    assert (await ground.made(DREAMS, body(ground, **good)))["status"] == "pending"


async def test_a_hundred_sessions_are_read_and_echoed_sorted(ground: Ground) -> None:
    where = {"agent": ground.agent, "environment_id": ground.environment}
    ids = [ground.session, *[(await ground.made("/v1/sessions", where))["id"] for _ in range(100)]]
    given = body(ground)
    given["inputs"][1]["session_ids"] = ids[::-1]
    response = await ground.api.post(DREAMS, given)
    assert response.status_code == 400
    said = "inputs[1].session_ids: must have at most 100 items"
    assert response.json()["error"]["message"].startswith(said), response.text
    given["inputs"][1]["session_ids"] = ids[:0:-1]
    made = await ground.made(DREAMS, given)
    assert made["inputs"][1] == {"type": "sessions", "session_ids": sorted(ids[1:])}
    assert await ok(ground.api.get(f"{DREAMS}/{made['id']}")) == made


@pytest.mark.parametrize("status", STATUSES)
async def test_what_cancelling_does_in_each_status(ground: Ground, status: str) -> None:
    after = None if status in ("completed", "failed") else "canceled"
    path = await dream(ground, status)
    before = await ok(ground.api.get(path))
    response = await ground.api.post(f"{path}/cancel")
    if after is None:
        assert (response.status_code, status in response.json()["error"]["message"]) == (400, True)
        assert await ok(ground.api.get(path)) == before
        return
    assert (response.status_code, response.json()["status"]) == (200, after)
    assert response.json()["ended_at"] is not None
    again = await ok(ground.api.post(f"{path}/cancel"))
    assert again == response.json()
    if status == after:
        assert again == before


@pytest.mark.parametrize("status", STATUSES)
async def test_what_archiving_does_in_each_status(ground: Ground, status: str) -> None:
    path = await dream(ground, status)
    before = await ok(ground.api.get(path))
    response = await ground.api.post(f"{path}/archive")
    if status not in ENDED:
        assert (response.status_code, status in response.json()["error"]["message"]) == (400, True)
        assert await ok(ground.api.get(path)) == before
        return
    archived = response.json()
    assert archived["archived_at"] is not None
    assert {**archived, "archived_at": None} == before
    assert await ok(ground.api.post(f"{path}/archive")) == archived
    assert await ok(ground.api.get(path)) == archived
    cancelled = await ground.api.post(f"{path}/cancel")
    assert cancelled.status_code == (200 if status == "canceled" else 400)


async def test_a_list_is_narrowed_by_several_statuses_and_times_without_their_bounds(ground: Ground) -> None:
    paths = {status: await dream(ground, status) for status in STATUSES}
    dreams = {status: await ok(ground.api.get(path)) for status, path in paths.items()}

    async def listed(**query: Any) -> list[str]:
        found = await ok(ground.api.get(DREAMS, params=query))
        return [one["status"] for one in found["data"]]

    assert await listed() == list(STATUSES[::-1])
    for status in STATUSES:
        assert await listed(**{"statuses[]": status}) == [status] == await listed(statuses=status)
    assert await listed(**{"statuses[]": ["pending", "failed", "pending"]}) == ["failed", "pending"]
    bounds = {
        "created_at[gt]": dreams["pending"]["created_at"],
        "created_at[lt]": dreams["canceled"]["created_at"],
    }
    assert await listed(**bounds) == ["failed", "completed", "running"]


async def test_inputs_of_another_kind_or_another_name_are_refused_by_their_path(ground: Ground) -> None:
    given = body(ground)
    cases: tuple[tuple[list[Any], str], ...] = (
        ([given["inputs"][0]], "inputs: needs exactly one memory_store entry and exactly one sessions entry"),
        ([*given["inputs"], given["inputs"][1]], "inputs: needs exactly one memory_store entry"),
        ([given["inputs"][0], {"type": "files", "ids": []}], 'inputs[1].type: "files" is not a valid value'),
        ([{**given["inputs"][0], "access": "x"}, given["inputs"][1]], "inputs[0].access: Extra inputs"),
        ([{"type": "memory_store"}, given["inputs"][1]], "inputs[0].memory_store_id: Field required"),
        (
            [given["inputs"][0], {"type": "sessions", "session_ids": [""]}],
            "inputs[1].session_ids[0]: must have",
        ),
        (
            [given["inputs"][0], {"type": "sessions", "session_ids": "all"}],
            "inputs[1].session_ids: Input should",
        ),
    )
    for inputs, said in cases:
        response = await ground.api.post(DREAMS, {**given, "inputs": inputs})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    wrong = body(ground)
    wrong["inputs"][0]["memory_store_id"] = ground.vault
    assert (await ground.api.post(DREAMS, wrong)).status_code == 404
    assert (await ok(ground.api.get(DREAMS)))["data"] == []
