"""Outcomes as a client sees them: defined, worked on, judged at once as satisfactory (contract section 14).

The scripted model's grader finds all well unless a test has it find otherwise (`tests.e2e.judging`).
"""

from typing import Any

from tests.contract.refusals import refused
from tests.corral_server import Corral, SessionUnderTest

WEATHER: dict[str, Any] = {
    "type": "custom",
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def outcome(description: str = "a report", rubric: str = "It has figures.", **fields: Any) -> dict[str, Any]:
    return {
        "type": "user.define_outcome",
        "description": description,
        "rubric": {"type": "text", "content": rubric},
        **fields,
    }


def playing(script: str) -> dict[str, Any]:
    return outcome(f"a report\nscript: {script}\n")


async def results(session: SessionUnderTest) -> list[str]:
    return [one.result for one in (await session.retrieve()).outcome_evaluations]


async def test_an_outcome_starts_the_work_and_is_logged_on_receipt(corral: Corral) -> None:
    session = await corral.session()
    sent = await session.sends(playing('[{"text": "done"}]'))
    [echo] = sent.data
    assert echo.outcome_id.startswith("outc_")
    assert echo.processed_at is not None
    assert echo.max_iterations == 3
    assert echo.rubric.content == "It has figures."
    await session.idle()
    events = await session.events()
    assert [event.type for event in events] == [
        "user.define_outcome",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "span.outcome_evaluation_start",
        "span.outcome_evaluation_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert events[0].id == echo.id
    prompt = str(corral.model.requests()[0]["messages"])
    assert "a report" in prompt
    assert "It has figures." in prompt


async def test_work_that_meets_the_rubric_ends_the_outcome_as_satisfied(corral: Corral) -> None:
    session = await corral.session()
    sent = await session.sends(playing('[{"text": "done"}]'))
    idle = await session.idle()
    assert idle.stop_reason.type == "end_turn"
    [start] = await session.events(types=["span.outcome_evaluation_start"])
    [end] = await session.events(types=["span.outcome_evaluation_end"])
    assert (end.result, end.iteration, end.outcome_evaluation_start_id) == ("satisfied", 0, start.id)
    assert (start.outcome_id, start.iteration) == (end.outcome_id, 0)
    [shown] = (await session.retrieve()).outcome_evaluations
    assert shown.outcome_id == sent.data[0].outcome_id == end.outcome_id
    assert (shown.result, shown.explanation, shown.completed_at) == (
        "satisfied",
        end.explanation,
        end.processed_at,
    )
    # What follows is an ordinary conversation, or another outcome.
    await session.says("thanks", script=[{"text": "welcome"}])
    await session.idle(after=idle.id)
    await session.sends(outcome("another"))
    assert len(await results(session)) == 2


async def test_one_outcome_at_a_time_and_it_is_running_while_it_is_worked_on(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    await session.sends(playing('[{"tools": [{"name": "get_weather", "input": {}}]}, {"text": "done"}]'))
    asked = await session.idle()
    assert await results(session) == ["running"]
    await refused(session.sends(outcome("another")), "events[0]", "another outcome")
    content = [{"type": "text", "text": "17 C"}]
    await session.sends(
        {
            "type": "user.custom_tool_result",
            "custom_tool_use_id": asked.stop_reason.event_ids[0],
            "content": content,
        }
    )
    await session.idle(after=asked.id)
    assert await results(session) == ["satisfied"]


async def test_an_interrupt_ends_the_outcome_as_interrupted(corral: Corral) -> None:
    session = await corral.session()
    await session.sends(playing('[{"text": "never", "hold": "here"}]'))
    await corral.model.until_holding("here")
    await session.sends({"type": "user.interrupt"})
    idle = await session.idle()
    corral.model.release("here")
    assert idle.stop_reason.type == "end_turn"
    types = await session.types()
    assert types[-6:] == [
        "user.interrupt",
        "span.model_request_end",
        "span.outcome_evaluation_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert await results(session) == ["interrupted"]
    await session.sends(outcome("another"))


async def test_an_outcome_sent_in_mid_request_is_worked_on_after_the_answer(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "hi", "hold": "here"}, {"text": "done"}])
    await corral.model.until_holding("here")
    await session.sends(outcome())
    assert await results(session) == ["pending"]
    corral.model.release("here")
    await session.idle()
    messages = [e.content[0].text for e in await session.events() if e.type == "agent.message"]
    assert messages == ["hi", "done"]
    assert await results(session) == ["satisfied"]


async def test_a_session_and_a_deployment_may_begin_with_an_outcome(corral: Corral) -> None:
    session = await corral.session(initial_events=[playing('[{"text": "done"}]')])
    await session.idle()
    first = (await session.events())[0]
    assert first.type == "user.define_outcome"
    assert await results(session) == ["satisfied"]
    deployments: Any = corral.client.beta.deployments
    made = await deployments.create(
        name="nightly",
        agent=await corral.agent(),
        environment_id=await corral.environment(),
        initial_events=[playing('[{"text": "done"}]')],
    )
    assert made.initial_events[0].rubric.content == "It has figures."
    run = await deployments.run(made.id)
    of_run = SessionUnderTest(corral, run.session_id)
    await of_run.idle()
    assert await results(of_run) == ["satisfied"]


async def test_a_rubric_in_a_file_comes_back_as_its_text(corral: Corral) -> None:
    file = await corral.client.files.upload(file=("rubric.md", b"# Rubric\n- figures\n", "text/markdown"))
    session = await corral.session()
    rubric = {"type": "file", "file_id": file.id}
    sent = await session.sends({"type": "user.define_outcome", "description": "a report", "rubric": rubric})
    assert sent.data[0].rubric.type == "text"
    assert sent.data[0].rubric.content == "# Rubric\n- figures\n"
    await session.idle()
    shown = [str(request["messages"]) for request in corral.model.requests()]
    assert len(shown) == 2  # the agent and the grader
    assert all("- figures" in text for text in shown)
    missing = {"type": "file", "file_id": "file_none"}
    await refused(
        session.sends({"type": "user.define_outcome", "description": "x", "rubric": missing}),
        "events[0].rubric.file_id",
    )


async def test_an_outcome_is_checked_field_by_field(corral: Corral) -> None:
    session = await corral.session()
    text = {"type": "text", "content": "fine"}
    for fields, place in (
        ({"description": "x"}, "events[0].rubric"),
        ({"rubric": text}, "events[0].description"),
        ({"description": "", "rubric": text}, "events[0].description"),
        ({"description": " ", "rubric": text}, "events[0].description"),
        ({"description": "x", "rubric": {"type": "text", "content": " "}}, "events[0].rubric.content"),
        (
            {"description": "x", "rubric": {"type": "text", "content": "x" * 262_145}},
            "events[0].rubric.content",
        ),
        ({"description": "x", "rubric": text, "max_iterations": 0}, "events[0].max_iterations"),
        ({"description": "x", "rubric": text, "max_iterations": 21}, "events[0].max_iterations"),
    ):
        await refused(session.sends({"type": "user.define_outcome", **fields}), place)
    await refused(session.sends(outcome(), outcome()), "events[1]", "at most one")
    assert await session.types() == []
    await session.sends(outcome(rubric="x" * 262_144, max_iterations=20))
