"""What an agent hands over as files is seen by the grader, and can be had afterwards (section 14)."""

import base64
from pathlib import Path
from typing import Any

from corral.brain.evidence import DOCUMENTS, IMAGES, LISTED, TEXT_CHARACTERS
from corral.brain.grader import MOST_READS, PART
from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.judging import (
    GRADER,
    asked,
    ends,
    grades,
    hands_over,
    outcome,
    reading,
    results,
    shown,
    starts,
    verdict,
)
from tests.e2e.test_files_in_sessions import OUTPUTS, PDF, PNG, content_of, outputs
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool
from tests.unit.brain.test_office_text import workbook


async def judged(session: SessionUnderTest) -> dict[str, Any]:
    """The first request to the grader, once the outcome has ended."""
    await session.sends(outcome({"text": "done"}))
    await session.idle()
    return asked(session.corral.model)[0]


async def test_a_file_written_in_the_sandbox_is_judged_and_can_be_downloaded(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET)
        write = bash(f"mkdir -p {OUTPUTS}/out; echo the figures > {OUTPUTS}/out/report.md")
        grades(corral.model, verdict("needs_revision", "no total"), verdict("satisfied"))
        total = bash(f"echo the total >> {OUTPUTS}/out/report.md")
        await session.sends(outcome(write, {"text": "a draft"}, total, {"text": "done"}))
        await session.idle()
        first, second = (shown(request) for request in asked(corral.model))
        assert '"out/report.md"' in first
        assert "the figures\n" in first
        assert "the figures\nthe total\n" in second
        assert await results(session) == ["satisfied"]
        assert await content_of(session, "report.md") == b"the figures\nthe total\n"


async def test_images_and_documents_are_shown_as_what_they_are(corral: Corral) -> None:
    session = await corral.session()
    for path, content in (("a.png", PNG), ("b.pdf", PDF), ("c.txt", b"words"), ("d.bin", b"\x00\xff")):
        await hands_over(corral, session, path, content)
    request = await judged(session)
    blocks = request["messages"][0]["content"]
    [image] = [block for block in blocks if block["type"] == "image"]
    [document] = [block for block in blocks if block["type"] == "document"]
    assert base64.b64decode(image["source"]["data"]) == PNG
    assert base64.b64decode(document["source"]["data"]) == PDF
    text = shown(request)
    assert "words" in text
    assert '- "d.bin": application/octet-stream, 2 bytes, its contents cannot be shown' in text
    assert sorted(await outputs(session)) == ["a.png", "b.pdf", "c.txt", "d.bin"]


async def test_what_is_no_image_is_not_shown_as_one(corral: Corral) -> None:
    session = await corral.session()
    await hands_over(corral, session, "a.png", b"no image at all")
    request = await judged(session)
    assert {block["type"] for block in request["messages"][0]["content"]} == {"text"}
    assert "its contents cannot be shown" in shown(request)
    assert await results(session) == ["satisfied"]


async def test_a_refused_request_is_made_again_without_media(corral: Corral) -> None:
    session = await corral.session()
    await hands_over(corral, session, "a.png", PNG)
    corral.model.rule(
        if_system_contains=GRADER, if_text_contains="contents cannot be shown", tools=[verdict("satisfied")]
    )
    grades(corral.model, verdict("failed"), error={"status": 400, "times": 1})
    await judged(session)
    with_it, without = (
        [block["type"] for block in one["messages"][0]["content"]] for one in asked(corral.model)
    )
    assert "image" in with_it
    assert "image" not in without
    assert await results(session) == ["satisfied"]


async def test_a_long_text_is_read_in_parts(corral: Corral) -> None:
    session = await corral.session()
    text = "".join(f"line {n:07}\n" for n in range(6_000))
    await hands_over(corral, session, "long.txt", text.encode())
    corral.model.rule(
        if_system_contains=GRADER, if_result_contains="line 0005999", tools=[verdict("satisfied")]
    )
    corral.model.rule(
        if_system_contains=GRADER,
        if_result_contains="go on at offset",
        tools=[reading("long.txt", offset=2 * PART)],
    )
    grades(corral.model, reading("long.txt", offset=PART))
    request = await judged(session)
    assert text[:PART] in shown(request)
    assert text[: PART + 1] not in shown(request)
    assert request["tool_choice"] == {"type": "any"}
    assert [tool["name"] for tool in request["tools"]] == ["submit_verdict", "read_deliverable"]
    last = asked(corral.model)[-1]["messages"]
    parts = [block["content"][0]["text"] for turn in last[2::2] for block in turn["content"]]
    assert parts[0].startswith(text[PART : 2 * PART])
    assert parts[1] == text[2 * PART :]
    assert await results(session) == ["satisfied"]
    # The reading is part of one evaluation, and what it cost is in its end.
    assert len(await starts(session)) == 1
    [end] = await ends(session)
    used = (await session.retrieve()).usage
    spans = await session.events(types=["span.model_request_end"])
    assert used.output_tokens == end.usage.output_tokens + sum(one.model_usage.output_tokens for one in spans)
    assert end.usage.output_tokens > 0


async def test_a_file_that_is_not_there_is_told_to_be_missing(corral: Corral) -> None:
    session = await corral.session()
    await hands_over(corral, session, "a.txt", b"words")
    corral.model.rule(if_system_contains=GRADER, if_result_contains="no such", tools=[verdict("satisfied")])
    grades(corral.model, reading("../../etc/passwd"))
    await judged(session)
    assert await results(session) == ["satisfied"]


async def test_a_grader_that_only_reads_is_made_to_judge(corral: Corral) -> None:
    session = await corral.session()
    await hands_over(corral, session, "a.txt", b"words")
    grades(corral.model, reading("a.txt"))
    await judged(session)
    requests = asked(corral.model)
    assert len(requests) == MOST_READS + 3
    assert requests[MOST_READS - 1]["tool_choice"] == {"type": "any"}
    assert requests[MOST_READS]["tool_choice"] == {"type": "tool", "name": "submit_verdict"}
    assert await results(session) == ["failed"]


async def test_how_much_is_shown_has_bounds(corral: Corral) -> None:
    session = await corral.session()
    texts = TEXT_CHARACTERS // PART + 1
    for n in range(texts):
        await hands_over(corral, session, f"a{n}.txt", b"x" * PART)
    for n in range(IMAGES + 1):
        await hands_over(corral, session, f"b{n:02}.png", PNG)
    for n in range(DOCUMENTS + 1):
        await hands_over(corral, session, f"c{n}.pdf", PDF)
    for n in range(LISTED):
        await hands_over(corral, session, f"d{n:03}.txt", b"")
    request = await judged(session)
    types = [block["type"] for block in request["messages"][0]["content"]]
    assert (types.count("image"), types.count("document")) == (IMAGES, DOCUMENTS)
    text = shown(request)
    assert text.count("x" * PART) == texts - 1
    assert "text that can be read with read_deliverable" in text
    total = texts + IMAGES + 1 + DOCUMENTS + 1 + LISTED
    assert f"and {total - LISTED} more, which are not listed" in text


async def test_a_spreadsheet_is_read_cell_by_cell(corral: Corral) -> None:
    session = await corral.session()
    row = '<row><c r="A1" t="inlineStr"><is><t>Growth</t></is></c><c r="B1"><f>1+1</f><v>2</v></c></row>'
    await hands_over(corral, session, "model.xlsx", workbook(f"<worksheet>{row}</worksheet>"))
    text = shown(await judged(session))
    assert "# Sheet Assumptions\nA1: Growth | B1: =1+1 → 2" in text
