"""Skills with the official Python worker as it is delivered: it downloads them itself (contract 17)."""

import stat
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools.agent_toolset import AgentToolContext

from corral.brain.skills_note import FIND, LISTED
from tests.conformance.premises import (
    TOOLSET,
    Premises,
    bash,
    calls,
    ends_turn,
    results_of,
    text_of,
    token_of,
)
from tests.conformance.python_tools import BRIEFLY, state_is
from tests.corral_server import SessionUnderTest
from tests.skills import attached, upload_skill


async def session_with(premises: Premises, *ids: str, **skill: Any) -> SessionUnderTest:
    corral = premises.corral
    listed = attached(*ids)
    for one in listed:
        one.update(skill)
    agent = await corral.agent(TOOLSET, skills=listed)
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=premises.environment_id)
    return SessionUnderTest(corral, made.id)


async def test_a_worker_finds_the_skills_where_the_prompt_says_they_are(
    premises: Premises, open_folder: Path
) -> None:
    skill = await upload_skill(premises.corral.client, "greeting")
    session = await session_with(premises, skill)
    read = calls(("read", {"file_path": "skills/greeting/SKILL.md"}))
    await session.says("go", script=[read, bash("skills/greeting/scripts/greet.sh"), {"text": "done"}])
    async with premises.running(workdir=open_folder, max_idle=BRIEFLY):
        await session.until("session.status_idle", where=ends_turn)
        await premises.wire.until("/stop", state_is("stopped"))
    told, said = [text_of(result) for result in await results_of(session)]
    assert told.startswith("---\nname: greeting\n")
    assert said == "hello from a skill"
    system = "\n".join(block["text"] for block in premises.corral.model.requests()[0]["system"])
    assert "- greeting (skills/greeting/SKILL.md): Greets people." in system
    fetched = [answer for answer in premises.wire.answers if "/v1/skills/" in answer.path]
    assert [answer.status for answer in fetched] == [200, 200]
    assert not any(premises.key in answer.authorization for answer in fetched)


@pytest.mark.parametrize("credential", ["token", "key"])
async def test_either_credential_of_a_worker_fetches_the_files_with_their_bits(
    premises: Premises, open_folder: Path, credential: str
) -> None:
    skill = await upload_skill(premises.corral.client, "greeting")
    session = await session_with(premises, skill)
    await session.says("go", script=[bash("true"), {"text": "done"}])
    item = await premises.claimed()
    key = premises.key if credential == "key" else token_of(item)
    async with premises.client.with_options(api_key=key) as client:
        shown = await client.beta.sessions.retrieve(session.id)
        async with AgentToolContext(workdir=str(open_folder), client=client, session=shown):
            script = open_folder / "skills" / "greeting" / "scripts" / "greet.sh"
            assert stat.S_IMODE(script.stat().st_mode) == 0o755
            assert stat.S_IMODE((open_folder / "skills/greeting/SKILL.md").stat().st_mode) == 0o644


async def test_a_search_for_skills_is_none_of_a_workers_business(
    premises: Premises, open_folder: Path
) -> None:
    ids = [await upload_skill(premises.corral.client, f"topic-{n}", more={}) for n in range(LISTED + 1)]
    session = await session_with(premises, *ids)
    search = calls((FIND, {"query": "topic 20"}))
    await session.says("go", script=[search, bash("cat skills/topic-20/SKILL.md"), {"text": "done"}])
    async with premises.running(workdir=open_folder, max_idle=BRIEFLY):
        await session.until("session.status_idle", where=ends_turn)
        # The search is not open to it, so it lets the item go; also when it finds the search in the history.
        await premises.wire.until("/stop", state_is("stopped"))
        await session.says("again", script=[bash("true"), {"text": "done"}])
        await premises.wire.until("/stop", state_is("stopped"), count=2)
    assert "name: topic-20" in text_of((await results_of(session))[0])
