"""How agents and sessions refer to skills, and who may read those (contract 17)."""

import io
import zipfile
from pathlib import PurePosixPath
from typing import Any

import pytest
from anthropic import NotFoundError

from tests.conformance.premises import token_of
from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.skills import skill_files

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}


async def made(api: Api, name: str = "my-skill") -> Any:
    return await api.sdk.beta.skills.create(files=skill_files(name))


async def test_an_agent_keeps_latest_and_a_session_pins_it(api: Api) -> None:
    skill = await made(api)
    agent = await api.agent(tools=[TOOLSET], skills=[{"type": "custom", "skill_id": skill.id}])
    assert agent["skills"] == [{"type": "custom", "skill_id": skill.id, "version": "latest"}]
    before = await api.session(agent=agent["id"])
    second = await api.sdk.beta.skills.versions.create(skill.id, files=skill_files("my-skill"))
    after = await api.session(agent=agent["id"])
    assert [s["agent"]["skills"][0]["version"] for s in (before, after)] == [
        skill.latest_version_id,
        second.id,
    ]
    shown = await api.sdk.beta.sessions.retrieve(after["id"])
    assert undocumented(shown) == []


async def test_a_version_can_be_pinned(api: Api) -> None:
    skill = await made(api)
    await api.sdk.beta.skills.versions.create(skill.id, files=skill_files("my-skill"))
    pin = {"type": "custom", "skill_id": skill.id, "version": skill.latest_version_id}
    agent = await api.agent(tools=[TOOLSET], skills=[pin])
    assert agent["skills"] == [pin]
    assert (await api.session(agent=agent["id"]))["agent"]["skills"] == [pin]


async def test_a_skill_of_the_vendors_is_one_that_was_uploaded_under_its_name(api: Api) -> None:
    wanted = {"type": "anthropic", "skill_id": "xlsx"}
    body = {"name": "A", "model": "m", "tools": [TOOLSET], "skills": [wanted]}
    response = await api.post("/v1/agents", body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"].startswith("skills[0].skill_id: there is no skill named 'xlsx' here.")
    assert error["details"]["error_code"] == "skill_not_found"
    older, newer = await made(api, "xlsx"), await made(api, "xlsx")
    agent = await api.agent(tools=[TOOLSET], skills=[wanted])
    assert agent["skills"] == [{**wanted, "version": "latest"}]
    [pinned] = (await api.session(agent=agent["id"]))["agent"]["skills"]
    assert pinned == {**wanted, "version": newer.latest_version_id}
    version = await api.sdk.beta.skills.versions.retrieve(pinned["version"], skill_id="xlsx")
    assert version.skill_id == newer.id != older.id
    # A reference by id does not go by the name.
    body["skills"] = [{"type": "custom", "skill_id": "xlsx"}]
    assert "skill xlsx not found" in (await api.post("/v1/agents", body)).text


@pytest.mark.parametrize(
    ("tools", "chosen", "message"),
    [
        ([TOOLSET], ["skill_x"], "skills[0].skill_id: skill skill_x not found"),
        ([TOOLSET], ["A", "A"], 'skills[1].skill_id: "skill_'),
        ([TOOLSET], ["A", "A2"], "skills[1].skill_id: the name of this skill is 'a'"),
        ([TOOLSET], ["A/skver_x"], "skills[0].version: skill skill_"),
        ([], ["A"], "skills: skills need the read tool"),
        (
            [{**TOOLSET, "configs": [{"name": "read", "enabled": False}]}],
            ["A"],
            "skills: skills need the read tool",
        ),
        ([TOOLSET], [f"skill_{n}" for n in range(501)], "skills: at most 500 skills"),
    ],
)
async def test_skills_that_an_agent_cannot_have(
    api: Api, tools: list[Any], chosen: list[str], message: str
) -> None:
    ids = {"A": (await made(api, "a")).id, "A2": (await made(api, "a")).id}

    def reference(text: str) -> dict[str, Any]:
        name, _, version = text.partition("/")
        return {"type": "custom", "skill_id": ids.get(name, name), "version": version or None}

    skills = [reference(text) for text in chosen]
    body = {"name": "A", "model": "m", "tools": tools, "skills": skills}
    response = await api.post("/v1/agents", body)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    # The same for an agent that is changed and for one that a session overrides.
    agent = await api.agent(tools=tools)
    changed = await api.post(f"/v1/agents/{agent['id']}", {"skills": skills})
    assert (changed.status_code, changed.json()["error"]["message"]) == (
        400,
        response.json()["error"]["message"],
    )
    overridden = await api.post(
        "/v1/sessions",
        {
            "agent": {"type": "agent_with_overrides", "id": agent["id"], "skills": skills},
            "environment_id": (await api.environment())["id"],
        },
    )
    assert overridden.status_code == 400
    assert overridden.json()["error"]["message"].startswith("agent.skills")


async def test_a_deleted_skill_is_found_missing_by_the_next_session(api: Api) -> None:
    skill = await made(api)
    agent = await api.agent(tools=[TOOLSET], skills=[{"type": "custom", "skill_id": skill.id}])
    running = await api.session(agent=agent["id"])
    await api.sdk.beta.skills.delete(skill.id)
    environment = await api.environment()
    response = await api.post("/v1/sessions", {"agent": agent["id"], "environment_id": environment["id"]})
    assert response.status_code == 400, response.text
    assert f"agent.skills[0].skill_id: skill {skill.id} not found" in response.text
    # What exists goes on, and the agent can still be changed, and cleared of it.
    assert (await api.sdk.beta.sessions.retrieve(running["id"])).agent.skills[0].skill_id == skill.id
    renamed = await api.sdk.beta.agents.update(agent["id"], name="Other")
    assert renamed.skills[0].skill_id == skill.id
    assert (await api.sdk.beta.agents.update(agent["id"], skills=[])).skills == []


async def test_a_session_keeps_the_read_tool_as_long_as_it_has_skills(api: Api) -> None:
    skill = await made(api)
    agent = await api.agent(tools=[TOOLSET], skills=[{"type": "custom", "skill_id": skill.id}])
    session = await api.session(agent=agent["id"])
    without: Any = {"tools": []}
    await refused(api.sdk.beta.sessions.update(session["id"], agent=without), "agent.skills", "read")
    override: dict[str, Any] = {"type": "agent_with_overrides", "id": agent["id"], "tools": []}
    body: Any = {"agent": override, "environment_id": (await api.environment())["id"]}
    assert (await api.post("/v1/sessions", body)).status_code == 400
    override["skills"] = []
    assert (await api.post("/v1/sessions", body)).json()["agent"]["skills"] == []


async def test_a_worker_gets_the_skills_of_its_sessions_and_no_others(api: Api) -> None:
    attached, other = await made(api), await made(api, "other")
    agent = await api.agent(tools=[TOOLSET], skills=[{"type": "custom", "skill_id": attached.id}])
    self_hosted = await api.environment(config={"type": "self_hosted"})
    await api.session(agent=agent["id"], environment_id=self_hosted["id"])
    empty = await api.environment(config={"type": "self_hosted"})
    key = await api.environment_key(self_hosted["id"])
    item = await api.services.work.poll(self_hosted["id"], worker_id="w")
    assert item is not None
    foreign = await api.environment_key(empty["id"])
    holders = ((key, True), (token_of(item), True), (foreign, False), (await api.pool_key(), False))
    for credential, reaches in holders:
        async with api.client(credential) as client:
            versions = client.beta.skills.versions
            if reaches:
                assert (await versions.retrieve("latest", skill_id=attached.id)).name == "my-skill"
                found = await versions.download(attached.latest_version_id, skill_id=attached.id)
                assert PurePosixPath(zipfile.ZipFile(io.BytesIO(await found.read())).namelist()[0]).name
            else:
                await refused(
                    versions.retrieve("latest", skill_id=attached.id), attached.id, kind=NotFoundError
                )
            await refused(versions.download("latest", skill_id=other.id), other.id, kind=NotFoundError)
    cloud = await api.session(agent=agent["id"])
    assert cloud["status"] == "idle"
    async with api.client(await api.pool_key()) as client:
        assert (await client.beta.skills.versions.retrieve("latest", skill_id=attached.id)).id


async def test_an_agent_keeps_the_read_tool_as_long_as_it_has_skills(api: Api) -> None:
    skill = await made(api)
    agent = await api.agent(tools=[TOOLSET], skills=[{"type": "custom", "skill_id": skill.id}])
    path = f"/v1/agents/{agent['id']}"
    for tools in ([], None, [{**TOOLSET, "default_config": {"enabled": False}}]):
        response = await api.post(path, {"tools": tools})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("skills: skills need the read tool")
    assert (await api.get(path)).json() == agent
    both = await api.post(path, {"tools": [], "skills": None})
    assert (both.json()["tools"], both.json()["skills"], both.json()["version"]) == ([], [], 2)
