"""Sessions at the edges of their limits: the most is taken, one more refused by name (contract 2.5, 8)."""

from collections.abc import Callable
from typing import Any

import pytest
from anthropic import NotFoundError

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_sessions_create import CUSTOM, TOOLSET, create, message
from tests.skills import attached, upload_skill


def metadata(pairs: int, key: int = 2, value: int = 1) -> dict[str, str]:
    """So many pairs, with keys and values of so many characters."""
    return {f"{n:0{key}}": "v" * value for n in range(pairs)}


FULL = metadata(16, key=64, value=512)


async def test_the_largest_title_and_metadata_are_taken_on_create_and_on_update(api: Api) -> None:
    title = "\U0001f40e" * 500  # characters are counted, not bytes
    made = await api.session(title=title, metadata=FULL)
    assert (made["title"], made["metadata"]) == (title, FULL)
    other = await api.session()
    changed = await api.sdk.beta.sessions.update(other["id"], title=title, metadata=dict(FULL))
    assert (changed.title, changed.metadata) == (title, FULL)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"title": "x" * 501}, "title: must have at most 500 characters"),
        ({"title": 5}, "title: Input should be a valid string"),
        ({"metadata": metadata(17)}, "metadata: at most 16 pairs"),
        ({"metadata": metadata(1, key=65)}, "metadata: key"),
        ({"metadata": {"": "v"}}, "metadata: key '' must have 1 to 64 characters"),
        ({"metadata": metadata(1, value=513)}, "metadata.00: must have at most 512 characters"),
        ({"metadata": {"k": 7}}, "metadata.k: Input should be a valid string"),
        ({"metadata": ["k"]}, "metadata"),
    ],
)
async def test_one_too_many_is_refused_with_its_path(api: Api, fields: dict[str, Any], named: str) -> None:
    session = await api.session(title="as it was", metadata={"a": "b"})
    agent, environment = session["agent"]["id"], session["environment_id"]
    for path, body in (
        ("/v1/sessions", {"agent": agent, "environment_id": environment, **fields}),
        (f"/v1/sessions/{session['id']}", fields),
    ):
        response = await api.post(path, body)
        assert response.status_code == 400, response.text
        assert response.headers["x-should-retry"] == "false"
        assert response.json()["error"]["message"].startswith(named), response.text
    [kept] = (await api.get("/v1/sessions")).json()["data"]
    assert (kept["title"], kept["metadata"]) == ("as it was", {"a": "b"})
    assert kept["updated_at"] == session["updated_at"]


async def test_metadata_is_counted_after_the_patch_not_in_it(api: Api) -> None:
    session = await api.session(metadata=FULL)
    [first, *_] = FULL
    update: Callable[..., Any] = api.sdk.beta.sessions.update
    await refused(update(session["id"], metadata={"new": "v"}), "metadata: at most 16 pairs")
    changed = await update(session["id"], metadata={first: None, "new": "v"})
    assert (len(changed.metadata), changed.metadata["new"]) == (16, "v")
    # A key that is not there may be taken away, and an empty text is a text.
    changed = await update(session["id"], metadata={"never there": None, "new": ""})
    assert (len(changed.metadata), changed.metadata["new"]) == (16, "")


async def test_null_is_no_value_of_new_metadata(api: Api) -> None:
    agent = (await api.agent())["id"]
    fields: Any = {"metadata": {"k": None}}
    error = await refused(create(api, agent=agent, **fields), "metadata.k: Input should be a valid string")
    assert error["details"]["error_code"] == "invalid_metadata"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"environment_id": "e" * 129}, "environment_id: must have at most 128 characters"),
        ({"agent": "a" * 129}, "agent"),
        ({"agent": ""}, "agent"),
        ({"agent": {"type": "agent", "id": "a" * 129}}, "agent.id: must have at most 128 characters"),
        ({"agent": {"type": "agent", "id": "a", "version": 2**31}}, "agent.version: must be at most"),
        ({"agent": {"type": "agent", "id": "a", "version": "1"}}, "agent.version: Input should be"),
        ({"agent": {"type": "agent", "id": "a", "version": None}}, "agent.version: Input should be"),
        ({"agent": {"type": "advisor", "id": "a"}}, 'agent.type: "advisor" is not a valid value'),
        ({"vault_ids": ["v"] * 51}, "vault_ids: must have at most 50 items"),
        ({"vault_ids": ["v" * 129]}, "vault_ids[0]"),
        ({"vault_ids": "v"}, "vault_ids: Input should be a valid list"),
        ({"initial_events": {}}, "initial_events: Input should be a valid list"),
        ({"budget": {"type": "limit"}}, "budget.max_list_cost: Field required"),
    ],
)
async def test_a_reference_out_of_bounds_is_named(api: Api, fields: dict[str, Any], named: str) -> None:
    response = await api.post("/v1/sessions", {"agent": "a", "environment_id": "e", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(named), response.text


async def test_an_id_of_the_greatest_length_is_looked_up(api: Api) -> None:
    agent = (await api.agent())["id"]
    missing = create(api, agent=agent, environment_id="e" * 128)
    await refused(missing, "e" * 128, kind=NotFoundError)
    await refused(create(api, agent="a" * 128), "a" * 128, kind=NotFoundError)


async def test_fifty_vaults_are_taken_and_shown_in_their_order(api: Api) -> None:
    vaults = [(await api.sdk.beta.vaults.create(display_name=str(n))).id for n in range(3)]
    agent = (await api.agent())["id"]
    given = [vaults[n % 3] for n in range(50)][::-1]
    made = await create(api, agent=agent, vault_ids=given)
    assert made.vault_ids == given
    [listed] = [one async for one in api.sdk.beta.sessions.list()]
    assert listed.vault_ids == given


async def test_an_archived_vault_makes_no_session(api: Api) -> None:
    agent = (await api.agent())["id"]
    good, gone = [(await api.sdk.beta.vaults.create(display_name=str(n))).id for n in range(2)]
    await api.sdk.beta.vaults.archive(gone)
    await refused(create(api, agent=agent, vault_ids=[good, gone]), f"vault_ids[1]: vault {gone} is archived")
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_an_empty_list_of_resources_is_taken_on_self_hosted_too(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    made = await api.session(environment_id=environment["id"], resources=[], vault_ids=[])
    assert (made["resources"], made["vault_ids"]) == ([], [])


async def test_null_for_what_may_be_left_out_is_as_leaving_it_out(api: Api) -> None:
    nothing = dict.fromkeys(("title", "metadata", "initial_events", "resources", "vault_ids", "budget"))
    made = await api.session(**nothing)
    assert (made["title"], made["metadata"], made["status"]) == (None, {}, "idle")
    assert (made["resources"], made["vault_ids"], made["budget"]) == ([], [], None)


async def test_a_hundred_documents_by_file_id_fit_one_creation(api: Api) -> None:
    file = await api.sdk.files.upload(file=("a.txt", b"words", "text/plain"))
    agent = (await api.agent())["id"]

    def event(documents: int) -> dict[str, Any]:
        document = {"type": "document", "source": {"type": "file", "file_id": file.id}}
        return {"type": "user.message", "content": [document] * documents}

    made = await create(api, agent=agent, initial_events=[event(60), event(40)])
    assert made.status == "running"
    too_many = create(api, agent=agent, initial_events=[event(60), event(41)])
    await refused(too_many, "initial_events: at most 100 documents by file id")
    assert len((await api.sdk.beta.sessions.list()).data) == 1


async def test_a_creation_over_32_megabytes_is_413_and_makes_nothing(api: Api) -> None:
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    body = {"agent": agent, "environment_id": environment, "initial_events": [message("x" * (32 << 20))]}
    response = await api.post("/v1/sessions", body)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"
    assert response.headers["x-should-retry"] == "false"
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_two_outcomes_to_begin_with_make_no_session(api: Api) -> None:
    agent = (await api.agent())["id"]
    outcome = {
        "type": "user.define_outcome",
        "description": "a report",
        "rubric": {"type": "text", "content": "It has figures."},
    }
    two = create(api, agent=agent, initial_events=[outcome, message(), outcome])
    await refused(two, "initial_events[2]: at most one user.define_outcome")
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_a_model_override_takes_the_geography_given_and_clears_it_when_left_out(api: Api) -> None:
    agent = await api.agent(model={"id": "claude-opus-5-5", "inference_geo": "us"})
    assert agent["model"]["inference_geo"] == "us"

    async def geography(**model: Any) -> Any:
        override = {"type": "agent_with_overrides", "id": agent["id"], **model}
        return (await create(api, agent=override)).agent.model.inference_geo

    assert await geography() == "us"
    assert await geography(model={"id": "claude-opus-5-5"}) is None
    assert await geography(model="claude-opus-5-5") is None
    assert await geography(model={"id": "claude-opus-5-5", "inference_geo": "us"}) == "us"


@pytest.mark.parametrize("tools", [[], None, [CUSTOM], [{**TOOLSET, "default_config": {"enabled": False}}]])
async def test_tools_cannot_be_cleared_from_under_the_skills_that_need_reading(api: Api, tools: Any) -> None:
    skills = attached(await upload_skill(api.sdk, "notes"))
    agent = await api.agent(tools=[TOOLSET], skills=skills)
    override: dict[str, Any] = {"type": "agent_with_overrides", "id": agent["id"], "tools": tools}
    await refused(create(api, agent=override), "agent.skills")
    assert (await create(api, agent={**override, "skills": []})).agent.skills == []
