"""The operator's policy file before every call: what it lets run, holds and refuses, and what is recorded."""

from pathlib import Path
from typing import Any

import msgspec

from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn
from tests.policy_world import bash, calling, decisions, policed, toolset

POLICY = """
version: 1
rules:
  - id: no-force-push
    effect: deny
    tools: [bash]
    input: {command: {matches: 'git\\s+push\\b.*--force'}}
    reason: Force pushes go through a person.
  - id: look-first
    effect: ask
    tools: [bash]
    input: {command: {matches: '\\bcurl\\b'}}
  - id: reading
    effect: allow
    over_ask: true
    tools: [read]
    input: {file_path: {path: /workspace/**}}
  - id: no-refunds
    effect: deny
    tools: [custom/refund, corral/ant__create_agent]
    reason: Refunds are made by people.
"""
CUSTOM: dict[str, Any] = {
    "type": "custom",
    "name": "refund",
    "description": "Pay money back.",
    "input_schema": {"type": "object", "properties": {}},
}


async def test_a_denied_call_is_answered_with_the_operators_reason(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, idle = await calling(corral, bash("git push --force"), tools=(toolset(),))
        assert idle.stop_reason.type == "end_turn"
        [use] = await session.events(types=["agent.tool_use"])
        assert (use.evaluated_permission, use.evaluation) == ("deny", None)
        [result] = await session.events(types=["agent.tool_result"])
        assert (result.tool_use_id, result.is_error) == (use.id, True)
        assert result.content[0].text == (
            "Permission to use bash has been denied. "
            "The operator's policy says: Force pushes go through a person."
        )
        assert "Force pushes go through a person." in await last_message(session)


async def test_every_decision_stands_in_the_audit_trail(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, _ = await calling(
            corral, bash("git push --force"), bash("curl example.com"), bash("ls"), tools=(toolset(),)
        )
        uses = {event.input["command"]: event for event in await session.events(types=["agent.tool_use"])}
        records = await decisions(corral, session.id)
        shown = {
            record["action"] + " " + str(record["decision"]["gate"]["rule"]): record for record in records
        }
        assert set(shown) == {"deny bash no-force-push", "ask bash look-first", "allow bash None"}
        row = await session.retrieve()
        denied = shown["deny bash no-force-push"]
        assert denied["objects"][:3] == [session.id, row.agent.id, row.environment_id]
        assert denied["objects"][-1] == uses["git push --force"].id
        assert denied["actor_id"].startswith("sha256:")
        assert denied["decision"]["agent_policy"] == "always_allow"
        assert denied["decision"]["gate"]["policy"] == denied["actor_id"]
        other: Any = await corral.client.get("/corral/v1/audit?actor_kind=api", cast_to=object)
        assert not any("decision" in record for record in other["data"])


async def test_what_the_policy_asks_about_waits_for_the_user(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, idle = await calling(corral, bash("curl example.com"), tools=(toolset(),))
        [use] = await session.events(types=["agent.tool_use"])
        assert idle.stop_reason.event_ids == [use.id]
        assert (use.evaluated_permission, use.evaluation.type) == ("ask", "always_ask")
        await session.sends({"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "deny"})
        await session.until("session.status_idle", where=ends_turn, after=idle.id)


async def test_only_a_rule_that_says_so_relaxes_the_agents_own_policy(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    inside = {"name": "read", "input": {"file_path": "/workspace/a.txt"}}
    outside = {"name": "read", "input": {"file_path": "/workspace/../etc/passwd"}}
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, _ = await calling(
            corral, inside, outside, bash("ls"), tools=(toolset(read="always_ask", bash="always_ask"),)
        )
        found = [
            (use.evaluated_permission, use.evaluation.type)
            for use in await session.events(types=["agent.tool_use"])
        ]
        assert found == [("allow", "always_allow"), ("ask", "always_ask"), ("ask", "always_ask")]


async def test_a_denied_custom_call_is_never_shown_as_one_to_be_run(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, idle = await calling(corral, {"name": "refund", "input": {}}, tools=(CUSTOM,))
        assert idle.stop_reason.type == "end_turn"
        assert "agent.custom_tool_use" not in await session.types()
        [use] = await session.events(types=["agent.tool_use"])
        assert (use.name, use.evaluated_permission) == ("refund", "deny")
        assert "Refunds are made by people." in await last_message(session)


async def test_a_denied_delegation_starts_nobody(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        helper = await corral.agent(name="helper")
        coordinator = await corral.agent(
            name="boss", multiagent={"type": "coordinator", "agents": [{"type": "agent", "id": helper}]}
        )
        made = await corral.client.beta.sessions.create(
            agent=coordinator, environment_id=await corral.environment()
        )
        session = SessionUnderTest(corral, made.id)
        call = {"name": "ant__create_agent", "input": {"agent": "helper", "task": "Pay it back."}}
        await session.says("go", script=[{"tools": [call]}, {"text": "they said: {result}"}])
        await session.idle()
        assert "session.thread_created" not in await session.types()
        assert "Refunds are made by people." in await last_message(session)
        [record] = await decisions(corral, session.id)
        assert record["action"] == "deny corral/ant__create_agent"


async def test_a_rule_finds_sessions_by_what_clients_and_operators_tag(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    policy = """
version: 1
rules:
  - {id: prod, effect: deny, tools: [bash], environments: {metadata: {stage: prod*}}}
  - {id: guests, effect: deny, tools: [bash], sessions: {metadata: {guest: "yes"}}}
  - {id: interns, effect: deny, tools: [bash], agents: {names: ["intern*"]}}
"""

    async def outcome(corral: Corral, *, tag: str = "dev", guest: str = "no", name: str = "senior") -> str:
        environments: Any = corral.client.beta.environments
        environment = await environments.create(
            name=f"{tag} {guest} {name}", config={"type": "self_hosted"}, metadata={"stage": tag}
        )
        made = await corral.client.beta.sessions.create(
            agent=await corral.agent(toolset(), name=name),
            environment_id=environment.id,
            metadata={"guest": guest},
        )
        session = SessionUnderTest(corral, made.id)
        await session.says("go", script=[{"tools": [bash("ls")]}, {"text": "done"}])
        await session.idle()
        [use] = await session.events(types=["agent.tool_use"])
        return str(use.evaluated_permission)

    async with policed(database_url, model, policy, tmp_path) as corral:
        assert await outcome(corral) == "allow"
        assert await outcome(corral, tag="prod-eu") == "deny"
        assert await outcome(corral, guest="yes") == "deny"
        assert await outcome(corral, name="intern-2") == "deny"


async def test_another_file_later_changes_nothing_of_what_was_decided(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, idle = await calling(corral, bash("curl example.com"), tools=(toolset(),))
        [use] = await session.events(types=["agent.tool_use"])
    everything = "version: 1\ndefault: deny\n"
    async with policed(database_url, model, everything, tmp_path) as corral:
        session = SessionUnderTest(corral, session.id)
        await session.sends({"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "allow"})
        output: dict[str, Any] = {"type": "user.tool_result", "tool_use_id": use.id, "content": []}
        await session.sends(output)
        await session.until("session.status_idle", where=ends_turn, after=idle.id)
        [again] = await session.events(types=["agent.tool_use"])
        assert again == use


async def test_the_log_says_which_file_and_rule_decided(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    async with policed(database_url, model, POLICY, tmp_path) as corral:
        session, _ = await calling(corral, bash("git push --force"), tools=(toolset(),))
        row = await corral.database.fetch_one(
            "select private::text as private from events where session_id = %s and type = 'agent.tool_use'",
            (session.id,),
        )
        assert row is not None
        record = msgspec.json.decode(row["private"])["policy"]
        [audited] = await decisions(corral, session.id)
        assert record["gate"] == audited["decision"]["gate"]
        assert record["gate"]["rule"] == "no-force-push"


async def last_message(session: SessionUnderTest) -> str:
    return (await session.events(types=["agent.message"]))[-1].content[0].text
