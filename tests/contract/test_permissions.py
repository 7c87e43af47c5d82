"""Permission policies: what runs, what asks, what is refused, who may answer (contract sections 6 and 12)."""

from typing import Any

from anthropic import AsyncAnthropic

from tests.contract.refusals import refused
from tests.contract.test_sessions_create import TOOLSET
from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn, is_taken
from tests.policy_world import JUDGE

LS: dict[str, Any] = {"name": "bash", "input": {"command": "ls"}}
READ: dict[str, Any] = {"name": "read", "input": {"file_path": "a.txt"}}


def toolset(**policies: str) -> dict[str, Any]:
    """The agent toolset with these tools' policies; ``off`` disables one."""
    configs: list[dict[str, Any]] = [
        {"name": name, "enabled": False}
        if policy == "off"
        else {"name": name, "permission_policy": {"type": policy}}
        for name, policy in policies.items()
    ]
    return {**TOOLSET, "configs": configs}


def verdict(call: str, result: str, **fields: Any) -> dict[str, Any]:
    return {"type": "user.tool_confirmation", "tool_use_id": call, "result": result, **fields}


def output(call: str, text: str = "a.txt") -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "user.tool_result", "tool_use_id": call, "content": content}


async def calling(
    corral: Corral, *calls: dict[str, Any], kind: str = "self_hosted", **policies: str
) -> tuple[SessionUnderTest, Any, dict[str, str]]:
    """A session whose model has made these calls, the idle that followed, and the calls' ids by name."""
    session = await corral.session(toolset(**policies), kind=kind)
    await session.says("go", script=[{"tools": list(calls)}, {"text": "they said: {result}"}])
    idle = await session.idle()
    return session, idle, await uses(session)


async def uses(session: SessionUnderTest) -> dict[str, str]:
    return {event.name: event.id for event in await session.events(types=["agent.tool_use"])}


async def last_message(session: SessionUnderTest) -> str:
    return (await session.events(types=["agent.message"]))[-1].content[0].text


async def end_of_turn(session: SessionUnderTest, after: Any) -> Any:
    return await session.until("session.status_idle", where=ends_turn, after=after.id)


async def test_an_allowed_call_needs_no_confirmation_only_its_result(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS)
    assert idle.stop_reason.event_ids == [ids["bash"]]
    [use] = await session.events(types=["agent.tool_use"])
    assert (use.evaluated_permission, use.evaluation.type) == ("allow", "always_allow")
    await refused(session.sends(verdict(ids["bash"], "allow")), "events[0].tool_use_id")
    await session.sends(output(ids["bash"]))
    await end_of_turn(session, idle)
    assert await last_message(session) == "they said: a.txt"


async def test_a_confirmed_call_runs_and_its_result_reaches_the_model(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="always_ask")
    assert idle.stop_reason.event_ids == [ids["bash"]]
    await session.sends(verdict(ids["bash"], "allow"))
    await session.until("user.tool_confirmation", where=is_taken)
    await session.sends(output(ids["bash"]))
    await end_of_turn(session, idle)
    assert await last_message(session) == "they said: a.txt"


async def test_a_verdict_and_the_result_may_come_in_one_request(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="always_ask")
    denied = (verdict(ids["bash"], "deny"), output(ids["bash"]))
    await refused(session.sends(*denied), "events[1].tool_use_id", "not allowed to run")
    await session.sends(verdict(ids["bash"], "allow"), output(ids["bash"]))
    await end_of_turn(session, idle)
    assert await last_message(session) == "they said: a.txt"


async def test_a_result_for_a_call_that_nobody_allowed_is_refused(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="always_ask")
    await refused(session.sends(output(ids["bash"])), "events[0].tool_use_id", "not allowed to run")
    await session.sends(verdict(ids["bash"], "deny"))
    await end_of_turn(session, idle)
    await refused(session.sends(output(ids["bash"])), "events[0].tool_use_id")
    assert "user.tool_result" not in await session.types()


async def test_a_denied_call_becomes_an_error_that_carries_the_users_words(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="always_ask")
    await session.sends(verdict(ids["bash"], "deny", deny_message="Read .env.example instead."))
    await end_of_turn(session, idle)
    [result] = await session.events(types=["agent.tool_result"])
    assert (result.tool_use_id, result.is_error) == (ids["bash"], True)
    assert "Read .env.example instead." in result.content[0].text
    assert "Read .env.example instead." in await last_message(session)


async def test_the_early_name_of_the_deny_message_is_understood(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="always_ask")
    sent = await session.sends(verdict(ids["bash"], "deny", message="Not today."))
    assert sent.data[0].deny_message == "Not today."
    await end_of_turn(session, idle)
    assert "Not today." in await last_message(session)


async def test_a_denial_of_some_leaves_an_idle_that_asks_for_the_rest(corral: Corral) -> None:
    session, first, ids = await calling(corral, LS, READ, bash="always_ask", read="always_ask")
    assert first.stop_reason.event_ids == [ids["bash"], ids["read"]]
    await session.sends(verdict(ids["bash"], "deny"))
    second = await session.idle(after=first.id)
    assert second.stop_reason.type == "requires_action"
    assert second.stop_reason.event_ids == [ids["read"]]
    await session.sends(verdict(ids["read"], "deny"))
    third = await session.idle(after=second.id)
    assert third.stop_reason.type == "end_turn"


async def test_several_verdicts_in_one_request_are_taken_together(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, READ, bash="always_ask", read="always_ask")
    await session.sends(verdict(ids["bash"], "deny"), verdict(ids["read"], "deny"))
    after = await session.idle(after=idle.id)
    assert after.stop_reason.type == "end_turn"


async def test_a_verdict_is_final_and_the_same_again_is_no_error(corral: Corral) -> None:
    session, _, ids = await calling(corral, LS, READ, bash="always_ask")
    first = await session.sends(verdict(ids["bash"], "allow"))
    again = await session.sends(verdict(ids["bash"], "allow"))
    assert again.data[0].id == first.data[0].id
    await refused(session.sends(verdict(ids["bash"], "deny")), "already been resolved")
    await session.until("user.tool_confirmation", where=is_taken)
    again = await session.sends(verdict(ids["bash"], "allow"))
    assert again.data[0].id == first.data[0].id
    await refused(session.sends(verdict(ids["bash"], "deny")), "already been resolved")
    await refused(session.sends(verdict(ids["bash"], "allow"), verdict(ids["bash"], "deny")), "tool_use_id")


async def test_two_verdicts_on_one_call_in_one_request_are_refused(corral: Corral) -> None:
    session, _, ids = await calling(corral, LS, bash="always_ask")
    both = (verdict(ids["bash"], "allow"), verdict(ids["bash"], "deny"))
    await refused(session.sends(*both), "events[1].tool_use_id")
    assert "user.tool_confirmation" not in await session.types()


async def test_a_tool_that_is_disabled_is_refused_by_the_server_and_the_turn_goes_on(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="off")
    assert idle.stop_reason.type == "end_turn"
    [use] = await session.events(types=["agent.tool_use"])
    assert (use.evaluated_permission, use.evaluation) == ("deny", None)
    [result] = await session.events(types=["agent.tool_result"])
    assert (result.tool_use_id, result.is_error) == (ids["bash"], True)
    assert result.content[0].text == "Permission to use bash has been denied."
    assert (await session.types()).count("session.status_running") == 1
    await refused(session.sends(verdict(ids["bash"], "allow")), "events[0].tool_use_id")
    await refused(session.sends(output(ids["bash"])), "events[0].tool_use_id")


async def test_a_tool_that_the_agent_has_not_is_refused_alike(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"tools": [{"name": "teleport", "input": {}}]}, {"text": "{result}"}])
    assert (await session.idle()).stop_reason.type == "end_turn"
    assert await last_message(session) == "Permission to use teleport has been denied."


async def test_auto_asks_where_no_judgement_is_reached(corral: Corral) -> None:
    corral.model.rule(if_system_contains=JUDGE, text="I would rather not say.")
    session, idle, ids = await calling(corral, LS, bash="auto")
    assert idle.stop_reason.event_ids == [ids["bash"]]
    [use] = await session.events(types=["agent.tool_use"])
    assert use.evaluated_permission == "ask"
    assert use.evaluation.to_dict() == {
        "type": "auto",
        "evaluated_permission": {"type": "ask", "reason_code": "indeterminate"},
    }
    await session.sends(verdict(ids["bash"], "allow"))
    await session.sends(output(ids["bash"]))
    await end_of_turn(session, idle)
    assert await last_message(session) == "they said: a.txt"


async def test_on_a_cloud_environment_an_application_reports_no_tool_results(corral: Corral) -> None:
    session = await corral.session(toolset(), kind="cloud")
    await session.says("go", script=[{"tools": [LS]}, {"text": "done"}])
    use = await session.until("agent.tool_use")
    await refused(session.sends(output(use.id)), "events[0].type", "self_hosted")
    await session.sends({"type": "user.interrupt"})
    await session.idle()


async def test_on_a_cloud_environment_a_session_asks_and_a_denial_lets_it_go_on(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, kind="cloud", bash="always_ask")
    assert idle.stop_reason.event_ids == [ids["bash"]]
    await session.sends(verdict(ids["bash"], "deny", deny_message="No."))
    await end_of_turn(session, idle)
    assert "No." in await last_message(session)


async def test_on_a_cloud_environment_a_confirmed_call_makes_the_session_run_again(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, kind="cloud", bash="always_ask")
    await session.sends(verdict(ids["bash"], "allow"))
    running = await session.until("session.status_running", after=idle.id)
    types = await session.types()
    assert types.index("user.tool_confirmation") < len(types)
    assert (await session.retrieve()).status == "running"
    await session.sends({"type": "user.interrupt"})
    await session.idle(after=running.id)
    [result] = await session.events(types=["agent.tool_result"])
    assert result.content[0].text == "Tool execution was interrupted before completion. Please retry."


async def test_results_of_one_turn_may_come_from_different_clients(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, READ)
    row = await session.retrieve()
    _, key = await corral.services.keys.create("environment", "worker", row.environment_id)
    async with AsyncAnthropic(base_url=corral.base_url, api_key=key, max_retries=0) as worker:
        events: Any = [output(ids["read"], "from the worker")]
        await worker.beta.sessions.events.send(session.id, events=events)
    second = await session.idle(after=idle.id)
    assert second.stop_reason.event_ids == [ids["bash"]]
    await session.sends(output(ids["bash"], "from the application"))
    await end_of_turn(session, second)
    assert await last_message(session) == "they said: from the application\nfrom the worker"
