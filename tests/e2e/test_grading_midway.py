"""What comes between while work on an outcome is judged: users, budgets, other threads, servers that die."""

import asyncio
from typing import Any

from corral.lifetime import drain
from corral.settings import Load
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.databases import CleanDatabases
from tests.e2e.coordinating import CUSTOM, children, coordinated
from tests.e2e.coordinating import starts as starts_agent
from tests.e2e.judging import (
    GRADER,
    asked,
    ends,
    grades,
    hands_over,
    outcome,
    reading,
    results,
    said,
    starts,
    verdict,
)
from tests.e2e.recovery_scenario import Recording, put_copy, put_environment, rows
from tests.e2e.test_budgets import FORTY_CENTS, budget, raise_to
from tests.e2e.test_draining import long_leases
from tests.e2e.test_recovery import check_rows
from tests.server_process import server_process

INTERRUPT: dict[str, Any] = {"type": "user.interrupt"}
FREE: dict[str, Any] = {"usage": {"input_tokens": 0, "output_tokens": 0}}


async def held_in_grading(corral: Corral, *steps: dict[str, Any]) -> SessionUnderTest:
    """A session whose work is being judged; `grading` lets the grader go on, and it is satisfied."""
    grades(corral.model, verdict("satisfied"), hold="grading")
    session = await corral.session()
    await session.sends(outcome(*steps or ({"text": "done"},)))
    await corral.model.until_holding("grading")
    return session


async def test_an_interrupt_cuts_the_grader_off_and_ends_the_outcome(corral: Corral) -> None:
    session = await held_in_grading(corral)
    await session.sends(INTERRUPT)
    idle = await session.idle()
    await corral.model.until_outcome("disconnected")
    corral.model.release("grading")
    assert idle.stop_reason.type == "end_turn"
    assert (await session.types())[-6:] == [
        "span.outcome_evaluation_start",
        "user.interrupt",
        "span.outcome_evaluation_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    [start], [end] = await starts(session), await ends(session)
    assert (end.result, end.outcome_evaluation_start_id) == ("interrupted", start.id)
    assert await results(session) == ["interrupted"]
    await session.sends(outcome({"text": "another"}))
    await session.idle(after=idle.id)
    assert await results(session) == ["interrupted", "satisfied"]


async def test_an_interrupt_with_a_message_redirects_the_work(corral: Corral) -> None:
    session = await held_in_grading(corral)
    text = [{"type": "text", "text": 'leave it\nscript: {"text": "left"}'}]
    await session.sends(INTERRUPT, {"type": "user.message", "content": text})
    first = await session.idle()
    await session.idle(after=first.id)
    corral.model.release("grading")
    assert await said(session) == ["done", "left"]
    assert await results(session) == ["interrupted"]


async def test_a_message_while_the_work_is_judged_is_answered_after_the_verdict(corral: Corral) -> None:
    session = await held_in_grading(corral)
    await session.says("one more thing", script=[{"text": "that too"}])
    corral.model.release("grading")
    idle = await session.idle()
    types = await session.types()
    assert types.count("session.status_idle") == 1
    assert types.index("span.outcome_evaluation_end") < types.index("user.message")
    assert await said(session) == ["done", "that too"]
    assert idle.stop_reason.type == "end_turn"
    assert await results(session) == ["satisfied"]


async def test_a_message_in_the_work_steers_it_and_is_seen_by_the_grader(corral: Corral) -> None:
    session = await corral.session()
    await session.sends(outcome({"text": "a start", "hold": "working"}))
    await corral.model.until_holding("working")
    await session.says("mind the margins", script=[{"text": "with margins"}])
    corral.model.release("working")
    await session.idle()
    [request] = asked(corral.model)
    assert "mind the margins" in str(request["messages"])
    assert await said(session) == ["a start", "with margins"]
    assert await results(session) == ["satisfied"]


async def test_at_its_budget_the_work_is_judged_once_that_is_raised(corral: Corral) -> None:
    session = await corral.session(budget=budget(30))
    await session.sends(outcome({"text": "done", **FORTY_CENTS}))
    paused = await session.idle()
    assert paused.stop_reason.type == "budget_reached"
    assert asked(corral.model) == []
    assert await results(session) == ["running"]
    # While it is paused an interrupt changes nothing.
    await session.sends(INTERRUPT)
    assert await results(session) == ["running"]
    await raise_to(session, 100)
    assert (await session.idle(after=paused.id)).stop_reason.type == "end_turn"
    assert await results(session) == ["satisfied"]
    assert await said(session) == ["done"]


async def test_a_verdict_that_reaches_the_budget_is_recorded_and_the_revision_waits(corral: Corral) -> None:
    grades(corral.model, verdict("needs_revision", "no"), verdict("satisfied"), **FORTY_CENTS)
    session = await corral.session(budget=budget(30))
    await session.sends(outcome({"text": "one", **FREE}, {"text": "two", **FREE}))
    paused = await session.idle()
    assert paused.stop_reason.type == "budget_reached"
    assert [end.result for end in await ends(session)] == ["needs_revision"]
    assert await said(session) == ["one"]
    assert (await session.retrieve()).usage.list_cost.amount == "40"
    await raise_to(session, 200)
    assert (await session.idle(after=paused.id)).stop_reason.type == "end_turn"
    assert await said(session) == ["one", "two"]
    assert [end.result for end in await ends(session)] == ["needs_revision", "satisfied"]


async def test_an_evaluation_that_reaches_the_budget_midway_goes_on_when_it_is_raised(corral: Corral) -> None:
    corral.model.rule(
        if_system_contains=GRADER, if_result_contains="figures", tools=[verdict("satisfied")], **FREE
    )
    grades(corral.model, reading("report.md"), **FORTY_CENTS)
    session = await corral.session(budget=budget(30))
    await hands_over(corral, session, "report.md", b"figures")
    await session.sends(outcome({"text": "done", **FREE}))
    paused = await session.idle()
    assert paused.stop_reason.type == "budget_reached"
    assert (len(await starts(session)), await ends(session)) == (1, [])
    assert await results(session) == ["evaluating"]
    await raise_to(session, 200)
    assert (await session.idle(after=paused.id)).stop_reason.type == "end_turn"
    assert len(await starts(session)) == 1
    [end] = await ends(session)
    assert (end.result, end.usage.input_tokens) == ("satisfied", FORTY_CENTS["usage"]["input_tokens"])
    assert [len(request["messages"]) for request in asked(corral.model)] == [1, 3]


async def test_an_archived_session_leaves_its_evaluation_as_it_was(corral: Corral) -> None:
    grades(corral.model, reading("report.md"), **FORTY_CENTS)
    session = await corral.session(budget=budget(30))
    await hands_over(corral, session, "report.md", b"figures")
    await session.sends(outcome({"text": "done", **FREE}))
    await session.idle()
    await corral.client.beta.sessions.archive(session.id)
    assert (await session.types())[-1] == "session.status_terminated"
    assert await ends(session) == []
    assert await results(session) == ["evaluating"]


async def test_the_work_is_judged_once_those_whom_the_agent_has_started_are_done(corral: Corral) -> None:
    session = await coordinated(corral, "one", tools=[CUSTOM])
    call = {"name": "look_up", "input": {"what": "x"}}
    await session.sends(
        outcome(
            {"tools": [starts_agent("one", {"tools": [call]}, {"text": "looked up"})]},
            {"text": "I wait"},
            {"text": "all done"},
        )
    )
    asks = await session.until("session.status_idle")
    assert asks.stop_reason.type == "requires_action"
    assert await results(session) == ["running"]
    assert asked(corral.model) == []
    content = [{"type": "text", "text": "found"}]
    await session.sends(
        {
            "type": "user.custom_tool_result",
            "custom_tool_use_id": asks.stop_reason.event_ids[0],
            "content": content,
        }
    )
    assert (await session.idle(after=asks.id)).stop_reason.type == "end_turn"
    assert await results(session) == ["satisfied"]
    [request] = asked(corral.model)
    assert "looked up" in str(request["messages"])
    assert await said(session) == ["I wait", "all done"]


async def test_the_work_is_judged_when_whom_it_waited_for_was_interrupted(corral: Corral) -> None:
    session = await coordinated(corral, "one")
    step = {"text": "never", "hold": "child"}
    await session.sends(outcome({"tools": [starts_agent("one", step)]}, {"text": "I wait"}))
    await corral.model.until_holding("child")
    await session.until("session.thread_status_idle")
    child = (await children(session))["one"]
    assert asked(corral.model) == []
    await session.sends({**INTERRUPT, "session_thread_id": child.id})
    idle = await session.idle()
    corral.model.release("child")
    assert idle.stop_reason.type == "end_turn"
    assert await results(session) == ["satisfied"]
    assert (await session.types()).count("session.status_idle") == 1


async def test_a_server_that_stops_has_the_verdict_given_first(
    database_url: str, model: ScriptedModel
) -> None:
    grades(model, verdict("needs_revision", "no"), hold="grading")
    async with running_corral(database_url, model, settings=long_leases(model)) as first:
        session = await first.session()
        await session.sends(outcome({"text": "one"}, {"text": "two"}))
        await model.until_holding("grading")
        draining = asyncio.create_task(drain(first.services, Load(), asyncio.Event()))
        await first.services.draining.wait()
        model.release("grading")
        await draining
        assert [end.result for end in await ends(session)] == ["needs_revision"]
        assert await said(session) == ["one"]
    grades(model, verdict("satisfied"), verdict("satisfied"))
    async with running_corral(database_url, model, settings=long_leases(model)) as second:
        elsewhere = SessionUnderTest(second, session.id)
        await elsewhere.idle()
        assert await said(elsewhere) == ["one", "two"]
        assert [end.result for end in await ends(elsewhere)] == ["needs_revision", "satisfied"]
    assert len(asked(model)) == 2


async def test_an_evaluation_whose_server_is_killed_is_carried_on_by_another(
    database_url: str, model: ScriptedModel
) -> None:
    grades(model, verdict("satisfied"), hold="grading")
    async with server_process(database_url, model.base_url) as first:
        session_id = await first.session()
        sent: Any = [outcome({"text": "done"}, {"text": "never"})]
        await first.client.beta.sessions.events.send(session_id, events=sent)
        await model.until_holding("grading")
        async with server_process(database_url, model.base_url) as second:
            await first.kill()
            await model.until_outcome("disconnected")
            await model.until_holding("grading")
            model.release("grading")
            events = await second.idle(session_id)
    types = [event.type for event in events]
    assert types.count("span.outcome_evaluation_start") == types.count("span.outcome_evaluation_end") == 1
    assert types.count("session.status_running") == types.count("agent.message") == 1
    [start] = [event for event in events if event.type == "span.outcome_evaluation_start"]
    [end] = [event for event in events if event.type == "span.outcome_evaluation_end"]
    assert (end.result, end.outcome_evaluation_start_id) == ("satisfied", start.id)
    assert len(asked(model)) == 2


async def test_cut_off_after_any_commit_an_outcome_comes_to_the_same_end(
    database_url: str, model: ScriptedModel, clean_databases: CleanDatabases
) -> None:
    model.rule(if_system_contains=GRADER, if_result_is_error=True, tools=[verdict("needs_revision", "no")])
    grades(
        model,
        {"name": "submit_verdict", "input": {}},
        verdict("needs_revision", "not yet"),
        verdict("needs_revision", "still not"),
    )
    async with running_corral(database_url, model) as corral:
        session = await corral.session()
        steps = [{"text": text} for text in ("one", "two", "three", "I give up")]
        await session.sends(outcome(*steps))
        await session.idle()
        recording = await Recording.of(corral.database, session.id)
        expected = await told(corral, session.id)
    assert [step for step in expected if step[0] == "end"] == [
        ("end", 0, "needs_revision"),
        ("end", 1, "needs_revision"),
        ("end", 2, "max_iterations_reached"),
    ]
    fresh = clean_databases.take()
    cuts = {f"sesn_cut{cut:04}": cut for cut in recording.boundaries if cut}
    async with Database(fresh) as database:
        await put_environment(database, recording)
        for name, cut in cuts.items():
            await put_copy(database, recording, name, cut, ())
    assert len(cuts) > 12
    async with running_corral(fresh, model) as corral:
        for name, cut in cuts.items():
            copy = SessionUnderTest(corral, name)
            await copy.idle()
            assert await told(corral, name) == expected, name
            kept = await rows(corral.database, name)
            assert kept[:cut] == recording.events[:cut], name
        await asyncio.gather(*(at_rest(corral, name) for name in cuts))
    clean_databases.give_back(fresh)


async def at_rest(corral: Corral, session_id: str) -> None:
    """The session costs nothing but its rows."""
    async for _ in corral.services.sessions.following.follow(session_id, ping_seconds=0.2):
        waking = await corral.database.fetch_one("select 1 from wakes where session_id = %s", (session_id,))
        if waking is None:
            break
    await check_rows(corral.database, session_id)


async def told(corral: Corral, session_id: str) -> list[tuple[Any, ...]]:
    """What a log tells of an outcome, whoever had to begin what anew."""
    steps: list[tuple[Any, ...]] = []
    async for event in corral.services.sessions.log.replay(session_id):
        match event.type:
            case "agent.message":
                steps.append(("said", event.body["content"][0]["text"]))
            case "span.outcome_evaluation_start":
                steps.append(("start", event.body["iteration"]))
            case "span.outcome_evaluation_end":
                steps.append(("end", event.body["iteration"], event.body["result"]))
            case _:
                pass
    return steps
