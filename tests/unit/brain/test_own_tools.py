"""Calls that the brain answers itself: the result enters the log with the call, and nobody waits for it."""

from corral.brain.decide import Rest, RunTools
from corral.session.state import fold_all
from tests.unit.brain.simulation import OWN, SimulatedSession, answer, use


def types(session: SimulatedSession) -> list[str]:
    return [event.type for event in session.events if "status" not in event.type]


def test_the_model_gets_the_answer_in_the_next_request_without_anybody_else() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.acts(answer(use("toolu_1", OWN, word="hello")))
    assert session.state.lead.calls == ()
    assert isinstance(session.rests(), Rest)
    assert session.actions == ["CallModel", "CallModel", "GoIdle", "Rest"]
    result = session.requests[1][-1]["content"][0]
    assert (result["tool_use_id"], result["is_error"]) == ("toolu_1", False)
    assert result["content"][0]["text"] == "{'word': 'hello'}"
    assert types(session)[2:5] == ["agent.mcp_tool_use", "span.model_request_end", "agent.mcp_tool_result"]


def test_beside_other_calls_its_answer_waits_for_theirs() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.acts(answer(use("toolu_1", OWN), use("toolu_2", "bash"), use("toolu_3", OWN, word="x")))
    [call] = session.state.lead.calls
    assert isinstance(session.rests(), RunTools)
    session.answers(call, content=[{"type": "text", "text": "done"}], is_error=False)
    session.rests()
    results = session.requests[1][-1]["content"]
    assert [(block["tool_use_id"], block["is_error"]) for block in results] == [
        ("toolu_1", True),
        ("toolu_2", False),
        ("toolu_3", False),
    ]


def test_at_no_length_of_the_log_that_a_commit_leaves_is_such_a_call_open() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    lengths = [0]
    for _ in range(4):
        session.acts(answer(use(f"toolu_{len(lengths)}", OWN)) if len(lengths) < 3 else None)
        lengths.append(len(session.events))
        assert session.state.lead.calls == ()
    assert fold_all(type(session.state)(), session.events).lead.calls == ()


def test_an_agent_that_has_no_such_tool_may_not_call_it() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.acts(answer(use("toolu_1", "ant__unknown")))
    session.rests()
    assert "agent.tool_use" in types(session)
    assert session.requests[1][-1]["content"][0]["is_error"]
