"""Skills in sessions, with the real worker and real sandboxes: found, read, run, and not to be changed."""

import stat
from pathlib import Path
from typing import Any

from corral.brain.skills_note import FIND, LISTED, PICKED
from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool
from tests.skills import attached, skill_files, upload_skill

PLACE = "/workspace/skills"


def read(path: str) -> dict[str, Any]:
    return {"tools": [{"name": "read", "input": {"file_path": path}}]}


async def session_with(corral: Corral, *ids: str) -> SessionUnderTest:
    agent = await corral.agent(TOOLSET, skills=attached(*ids))
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=await corral.environment())
    return SessionUnderTest(corral, made.id)


async def run(session: SessionUnderTest, *steps: Any, after: str | None = None) -> list[str]:
    """Have the model take these steps; the texts of all results."""
    await session.says("go", script=[*steps, {"text": "done"}])
    await session.idle(after=after)
    kinds = ["agent.tool_result", "agent.mcp_tool_result"]
    return [str(event.content[0].text) for event in await session.events(types=kinds)]


def system_of(request: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in request["system"])


def place_of(folder: Path, session: SessionUnderTest, name: str) -> Path:
    return folder / "workspaces" / ".shares" / session.id / "skills" / name


async def test_an_agent_reads_a_skill_and_runs_its_script_but_cannot_change_it(
    corral: Corral, open_folder: Path
) -> None:
    skill = await upload_skill(corral.client, "greeting")
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await session_with(corral, skill)
        results = await run(
            session,
            read(f"{PLACE}/greeting/SKILL.md"),
            bash(f"{PLACE}/greeting/scripts/greet.sh"),
            bash(
                f"echo x > {PLACE}/greeting/SKILL.md; rm -r {PLACE}/greeting; mv {PLACE} /workspace/x; true"
            ),
            {"tools": [{"name": "write", "input": {"file_path": f"{PLACE}/new", "content": "x"}}]},
            bash(f"ls -l {PLACE}/greeting"),
        )
    assert results[0].startswith("---\nname: greeting\n")
    assert results[1] == "hello from a skill"
    assert results[2].count("Read-only file system") + results[2].count("busy") >= 3, results[2]
    assert "is inside read-only directory /workspace/skills" in results[3]
    assert "scripts" in results[4]
    request = corral.model.requests()[0]
    assert f"- greeting ({PLACE}/greeting/SKILL.md): Greets people." in system_of(request)
    assert [tool["name"] for tool in request["tools"]].count(FIND) == 0


async def test_a_version_is_kept_once_for_all_sessions_and_latest_is_pinned(
    corral: Corral, open_folder: Path
) -> None:
    skill = await upload_skill(corral.client, "greeting")
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        first, second = await session_with(corral, skill), await session_with(corral, skill)
        newer = {"scripts/greet.sh": b"#!/bin/sh\necho hello again\n"}
        await corral.client.beta.skills.versions.create(skill, files=skill_files("greeting", newer))
        third = await session_with(corral, skill)
        call = bash(f"{PLACE}/greeting/scripts/greet.sh")
        said = [(await run(session, call))[0] for session in (first, second, third)]
        assert said == ["hello from a skill", "hello from a skill", "hello again"]
        one, two, three = [
            place_of(open_folder, session, "greeting").joinpath("scripts/greet.sh").stat()
            for session in (first, second, third)
        ]
    assert one.st_ino == two.st_ino != three.st_ino
    assert stat.S_IMODE(one.st_mode) == 0o555


async def test_a_skill_that_is_gone_is_left_out_and_the_rest_is_there(
    corral: Corral, open_folder: Path
) -> None:
    gone, kept = await upload_skill(corral.client, "gone"), await upload_skill(corral.client, "kept")
    session = await session_with(corral, gone, kept)
    await corral.client.beta.skills.delete(gone)
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        [listed] = await run(session, bash(f"ls {PLACE}"))
    assert listed == "kept"
    # What the model is told does not change under the session.
    assert "- gone (" in system_of(corral.model.requests()[0])


async def test_without_a_fence_the_skills_are_copies_in_the_working_directory(
    corral: Corral, open_folder: Path
) -> None:
    skill = await upload_skill(corral.client, "greeting")
    async with at_work(await pool(corral, open_folder)):
        first, second = await session_with(corral, skill), await session_with(corral, skill)
        spoil = bash(
            "chmod u+w skills/greeting/scripts/greet.sh; echo exit 3 > skills/greeting/scripts/greet.sh"
        )
        await run(first, spoil)
        assert await run(second, bash("skills/greeting/scripts/greet.sh")) == ["hello from a skill"]


async def test_among_many_skills_the_model_finds_the_one_that_it_needs(
    corral: Corral, open_folder: Path
) -> None:
    ids = [
        await upload_skill(
            corral.client, f"topic-{n}", more={}, description=f"Knows all about subject{n} and nothing else."
        )
        for n in range(LISTED)
    ]
    ids.append(await upload_skill(corral.client, "greeting", description="Says hello to penguins."))
    search = {"tools": [{"name": FIND, "input": {"query": "hello, penguin"}}]}
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await session_with(corral, *ids)
        await session.says("subject31 and subject7")
        idle = await session.idle()
        results = await run(session, search, bash(f"{PLACE}/greeting/scripts/greet.sh"), after=idle.id)
    assert results == [
        f"- greeting ({PLACE}/greeting/SKILL.md): Says hello to penguins.",
        "hello from a skill",
    ]
    requests = corral.model.requests()
    prompts = {system_of(request) for request in requests}
    assert len(prompts) == 1, "the prompt is the same in every request"
    listed = [line for line in prompts.pop().splitlines() if line.startswith("- ")]
    assert len(listed) == PICKED
    assert {line.split()[1] for line in listed[:2]} == {"topic-31", "topic-7"}
    assert all([tool["name"] for tool in request["tools"]][-1] == FIND for request in requests)
    corral.model.assert_no_refusals()


async def test_a_search_needs_no_hands_and_is_never_open(corral: Corral) -> None:
    ids = [await upload_skill(corral.client, f"topic-{n}", more={}) for n in range(LISTED + 1)]
    session = await session_with(corral, *ids)
    search: dict[str, Any] = {
        "tools": [{"name": FIND, "input": {"query": "topic 12"}}, {"name": FIND, "input": {}}]
    }
    await session.says("go", script=[search, {"text": "{result}"}])
    await session.idle()
    events = await session.events()
    types = [event.type for event in events]
    at = types.index("agent.mcp_tool_use")
    assert types[at : at + 5] == [
        "agent.mcp_tool_use",
        "agent.mcp_tool_use",
        "span.model_request_end",
        "agent.mcp_tool_result",
        "agent.mcp_tool_result",
    ]
    first, second, _, found, failed = events[at : at + 5]
    assert (first.name, first.mcp_server_name, first.evaluated_permission) == (FIND, "corral", "allow")
    assert (found.mcp_tool_use_id, failed.mcp_tool_use_id) == (first.id, second.id)
    assert found.content[0].text.startswith("- topic-12 (")
    assert (found.is_error, failed.is_error) == (False, True)
    corral.model.assert_no_refusals()
