"""Policy files: everything that is wrong is said at once, with its line; what is right means what it says."""

from importlib.resources import files
from pathlib import Path

import pytest

from corral.policy.loading import LARGEST, PolicyError, load_policy, parse_policy
from corral.settings import SettingsError, load_settings


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        parse_policy(text)
    return [str(problem) for problem in raised.value.problems]


def test_all_problems_come_at_once_with_their_lines() -> None:
    found = problems(
        "version: 2\n"
        "defualt: deny\n"
        "rules:\n"
        "  - id: a\n"
        "    effect: forbid\n"
        "    tools: [bash]\n"
        "  - id: a\n"
        "    effect: deny\n"
        "    tools: [shell/x]\n"
        "    input: {command: {matches: '(a'}, url: {hosts: x}}\n"
        "  - effect: ask\n"
        "    over_ask: true\n"
    )
    assert [(line.split(":")[0], line.split(": ")[1]) for line in found] == [
        ("line 1", "version"),
        ("line 2", "defualt"),
        ("line 5", "rules[0].effect"),
        ("line 7", "rules[1].id"),
        ("line 9", "rules[1].tools"),
        ("line 10", "rules[1].input.command"),
        ("line 10", "rules[1].input.url"),
        ("line 11", "rules[2].id"),
        ("line 11", "rules[2].tools"),
        ("line 12", "rules[2].over_ask"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[]", "must be a mapping"),
        ("version: 1\nrules: {}", "must be a list"),
        ("version: 1\nversion: 1", "occurs twice"),
        ("version: 1\nrules: [x]", "must be a mapping"),
        ("{", "is not valid YAML"),
        ("version: !!python/object:os.system 1", "must be 1"),
        ("version: 1\nrules: [{id: a, effect: deny, tools: []}]", "empty list"),
        ("version: 1\nrules: [{id: a, effect: deny, tools: [x], agents: {}}]", "must have one of"),
        ("version: 1\nrules: [{id: a, effect: deny, tools: [x], agents: {name: x}}]", "no such field"),
        ("version: 1\nrules: [{id: a, effect: deny, tools: [x], input: {a: {}}}]", "must say what"),
        ("version: 1\nrules: [{id: a, effect: deny, tools: [x], input: {a: {matches: '(?!a)'}}}]", "RE2"),
        (
            "version: 1\nrules: [{id: a, effect: deny, tools: [x], input: {a: {matches: 'x{1000}{1000}'}}}]",
            "RE2",
        ),
        ("version: 1\nrules: [{id: a, effect: ask, tools: [corral/ant__x]}]", "cannot be held"),
        ("version: 1\nrules: [{id: a, effect: allow, tools: [x], reason: y}]", "is for denials"),
        ("version: 1\nrules: [{id: a, effect: deny, tools: [x], over_ask: perhaps}]", "true or false"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    assert any(said in problem for problem in problems(text)), problems(text)


def test_a_file_that_is_missing_or_far_too_large_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_text("#" * (LARGEST + 1))
    with pytest.raises(PolicyError, match="larger than"):
        load_policy(large)


def test_a_server_does_not_start_on_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrules:\n  - {id: a, effect: never, tools: [x]}\n  - {id: b, tools: [x]}\n")
    with pytest.raises(SettingsError) as raised:
        load_settings(None, {"CORRAL_POLICY__FILE": str(path)})
    said = [problem.message for problem in raised.value.problems]
    assert [("line 3" in said[0]), ("line 4" in said[1]), len(said)] == [True, True, 2]


def test_the_digest_names_the_text() -> None:
    one, other = parse_policy("version: 1\n"), parse_policy("version: 1\n\n")
    assert one.digest.startswith("sha256:")
    assert one.digest != other.digest
    assert one.digest == parse_policy("version: 1\n").digest


def test_the_example_can_be_used_and_stands_in_the_docs() -> None:
    text = files("corral.policy").joinpath("example.yaml").read_text("utf-8")
    assert parse_policy(text).rules
    assert text in Path("docs/policies.md").read_text("utf-8")
