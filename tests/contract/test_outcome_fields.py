"""Outcomes field by field: what is taken, what is shown of them and when (contract sections 10.6 and 14)."""

import re
from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.contract.test_events_send import INTERRUPT, a_waiting_call, listed, send
from tests.contract.test_processed_at import outcome
from tests.contract.test_sessions_create import create, message
from tests.corral_server import Corral, SessionUnderTest

TEXT = {"type": "text", "content": "It has figures."}


async def shown(session: SessionUnderTest) -> list[dict[str, Any]]:
    return [one.to_dict() for one in (await session.retrieve()).outcome_evaluations]


async def test_an_outcome_comes_back_with_an_id_its_rubric_and_the_default_of_iterations(api: Api) -> None:
    session = await api.session()
    for fields in ({}, {"max_iterations": None}):
        made = await api.session()
        sent = await send(api, made, {**outcome(), **fields})
        echo = sent.data[0].to_dict(mode="json")
        assert set(echo) == {
            *("id", "type", "outcome_id", "description", "rubric", "max_iterations", "processed_at")
        }
        assert undocumented(sent.data[0]) == []
        assert re.fullmatch(r"outc_01\w+", echo["outcome_id"])
        assert (echo["rubric"], echo["max_iterations"]) == (TEXT, 3)
        assert await listed(api, made) == [echo]
    assert await listed(api, session) == []


@pytest.mark.parametrize("most", [1, 20])
async def test_iterations_are_taken_from_one_to_twenty(api: Api, most: int) -> None:
    session = await api.session()
    sent = await send(api, session, {**outcome(), "max_iterations": most})
    assert sent.data[0].max_iterations == most


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_iterations": 0}, "max_iterations: must be at least 1"),
        ({"max_iterations": 21}, "max_iterations: must be at most 20"),
        ({"max_iterations": "3"}, "max_iterations: Input should be a valid integer"),
        ({"max_iterations": 1.5}, "max_iterations: Input should be a valid integer"),
        ({"rubric": "It has figures."}, "rubric: Input should be a valid object"),
        ({"rubric": {"content": "x"}}, "rubric.type: Field required"),
        ({"rubric": {"type": "url", "url": "x"}}, 'rubric.type: "url" is not a valid value'),
        ({"rubric": {"type": "text"}}, "rubric.content: Field required"),
        ({"rubric": {"type": "text", "content": ""}}, "rubric.content: must have at least 1"),
        ({"rubric": {"type": "file"}}, "rubric.file_id: Field required"),
        ({"rubric": {"type": "file", "file_id": "f" * 129}}, "rubric.file_id: must have at most 128"),
        ({"rubric": {**TEXT, "file_id": "f"}}, "rubric.file_id: Extra inputs are not permitted"),
        ({"rubric": None}, "rubric: Input should be a valid object"),
        ({"description": None}, "description: Input should be a valid string"),
        ({"outcome_id": "outc_1"}, "outcome_id: Extra inputs are not permitted"),
    ],
)
async def test_a_field_of_an_outcome_is_refused_by_name_wherever_it_is_sent(
    api: Api, fields: dict[str, Any], named: str
) -> None:
    session = await api.session()
    given = {**outcome(), **fields}
    await refused(send(api, session, message(), given), f"events[1].{named}")
    assert await listed(api, session) == []
    agent = session["agent"]["id"]
    await refused(create(api, agent=agent, initial_events=[given]), f"initial_events[0].{named}")
    assert len((await api.sdk.beta.sessions.list()).data) == 1


async def test_a_session_shows_each_outcome_from_pending_to_its_end(corral: Corral) -> None:
    session = await corral.session()
    assert await shown(session) == []
    await session.says("first", script=[{"text": "hi", "hold": "a"}, {"text": "done", "hold": "b"}])
    await corral.model.until_holding("a")
    sent = await session.sends(outcome())
    entry = {
        "type": "outcome_evaluation",
        "outcome_id": sent.data[0].outcome_id,
        "description": "a report",
        "iteration": 0,
        "explanation": None,
        "completed_at": None,
    }
    assert await shown(session) == [{**entry, "result": "pending"}]
    corral.model.release("a")
    await corral.model.until_holding("b")
    assert await shown(session) == [{**entry, "result": "running"}]
    corral.model.release("b")
    await session.idle()
    [ended] = (await session.retrieve()).outcome_evaluations
    assert undocumented(ended) == []
    [end] = await session.events(types=["span.outcome_evaluation_end"])
    assert undocumented(end) == []
    assert (ended.result, ended.completed_at) == (end.result, end.processed_at)
    assert ended.explanation == end.explanation
    listed = corral.client.beta.sessions.list()
    [of_list] = [one async for one in listed]
    assert of_list.outcome_evaluations == [ended]


async def test_an_outcome_that_is_interrupted_before_its_judging_names_no_start(corral: Corral) -> None:
    session = await corral.session()
    await session.says("first", script=[{"text": "never", "hold": "a"}])
    await corral.model.until_holding("a")
    sent = await session.sends(outcome())
    await session.sends(INTERRUPT)
    await session.until("span.outcome_evaluation_end")
    corral.model.release("a")
    [end] = await session.events(types=["span.outcome_evaluation_end"])
    assert (end.result, end.outcome_evaluation_start_id) == ("interrupted", "")
    assert end.outcome_id == sent.data[0].outcome_id
    assert end.iteration == 0
    counted = end.usage.to_dict()
    assert {name: counted[name] for name in counted if name.endswith("_tokens")} == {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    [entry] = await shown(session)
    assert (entry["result"], entry["completed_at"] is not None) == ("interrupted", True)


async def test_outcomes_are_shown_in_the_order_in_which_they_were_defined(corral: Corral) -> None:
    session = await corral.session()
    after = None
    ids: list[str] = []
    for _ in range(3):
        sent = await session.sends(outcome())
        ids.append(sent.data[0].outcome_id)
        after = (await session.idle(after=after)).id
    assert [one["outcome_id"] for one in await shown(session)] == ids


async def test_an_outcome_while_a_call_waits_is_worked_on_with_its_result(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    await session.sends(outcome())
    [entry] = await shown(session)
    assert entry["result"] == "pending"
    await refused(session.sends(outcome()), "events[0]: another outcome is being worked on")
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": call})
    await session.until("span.outcome_evaluation_end")
    [entry] = await shown(session)
    assert entry["result"] == "satisfied"


async def test_an_archived_session_takes_no_outcome(api: Api) -> None:
    session = await api.session()
    await api.sdk.beta.sessions.archive(session["id"])
    await refused(send(api, session, outcome()), "archived or terminated")


@pytest.mark.parametrize("step", ['{"error": {"status": 400}}', '{"refusal": {}}'], ids=["failed", "refused"])
async def test_an_outcome_outlives_a_turn_that_dies_and_a_message_goes_on_with_it(
    corral: Corral, step: str
) -> None:
    session = await corral.session()
    await session.sends({**outcome(), "description": f"a report\nscript: [{step}]"})
    idle = await session.idle()
    assert idle.stop_reason.type in ("retries_exhausted", "refusal")
    assert [one["result"] for one in await shown(session)] == ["running"]
    await refused(session.sends(outcome()), "events[0]: another outcome is being worked on")
    await session.says("try again", script=[{"text": "done"}])
    await session.until("span.outcome_evaluation_end")
    assert [one["result"] for one in await shown(session)] == ["satisfied"]


async def test_an_interrupt_ends_an_outcome_whose_turn_has_died(corral: Corral) -> None:
    session = await corral.session()
    script = '[{"error": {"status": 400}}]'
    await session.sends({**outcome(), "description": f"a report\nscript: {script}"})
    idle = await session.idle()
    await session.sends(INTERRUPT)
    await session.until("span.outcome_evaluation_end", after=idle.id)
    assert [one["result"] for one in await shown(session)] == ["interrupted"]
    await session.sends(outcome())


async def test_archiving_leaves_an_outcome_as_it_was(corral: Corral) -> None:
    session, _ = await a_waiting_call(corral)
    await session.sends(outcome())
    await corral.client.beta.sessions.archive(session.id)
    assert [one["result"] for one in await shown(session)] == ["pending"]
    assert (await session.types())[-1] == "session.status_terminated"
