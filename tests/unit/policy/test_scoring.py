"""The labelled calls, what the example policy makes of them, and a judge that is played."""

from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from corral.cli import main
from corral.policy.loading import parse_policy
from corral.policy.scoring import (
    CasesError,
    Labelled,
    Scores,
    by_judge,
    by_policy,
    packaged_cases,
    parse_cases,
    score,
    table,
)
from corral.server import provider_of
from corral.settings import Inference
from corral.testing import ScriptedModel
from corral.testing.scripts import judge
from tests.policy_world import JUDGE, case_of, is_for_judge


def test_there_are_calls_of_both_kinds_and_many_that_follow_injections() -> None:
    cases = packaged_cases()
    labels = Counter(one.label for one in cases)
    assert len(cases) >= 120
    assert min(labels.values()) >= 60
    assert len({one.id for one in cases}) == len(cases)
    assert sum(bool(one.seen) for one in cases) >= 20
    assert {one.label for one in cases if one.seen} == {"harmless", "harmful"}
    assert all(one.user for one in cases)


async def test_the_score_of_the_example_policy_is_the_one_in_the_docs() -> None:
    example = files("corral.policy").joinpath("example.yaml").read_text("utf-8")
    scores = await score(packaged_cases(), by_policy(parse_policy(example)))
    assert table(scores) in Path("docs/policies.md").read_text("utf-8")
    assert scores.recall >= 0.9
    assert scores.hindered == []


async def test_a_judge_is_measured_in_the_same_way() -> None:
    """The scripted model plays the judge, by a function of what it is shown."""
    cases = packaged_cases()
    async with ScriptedModel() as model:
        scores = await judged(model, cases)
        shown = [case_of(body) for body in model.requests() if is_for_judge(body)]
        model.assert_no_refusals()
    assert len(shown) == len(cases)
    expected = Counter((one.label, judge.decide(document(one))) for one in cases)
    for label, found in (("harmless", scores.harmless), ("harmful", scores.harmful)):
        wanted = tuple(expected[label, decision] for decision in ("allow", "ask", "deny"))
        assert (found.allowed, found.asked, found.denied) == wanted
        assert found.denied != found.total != found.allowed


async def test_calls_that_a_judge_cannot_judge_are_counted_as_asked() -> None:
    cases = packaged_cases()[:10]
    async with ScriptedModel() as model:
        model.rule(if_system_contains=JUDGE, text="I would rather not say.")
        scores = await judged(model, cases)
    assert scores.harmless.asked + scores.harmful.asked == len(cases)


def document(one: Labelled) -> dict[str, Any]:
    return {"call": {"tool": one.tool, "input": one.input}, "user": one.user}


async def judged(model: ScriptedModel, cases: list[Labelled]) -> Scores:
    provider = provider_of(Inference(provider="gateway", base_url=model.base_url))
    try:
        return await score(cases, by_judge(provider, "claude-haiku-4-5", 20))
    finally:
        await provider.close()


@pytest.mark.parametrize("text", ["", '{"id": "a"}', "nonsense"])
def test_cases_that_cannot_be_used_are_named_by_their_line(text: str) -> None:
    with pytest.raises(CasesError, match=r"line 1|holds no case"):
        parse_cases(text, "cases.jsonl")


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["policy", *words])
    return result.exit_code, result.output


def test_the_commands_say_what_a_file_does(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(run("example")[1])
    assert run("check", str(path))[0] == 0
    command = ("try", str(path), "--tool", "bash", "--input")
    assert run(*command, '{"command": "ls"}') == (0, "allow (no rule matches: the default)\n")
    status, said = run(*command, '{"command": "rm -rf /"}')
    assert (status, said.splitlines()[0]) == (4, "deny (rule destruction)")
    assert run(*command, '{"command": "git push --force origin x"}')[0] == 3
    assert run(*command, "[]")[0] == 2
    status, said = run("score", str(path))
    assert status == 0
    assert "| **harmful** | 85 |" in said
    assert run("score")[0] == 2


def test_the_check_command_lists_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrules:\n  - {id: a, effect: x, tools: [b]}\n  - {id: c, effect: deny}\n")
    status, said = run("check", str(path))
    assert status == 1
    assert "line 3: rules[0].effect" in said
    assert "line 4: rules[1].tools" in said
