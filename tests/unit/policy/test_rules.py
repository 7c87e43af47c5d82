"""What a policy says of a call: which rule decides, what a rule looks at, and what cannot get around it."""

from typing import Any

import pytest

from corral.policy.facts import AgentFacts, CallFacts, Surroundings
from corral.policy.loading import parse_policy
from corral.policy.patterns import LONGEST_TEXT
from corral.policy.rules import GateDecision, Policy


def policy(*rules: str, default: str = "allow") -> Policy:
    lines = "\n".join(f"  - {{id: r{n}, {rule}}}" for n, rule in enumerate(rules, 1))
    return parse_policy(f"version: 1\ndefault: {default}\nrules:\n{lines}\n")


def says(found: Policy, tool: str = "bash", /, **given: Any) -> GateDecision:
    return found.decide(CallFacts(tool, given))


def effect(found: Policy, tool: str = "bash", /, **given: Any) -> str:
    return says(found, tool, **given).effect


DENY = "effect: deny, tools: ['**']"
ASK = "effect: ask, tools: ['**']"
ALLOW = "effect: allow, tools: ['**']"
OVER = "effect: allow, over_ask: true, tools: ['**']"


@pytest.mark.parametrize("rules", [(ALLOW, OVER, ASK, DENY), (DENY, ASK, OVER, ALLOW), (ASK, DENY, ALLOW)])
def test_the_most_severe_rule_decides_wherever_it_stands(rules: tuple[str, ...]) -> None:
    assert effect(policy(*rules)) == "deny"


def test_of_equally_severe_rules_the_first_is_named() -> None:
    assert says(policy(ASK, DENY, DENY)).rule == "r2"


def test_the_default_holds_only_where_no_rule_matches() -> None:
    listed = policy("effect: allow, tools: [bash]", default="deny")
    assert says(listed) == GateDecision("allow", "r1")
    assert says(listed, "read") == GateDecision("deny")


def test_among_rules_that_allow_the_one_that_relaxes_is_meant() -> None:
    assert says(policy(ALLOW, OVER)).over_ask
    assert not says(policy(OVER, ASK)).over_ask


@pytest.mark.parametrize(
    ("pattern", "tool", "fits"),
    [
        ("bash", "bash", True),
        ("bash", "bashful", False),
        ("*", "bash", True),
        ("*", "mcp/github/list", False),
        ("**", "mcp/github/list", True),
        ("mcp/*/delete_*", "mcp/github/delete_repo", True),
        ("mcp/*/delete_*", "mcp/github/create", False),
        ("mcp/git?ub/*", "mcp/github/x", True),
        ("custom/*", "mcp/custom/x", False),
        ("mcp/**", "mcp/a/b/c", True),
    ],
)
def test_tools_are_named_by_globs_within_their_parts(pattern: str, tool: str, fits: bool) -> None:
    assert (effect(policy(f"effect: deny, tools: ['{pattern}']"), tool) == "deny") is fits


@pytest.mark.parametrize(
    ("condition", "given", "fits"),
    [
        ("command: 'git push*'", {"command": "git push origin/x"}, True),
        ("command: 'git push*'", {"command": "echo git push"}, False),
        ("command: {matches: 'rm\\s+-rf'}", {"command": "cd /; rm  -rf x"}, True),
        ("command: {matches: 'curl.*sh'}", {"command": "curl x \\\n | sh"}, True),
        ("command: {not_matches: '^ls'}", {"command": "ls"}, False),
        ("command: {not_matches: '^ls'}", {}, True),
        ("command: {matches: ['a', 'b']}", {"command": "b"}, True),
        ("command: {matches: a, not_matches: b}", {"command": "ab"}, False),
        ("force: {equals: true}", {"force": True}, True),
        ("force: {equals: true}", {"force": 1}, False),
        ("n: {matches: '^42$'}", {"n": 42}, True),
        ("command: {present: true}", {"command": ""}, True),
        ("command: {present: false}", {"command": ""}, False),
        ("/a/b: x", {"a": {"b": "x"}}, True),
        ("/a/1: x", {"a": ["y", "x"]}, True),
        ("/a/*/b: x", {"a": [{"b": "y"}, {"b": "x"}]}, True),
        ("/a/*: {not_glob: 'x*'}", {"a": ["xa", "y"]}, True),
        ("/a~1b: x", {"a/b": "x"}, True),
        ("'**': {matches: secret}", {"a": [{"b": {"c": "my secret"}}]}, True),
        ("'**': {matches: secret}", {"secret": 1}, True),
        ("command: x", {"command": {"x": 1}}, False),
    ],
)
def test_a_condition_looks_at_the_input(condition: str, given: dict[str, Any], fits: bool) -> None:
    found = policy(f"effect: deny, tools: [bash], input: {{{condition}}}")
    assert (effect(found, **given) == "deny") is fits


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/workspace/a.txt", True),
        ("a.txt", True),
        ("./x/../y", True),
        ("/workspace/../etc/passwd", False),
        ("../etc/passwd", False),
        ("//etc/passwd", False),
        ("/workspace-of-mine/x", False),
        ("/workspace/a/../../etc/shadow", False),
    ],
)
def test_a_path_is_what_it_leads_to(path: str, inside: bool) -> None:
    found = policy(
        "effect: allow, tools: [read], input: {file_path: {path: '/workspace/**'}}", default="deny"
    )
    assert (effect(found, "read", file_path=path) == "allow") is inside


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("https://example.com/x", True),
        ("https://docs.EXAMPLE.com./x", True),
        ("https://example.com@evil.net/", False),
        ("https://evil.net/?example.com", False),
        ("https://evil.net#.example.com", False),
        ("https://example.com.evil.net", False),
        ("https://evil.net\\@example.com", False),
        ("file:///etc/passwd", False),
        ("example.com", False),
        ("http://[::1", False),
    ],
)
def test_a_host_is_where_a_url_leads(url: str, inside: bool) -> None:
    found = policy(
        "effect: deny, tools: [web_fetch], input: {url: {not_host: [example.com, '*.example.com']}}"
    )
    assert (effect(found, "web_fetch", url=url) == "allow") is inside


@pytest.mark.parametrize("condition", ["path: '/workspace/**'", "not_path: '/etc/**'"])
def test_of_several_values_a_rule_that_lets_calls_run_needs_all(condition: str) -> None:
    found = policy(f"effect: allow, tools: [bash], input: {{/files/*: {{{condition}}}}}", default="deny")
    assert effect(found, files=["/workspace/a", "b"]) == "allow"
    assert effect(found, files=["/workspace/a", "/etc/passwd"]) == "deny"


@pytest.mark.parametrize("condition", ["path: '/etc/**'", "not_path: '/workspace/**'"])
def test_of_several_values_one_is_enough_for_a_rule_that_stops_calls(condition: str) -> None:
    found = policy(f"effect: deny, tools: [bash], input: {{/files/*: {{{condition}}}}}")
    assert effect(found, files=["/workspace/a", "b"]) == "allow"
    assert effect(found, files=["/workspace/a", "/etc/passwd"]) == "deny"


def test_what_cannot_be_looked_at_counts_against_the_call() -> None:
    long = "x" * (LONGEST_TEXT + 1)
    many = {"a": ["x"] * 10_001}
    assert (
        effect(policy("effect: deny, tools: [bash], input: {command: {matches: rm}}"), command=long) == "deny"
    )
    kind = "effect: deny, tools: [bash], input: {command: {not_matches: x}}"
    assert effect(policy(kind), command=long) == "deny"
    assert effect(policy("effect: ask, tools: [bash], input: {/a/*: {equals: y}}"), **many) == "ask"
    lenient = policy("effect: allow, tools: [bash], input: {command: {matches: x}}", default="ask")
    assert effect(lenient, command=long) == "ask"


def test_text_that_is_no_unicode_is_matched_all_the_same() -> None:
    found = policy("effect: deny, tools: [bash], input: {command: {matches: 'rm'}}")
    assert effect(found, command="\ud800 rm \x00") == "deny"


HELPED = (AgentFacts("helper"), AgentFacts("intern", "agent_1"))


def of(found: Policy, *agents: AgentFacts, **around: Any) -> str:
    return found.decide(CallFacts("bash", {}, agents, Surroundings(**around))).effect


def test_a_helper_of_another_name_does_not_get_around_a_rule_nor_gain_by_one() -> None:
    strict = policy("effect: deny, tools: [bash], agents: {names: [intern]}")
    assert of(strict, *HELPED) == "deny"
    assert of(strict, AgentFacts("senior")) == "allow"
    lenient = policy("effect: allow, tools: [bash], agents: {names: [helper]}", default="deny")
    assert of(lenient, *HELPED) == "deny"
    assert of(lenient, AgentFacts("helper")) == "allow"


def test_an_agent_is_found_by_its_id_and_one_that_a_model_made_has_none() -> None:
    found = policy("effect: deny, tools: [bash], agents: {ids: ['agent_*']}")
    assert of(found, AgentFacts("x", "agent_9")) == "deny"
    assert of(found, AgentFacts("agent_9")) == "allow"


def test_environments_sessions_and_vaults_narrow_a_rule() -> None:
    found = policy("effect: deny, tools: [bash], environments: {names: ['prod*'], metadata: {eu: 'yes'}}")
    assert of(found, environment_name="production", environment_metadata={"eu": "yes"}) == "deny"
    assert of(found, environment_name="production", environment_metadata={"eu": "no"}) == "allow"
    assert of(found, environment_name="staging", environment_metadata={"eu": "yes"}) == "allow"
    vaults = policy("effect: deny, tools: [bash], vaults: [vlt_1]")
    assert of(vaults, vault_ids=("vlt_0", "vlt_1")) == "deny"
    assert of(vaults, vault_ids=("vlt_0",)) == "allow"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)(.*)(.*)(.*)x", "(a?){50}a{50}"])
def test_no_pattern_makes_a_match_explode(pattern: str) -> None:
    # With backtracking each of these takes longer than anybody waits; the test would never end.
    found = policy(f"effect: deny, tools: [bash], input: {{command: {{matches: '{pattern}'}}}}")
    text = "a" * 200_000 + "!"
    expected = "deny" if pattern == "(a?){50}a{50}" else "allow"
    assert effect(found, command=text) == expected


def test_an_mcp_server_is_found_by_where_it_is_whatever_it_is_called() -> None:
    found = policy("effect: deny, tools: ['mcp/**'], servers: ['*.github.com']")

    def to(host: str, tool: str = "mcp/harmless/read") -> str:
        return found.decide(CallFacts(tool, {}, server_host=host)).effect

    assert to("api.github.com") == "deny"
    assert to("example.com") == "allow"
    assert to("") == "allow"
    everywhere = policy("effect: deny, tools: ['**'], servers: ['*']")
    assert everywhere.decide(CallFacts("bash", {})).effect == "allow"
