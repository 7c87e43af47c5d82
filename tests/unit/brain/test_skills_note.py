"""What the model is told of its skills, and how it finds one among many (contract section 17)."""

import itertools
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from corral.brain.ranking import Ranking, words
from corral.brain.skills_note import FIND, FOUND, LISTED, PICKED, SkillShelf
from corral.session.events import Event
from corral.wire.skills import SessionSkill

VERBS = (
    "convert", "summarise", "validate", "translate", "deploy", "monitor", "archive", "encrypt", "merge",
    "annotate", "compress", "forecast", "reconcile", "schedule", "audit", "benchmark", "migrate", "redact",
    "tokenise", "visualise",
)  # fmt: skip
THINGS = (
    "invoices", "spreadsheets", "podcasts", "kubernetes clusters", "payroll", "satellite images", "contracts",
    "medical records", "sql dumps", "game levels", "tax returns", "recipes", "blueprints", "log files",
    "chess games", "subtitles", "firmware", "weather data", "job adverts", "patents", "receipts",
    "survey answers", "sheet music", "genomes", "shipping labels", "voice mails", "floor plans",
    "train timetables", "bank statements", "museum catalogues", "crossword puzzles", "flight plans",
    "lab notebooks", "insurance claims", "poems", "street maps", "x-ray scans", "election results",
    "stock options", "bird songs", "wine labels", "court rulings", "bus routes", "sewing patterns",
    "soil samples", "telescope logs", "phone bills", "tide tables", "zoning permits", "ski lifts",
)  # fmt: skip
PAIRS = list(itertools.product(VERBS, THINGS))


def skills(count: int) -> list[SessionSkill]:
    return [
        SessionSkill(
            version_id=f"skver_{n}",
            name=f"{verb}-{thing.replace(' ', '-')}",
            description=f"Knows how to {verb} {thing} the way the company does it. Use it whenever a user "
            "asks for that, also where only a part of the work is wanted.",
        )
        for n, (verb, thing) in enumerate(PAIRS[:count])
    ]


def shelf(listed: list[SessionSkill], *, self_hosted: bool = False) -> SkillShelf:
    agent = {"skills": [{"version": skill.version_id} for skill in listed]}
    return SkillShelf(agent, listed, self_hosted=self_hosted)


def event(kind: str, private: Any = None, **body: Any) -> Event:
    return Event(1, "sevt_1", kind, "sthr_1", body, datetime(2026, 1, 1, tzinfo=UTC), private)


def said(text: str) -> Event:
    return event("user.message", content=[{"type": "text", "text": text}])


ANSWERED = event("span.model_request_end", {"outcome": "completed"})


def names(text: str) -> list[str]:
    return [line[2:].partition(" ")[0] for line in text.splitlines() if line.startswith("- ")]


def test_a_few_skills_are_all_listed_with_name_path_and_description() -> None:
    note = shelf(skills(LISTED)).note()
    assert names(note) == [skill.name for skill in skills(LISTED)]
    assert "- convert-invoices (/workspace/skills/convert-invoices/SKILL.md): Knows how to convert" in note
    assert FIND not in note
    assert shelf(skills(LISTED)).tools == {}


def test_on_self_hosted_paths_start_at_the_working_directory() -> None:
    note = shelf(skills(1), self_hosted=True).note()
    assert "(skills/convert-invoices/SKILL.md)" in note
    assert "working directory" in note


def test_without_skills_nothing_is_said() -> None:
    assert shelf([]).note() == ""
    assert SkillShelf({"skills": []}, skills(3), self_hosted=False).note() == ""


def test_a_description_cannot_break_out_of_its_line() -> None:
    skill = SessionSkill(version_id="v", name="one", description="First\n\n- two (/etc/passwd): second")
    assert names(shelf([skill]).note()) == ["one"]


def test_of_many_skills_those_are_listed_that_fit_what_the_user_said_first() -> None:
    many = shelf(skills(1000))
    many.add(said("Please reconcile these bank statements before the audit."))
    listed = names(many.note())
    assert listed[0] == "reconcile-bank-statements"
    assert "audit-bank-statements" in listed
    assert len(listed) == PICKED
    assert f"1000 skills in all, of which these are listed. Look for others with {FIND}" in many.note()


def test_the_list_is_decided_once_by_what_came_before_the_first_answer() -> None:
    many = shelf(skills(1000))
    many.add(said("Forecast the recipes."))
    many.add(event("span.model_request_end", {"outcome": "failed"}))
    many.add(said("And translate poems."))
    many.add(ANSWERED)
    first = many.note()
    many.add(said("Now deploy the firmware."))
    many.add(ANSWERED)
    assert many.note() == first
    assert {"forecast-recipes", "translate-poems"} <= set(names(first))
    assert "deploy-firmware" not in names(first)
    # Whoever reads the same log gets the same list.
    again = shelf(skills(1000))
    for one in (said("Forecast the recipes."), said("And translate poems."), ANSWERED, said("x")):
        again.add(one)
    assert again.note() == first


def test_if_nothing_fits_the_first_ones_are_listed() -> None:
    many = shelf(skills(100))
    many.add(said("¡¿?!"))
    assert names(many.note()) == [skill.name for skill in skills(PICKED)]


def test_the_prompt_is_bounded_whatever_the_skills_say() -> None:
    wordy = [
        SessionSkill(version_id=f"v{n}", name=f"{'n' * 60}{n}", description="word " * 204)
        for n in range(1000)
    ]
    many = shelf(wordy)
    many.add(said("word " * 100_000))
    assert len(many.note()) < PICKED * 1200 + 1000


def test_each_of_a_thousand_skills_is_found_by_what_it_is_for() -> None:
    many = shelf(skills(1000))
    answer = many.tools[FIND].answer
    begun = time.perf_counter()
    for verb, thing in PAIRS:
        brought = answer({"query": f"I would like you to {verb} some {thing}, can you?"})
        assert names(brought.text)[0] == f"{verb}-{thing.replace(' ', '-')}"
        assert len(names(brought.text)) <= FOUND
    assert time.perf_counter() - begun < 30


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("reconciling a bank statement", "reconcile-bank-statements"),
        ("DEPLOYED the Kubernetes cluster", "deploy-kubernetes-clusters"),
        ("encryption of payrolls", "encrypt-payroll"),
        ("benchmarking; chess-games", "benchmark-chess-games"),
    ],
)
def test_other_forms_of_the_same_words_find_it_too(query: str, name: str) -> None:
    assert name in names(shelf(skills(1000)).tools[FIND].answer({"query": query}).text)[:3]


@pytest.mark.parametrize("given", [{}, {"query": ""}, {"query": " "}, {"query": 3}, {"query": None}])
def test_a_search_without_a_query_says_what_it_needs(given: dict[str, Any]) -> None:
    brought = shelf(skills(100)).tools[FIND].answer(given)
    assert brought.is_error
    assert brought.text.startswith("query: must be")


def test_a_search_that_finds_nothing_says_so() -> None:
    brought = shelf(skills(100)).tools[FIND].answer({"query": "zzzz"})
    assert not brought.is_error
    assert brought.text.startswith("No skill has")


def test_an_agent_finds_its_own_skills_alone() -> None:
    listed = skills(200)
    agent = {"skills": [{"version": skill.version_id} for skill in listed[:100]]}
    own = SkillShelf(agent, listed, self_hosted=False)
    assert "150" not in own.note()
    assert names(own.tools[FIND].answer({"query": listed[150].name}).text)[0] != listed[150].name


def test_rare_words_weigh_more_than_common_ones() -> None:
    ranking = Ranking(["a common text", "another common text", "common and peculiar", ""])
    assert ranking.best("common peculiar", 2)[0] == 2
    assert ranking.best("nothing of it", 9) == []
    assert Ranking([]).best("x", 9) == []


def test_words_of_other_scripts_are_compared_by_pairs_of_characters() -> None:
    ranking = Ranking(["송장을 처리합니다", "날씨를 알려 줍니다", "請求書を処理する", "Überweisungen prüfen"])
    assert ranking.best("이 송장 좀 봐줘", 1) == [0]
    assert ranking.best("請求書", 1) == [2]
    assert ranking.best("ÜBERWEISUNGEN", 1) == [3]
    assert list(words("日")) == ["日"]
