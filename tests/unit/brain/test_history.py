"""What an agent may read of its log: all that it was shown, nothing of anybody else's, in bounded parts."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from corral.brain.history import ANSWER, ENTRIES, EXCERPT, LOOKUPS, TOOL, History
from corral.brain.own_tools import OwnAnswer
from corral.store.database import Database

SESSION = "sesn_1"
Told = tuple[str, Mapping[str, Any]]


@pytest_asyncio.fixture(autouse=True)
async def _a_session(database: Database) -> None:
    await database.execute(
        "insert into environments (id, name, config) values ('env_1', 'E', '{\"type\": \"cloud\"}')"
    )
    await database.execute(
        "insert into sessions (id, title, environment_id, agent_id, agent_version, agent, primary_thread_id,"
        " usage, last_seq) values (%s, 'First', 'env_1', 'agent_1', 1, '{}', 'sthr_1', '{}', 7)",
        (SESSION,),
    )


async def log(database: Database, *events: Told, after: int = 0, thread: str = "sthr_1") -> None:
    for seq, (kind, body) in enumerate(events, after + 1):
        kept = {name: value for name, value in body.items() if name != "private"}
        private = body.get("private")
        await database.execute(
            "insert into events (session_id, seq, id, thread_id, type, body, private, processed_at)"
            " values (%s, %s, %s, %s, %s, %s, %s, now())",
            (
                *(SESSION, seq, f"sevt_{seq}", thread, kind, msgspec.json.encode(kept).decode()),
                None if private is None else msgspec.json.encode(private).decode(),
            ),
        )


def says(text: str, kind: str = "user.message", **fields: Any) -> Told:
    return kind, {"content": [{"type": "text", "text": text}], **fields}


async def look(database: Database, *, up_to: int = 10_000, thread: str = "sthr_1", **asked: Any) -> OwnAnswer:
    call = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": asked}
    return (await History(database, SESSION, thread).look_up([call], up_to=up_to))["toolu_1"]


async def test_entries_are_listed_in_order_with_their_positions(database: Database) -> None:
    call = ("agent.custom_tool_use", {"name": "look_up", "input": {"what": "x"}})
    result = says("found", "user.custom_tool_result", custom_tool_use_id="sevt_3", is_error=True)
    hidden = ("span.model_request_end", {"private": {"outcome": "completed", "content": ["SECRET thought"]}})
    await log(database, says("go"), hidden, call, result, says("done", "agent.message"))
    answer = await look(database)
    assert answer.text.split("\n\n") == [
        "[1] user sevt_1: go",
        '[3] tool_call sevt_3: look_up {"what":"x"}',
        "[4] tool_result sevt_4: (failed) found",
        "[5] agent sevt_5: done",
        "(there is nothing more)",
    ]
    assert not answer.is_error


async def test_a_list_is_narrowed_by_position_type_and_text(database: Database) -> None:
    await log(
        database, *(says(f"number {n} \n", "agent.message" if n % 2 else "user.message") for n in range(9))
    )
    assert "[4] agent" in (await look(database, after=3, before=5)).text
    assert "[3]" not in (await look(database, after=3, before=5)).text
    assert "user" not in (await look(database, types=["agent"])).text
    found = (await look(database, contains="NUMBER 7 \n")).text
    assert found.startswith("[8] agent")
    assert found.count("number") == 1
    assert (await look(database, newest_first=True)).text.startswith("[9]")
    # What the model was not shown when it asked is not there.
    assert (await look(database, newest_first=True, up_to=5)).text.startswith("[5]")


async def test_another_threads_log_is_not_read(database: Database) -> None:
    await log(database, says("mine"))
    await log(database, says("theirs"), after=1, thread="sthr_2")
    assert "theirs" not in (await look(database)).text
    assert "theirs" in (await look(database, thread="sthr_2")).text
    for named in ("2", "sevt_2"):
        assert (await look(database, entry=named)).is_error


async def test_answers_are_bounded_and_say_how_to_go_on(database: Database) -> None:
    await log(database, *(says(f"{n} " + "x" * 3_000) for n in range(40)))
    seen: list[str] = []
    after = 0
    while True:
        answer = (await look(database, after=after)).text
        assert len(answer) < ANSWER + 2 * EXCERPT
        *entries, end = answer.split("\n\n")
        seen += entries
        if "nothing more" in end:
            break
        after = int(end.partition("after=")[2].rstrip(")"))
    assert [entry.partition(" ")[0] for entry in seen] == [f"[{n}]" for n in range(1, 41)]
    assert "more characters)" in seen[0]


async def test_a_list_has_so_many_entries_at_most_backwards_too(database: Database) -> None:
    await log(database, *(says(f"<{n}>") for n in range(ENTRIES + 5)))
    newest = (await look(database, newest_first=True)).text
    assert newest.endswith("(there may be more: go on with before=6)")
    assert (await look(database, newest_first=True, before=6)).text.count("<") == 5


async def test_one_entry_is_read_whole_in_parts(database: Database) -> None:
    text = "a" * ANSWER + "b" * 10
    await log(database, says(text))
    first = (await look(database, entry="1")).text
    assert first.endswith(f"(go on with offset={ANSWER})")
    assert (await look(database, entry=1, offset=ANSWER)).text.endswith("\n" + "b" * 10)
    assert (await look(database, entry="sevt_1", contains="BBB")).text.endswith("b" * 10)
    assert not (await look(database, entry="1", offset=10**9)).is_error


async def test_what_a_result_shows_in_part_is_found_and_read_as_a_whole(database: Database) -> None:
    document = {"type": "document", "source": {"type": "text", "data": "x" * 5_000 + " the needle"}}
    result = says("a preview", "agent.tool_result", tool_use_id="u", private={"whole": [document]})
    await log(database, says("go"), result)
    assert "the needle" in (await look(database, contains="needle")).text
    assert "5011" in (await look(database, entry="2")).text


async def test_what_stands_only_in_the_json_is_not_found(database: Database) -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "needle"}}
    await log(database, ("user.message", {"content": [image]}))
    assert (await look(database, contains="needle")).text == "(there is nothing more)"
    assert "[image]" in (await look(database)).text


@pytest.mark.parametrize(
    "asked", [{"after": "x"}, {"types": ["nobody"]}, {"entry": "7"}, {"entry": "٣"}, {"contains": 5}]
)
async def test_what_cannot_be_answered_is_an_error(database: Database, asked: dict[str, Any]) -> None:
    assert (await look(database, **asked)).is_error


async def test_so_many_calls_of_one_response_are_answered(database: Database) -> None:
    calls: list[dict[str, Any]] = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": TOOL, "input": {}} for n in range(LOOKUPS + 5)
    ]
    answers = await History(database, SESSION, "sthr_1").look_up(calls, up_to=1)
    assert len(answers) == LOOKUPS
