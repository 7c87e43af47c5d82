"""What becomes of a call when the agent's policy, the operator's and the judge's word are taken together."""

from typing import Any

import pytest

from corral.brain.mcp_tools import McpTool
from corral.brain.own_tools import OwnAnswer, own_tool
from corral.brain.permission import Evaluation
from corral.brain.proposals import Kind, Proposal, propose
from corral.brain.rulings import Judged, rule
from corral.brain.voice import Voice
from corral.policy.judge import Verdict, unjudged
from corral.policy.rules import GateDecision

ALLOW = Evaluation("allow", {"type": "always_allow"})
ASK = Evaluation("ask", {"type": "always_ask"})
AUTO = Evaluation(
    "ask", {"type": "auto", "evaluated_permission": {"type": "ask", "reason_code": "indeterminate"}}
)
NOT_ENABLED = Evaluation("deny", None)
OVER = GateDecision("allow", "r", over_ask=True)
FINE, DOUBT, NEVER = (
    GateDecision("allow", "r"),
    GateDecision("ask", "r"),
    GateDecision("deny", "r", "Because."),
)


def of(own: Evaluation, kind: Kind = "built_in") -> Proposal:
    return Proposal("t", kind, "tool", {}, own)


@pytest.mark.parametrize(
    ("own", "gate", "becomes", "policy"),
    [
        (ALLOW, None, "allow", "always_allow"),
        (ALLOW, FINE, "allow", "always_allow"),
        (ALLOW, DOUBT, "ask", "always_ask"),
        (ALLOW, NEVER, "deny", None),
        (ASK, FINE, "ask", "always_ask"),
        (ASK, DOUBT, "ask", "always_ask"),
        (ASK, OVER, "allow", "always_allow"),
        (ASK, NEVER, "deny", None),
        (AUTO, FINE, "ask", "auto"),
        (AUTO, OVER, "allow", "always_allow"),
        (NOT_ENABLED, OVER, "deny", None),
        (NOT_ENABLED, DOUBT, "deny", None),
    ],
)
def test_the_strictest_holds(
    own: Evaluation, gate: GateDecision | None, becomes: str, policy: str | None
) -> None:
    found = rule(of(own), gate).evaluation
    assert found.evaluated_permission == becomes
    assert (found.evaluation or {}).get("type") == policy


@pytest.mark.parametrize(
    ("said", "gate", "becomes", "policy"),
    [
        ("allow", None, "allow", "auto"),
        ("allow", DOUBT, "ask", "always_ask"),
        ("ask", FINE, "ask", "auto"),
        ("deny", DOUBT, "deny", "auto"),
        ("deny", None, "deny", "auto"),
    ],
)
def test_the_judges_word_stands_for_the_agents_policy(
    said: Any, gate: GateDecision | None, becomes: str, policy: str
) -> None:
    found = rule(of(AUTO), gate, Judged(Verdict(said), "m")).evaluation
    assert (found.evaluated_permission, (found.evaluation or {})["type"]) == (becomes, policy)
    inner = (found.evaluation or {}).get("evaluated_permission")
    assert inner is None or inner["type"] == becomes


def test_without_a_judgement_no_call_runs() -> None:
    assert rule(of(AUTO), None, Judged(unjudged("late"), "m")).evaluation == AUTO
    assert rule(of(AUTO), FINE, Judged(unjudged("late"), "m")).evaluation == AUTO


def test_what_is_answered_at_once_cannot_be_held() -> None:
    assert rule(of(ALLOW, "own"), DOUBT).denied
    assert rule(of(ALLOW, "own"), NEVER).refusal == (
        "Permission to use tool has been denied. The operator's policy says: Because."
    )


def test_a_client_is_not_asked_about_what_it_runs_itself() -> None:
    assert rule(of(ALLOW, "custom"), DOUBT).evaluation == ALLOW
    assert rule(of(ALLOW, "custom"), NEVER).denied


def test_nothing_is_recorded_where_the_agents_policy_alone_decides() -> None:
    assert rule(of(ASK)).record() is None
    kept = rule(of(ASK), DOUBT, digest="sha256:1").record()
    assert kept is not None
    assert kept["gate"] == {"effect": "ask", "rule": "r", "policy": "sha256:1"}


def test_every_kind_of_tool_has_its_name_in_policy_files() -> None:
    agent: dict[str, Any] = {
        "name": "a",
        "tools": [
            {
                "type": "agent_toolset_20260401",
                "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
                "configs": [],
            },
            {"type": "custom", "name": "pay", "description": "", "input_schema": {"type": "object"}},
        ],
    }
    found = own_tool("ant__find", "Finds.", lambda given: OwnAnswer("x"))
    definition: dict[str, Any] = {
        "name": "mcp__git_hub__delete",
        "description": "Deletes.",
        "input_schema": {},
    }
    mcp = {"mcp__git_hub__delete": McpTool("git/hub", "repo/delete", definition, ASK)}
    voice = Voice("t", agent, False, own={"ant__find": found}, mcp=mcp, web=frozenset({"web_fetch"}))

    def name(tool: str) -> str:
        return propose(voice, {"type": "tool_use", "id": "t", "name": tool, "input": {}}).tool

    assert name("bash") == "bash"
    assert name("web_fetch") == "web_fetch"
    assert name("pay") == "custom/pay"
    assert name("ant__find") == "corral/ant__find"
    assert name("mcp__git_hub__delete") == "mcp/git%2Fhub/repo%2Fdelete"
    made_up = propose(voice, {"type": "tool_use", "id": "t", "name": "ant__create_agent", "input": {}})
    assert (made_up.kind, made_up.evaluation) == ("built_in", NOT_ENABLED)
