"""Files in sessions, with the real worker and real sandboxes: mounted, put out, and shown to the model."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool, worker_process

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.7 x"
UPLOADS = "/mnt/session/uploads"
OUTPUTS = "/mnt/session/outputs"


async def upload(corral: Corral, content: bytes, name: str = "data.csv", **fields: Any) -> str:
    return (await corral.client.beta.files.upload(file=(name, content), **fields)).id


def mounted(file_id: str, path: str) -> Any:
    return {"type": "file", "file_id": file_id, "mount_path": path}


async def run(session: SessionUnderTest, *steps: Any, after: str | None = None) -> list[str]:
    """Have the model take these steps; the texts of all results so far, and the id of the last idle event."""
    await session.says("go", script=[*steps, {"text": "done"}])
    await session.idle(after=after)
    return await texts(session)


async def texts(session: SessionUnderTest) -> list[str]:
    return [str(event.content[0].text) for event in await session.events(types=["agent.tool_result"])]


async def last_idle(session: SessionUnderTest) -> str:
    return [event.id for event in await session.events(types=["session.status_idle"])][-1]


async def outputs(session: SessionUnderTest) -> dict[str, Any]:
    """The session's downloadable files by name."""
    page = await session.corral.client.beta.files.list(scope_id=session.id, limit=1000)
    return {file.filename: file for file in page.data if file.downloadable}


async def content_of(session: SessionUnderTest, name: str) -> bytes:
    file = (await outputs(session))[name]
    return await (await session.corral.client.beta.files.download(file.id)).read()


def shares(folder: Path, session: SessionUnderTest) -> Path:
    return folder / "workspaces" / ".shares" / session.id


async def bubblewrap(corral: Corral, folder: Path, **changes: Any) -> Any:
    return await pool(corral, folder, sandbox="bubblewrap", **changes)


async def test_files_are_there_before_the_first_call_and_cannot_be_changed(
    corral: Corral, open_folder: Path
) -> None:
    resources = [
        mounted(await upload(corral, b"1,2\n"), "/data.csv"),
        mounted(await upload(corral, b"deep"), "a/b/c.txt"),
    ]
    async with at_work(await bubblewrap(corral, open_folder)):
        session = await corral.session(TOOLSET, resources=resources)
        results = await run(
            session,
            bash(f"cat {UPLOADS}/data.csv; cat {UPLOADS}/a/b/c.txt"),
            bash(f"echo x > {UPLOADS}/data.csv; rm {UPLOADS}/a/b/c.txt; touch {UPLOADS}/new; ls {UPLOADS}"),
            {"tools": [{"name": "read", "input": {"file_path": f"{UPLOADS}/a/b/c.txt"}}]},
            {"tools": [{"name": "write", "input": {"file_path": f"{UPLOADS}/x", "content": "x"}}]},
        )
    assert results[0] == "1,2\ndeep"
    assert results[1].count("Read-only file system") == 3
    assert "deep" in results[2]
    assert "read-only" in results[3]


async def test_a_file_that_is_added_is_there_at_the_next_call_and_one_that_is_taken_away_is_not(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await bubblewrap(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await run(session, bash(f"ls {UPLOADS}"))
        resources = corral.client.beta.sessions.resources
        added = await resources.add(
            session.id, type="file", file_id=await upload(corral, b"late"), mount_path="new/late.txt"
        )
        results = await run(session, bash(f"cat {UPLOADS}/new/late.txt"), after=await last_idle(session))
        assert results[1] == "late"
        await resources.delete(added.id, session_id=session.id)
        results = await run(session, bash(f"ls -A {UPLOADS}"), after=await last_idle(session))
    assert "new" not in results[2]


async def test_what_the_agent_puts_out_is_listed_with_the_session_as_its_scope(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await bubblewrap(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await run(
            session, bash(f"cd {OUTPUTS}; echo a,b > report.csv; mkdir -p charts; echo png > charts/one.png")
        )
        # By the time that the session is idle, not some seconds later.
        found = await outputs(session)
        assert set(found) == {"report.csv", "one.png"}
        report = found["report.csv"]
        assert (report.mime_type, report.size_bytes, report.scope.id) == ("text/csv", 4, session.id)
        assert await content_of(session, "report.csv") == b"a,b\n"


async def test_a_changed_output_takes_the_place_of_the_old_one_and_an_unchanged_one_stays(
    corral: Corral, open_folder: Path
) -> None:
    settings = await bubblewrap(corral, open_folder)
    async with at_work(settings):
        session = await corral.session(TOOLSET)
        await run(session, bash(f"cd {OUTPUTS}; echo one > a; echo same > b"))
        before = await outputs(session)
    (shares(open_folder, session) / "outputs.json").unlink()
    async with at_work(settings):
        await run(session, bash(f"echo two > {OUTPUTS}/a; touch {OUTPUTS}/b"), after=await last_idle(session))
        after = await outputs(session)
        assert after["a"].id != before["a"].id
        assert after["b"].id == before["b"].id
        assert await content_of(session, "a") == b"two\n"
    page = await corral.client.beta.files.list(scope_id=session.id)
    assert len(page.data) == 2


async def test_the_write_tool_puts_out_files_too(corral: Corral, open_folder: Path) -> None:
    write = {"name": "write", "input": {"file_path": f"{OUTPUTS}/note.md", "content": "# hi"}}
    async with at_work(await bubblewrap(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await run(session, {"tools": [write]})
        assert await content_of(session, "note.md") == b"# hi"


async def test_outputs_and_uploads_outlive_the_worker_that_was_killed(
    corral: Corral, open_folder: Path
) -> None:
    settings = await bubblewrap(corral, open_folder)
    session = await corral.session(TOOLSET, resources=[mounted(await upload(corral, b"kept"), "k")])
    async with worker_process(settings) as process:
        await run(session, bash(f"cp {UPLOADS}/k {OUTPUTS}/copy"))
        process.kill()
        await process.wait()
    await corral.database.execute("update work set lease_until = now() - interval '1 second'", {})
    async with at_work(settings):
        results = await run(session, bash(f"cat {UPLOADS}/k {OUTPUTS}/copy"), after=await last_idle(session))
    assert results[1] == "keptkept"


async def test_a_deleted_session_leaves_no_file_behind_but_the_upload(
    corral: Corral, open_folder: Path
) -> None:
    settings = await bubblewrap(corral, open_folder)
    upload_id = await upload(corral, b"mine")
    async with at_work(settings):
        session = await corral.session(TOOLSET, resources=[mounted(upload_id, "m")])
        await run(session, bash(f"echo out > {OUTPUTS}/o"))
        assert shares(open_folder, session).exists()
        await corral.client.beta.sessions.delete(session.id)
    async with at_work(settings):
        other = await corral.session(TOOLSET)
        await run(other, bash("true"))
    assert not shares(open_folder, session).exists()
    assert [file.id async for file in corral.client.beta.files.list()] == [upload_id]


async def test_the_model_is_told_of_the_outputs_folder_and_of_the_files_it_was_given(corral: Corral) -> None:
    session = await corral.session(TOOLSET, resources=[mounted(await upload(corral, b"x"), "data/x.csv")])
    await session.says("go", script=[{"text": "one"}, {"text": "two"}])
    idle = await session.idle()
    await corral.client.beta.sessions.resources.add(
        session.id, type="file", file_id=await upload(corral, b"y")
    )
    await session.says("again")
    await session.idle(after=idle.id)
    prompts = [msgspec.json.encode(request["system"]).decode() for request in requests(corral)]
    assert OUTPUTS in prompts[0]
    assert f"{UPLOADS}/data/x.csv" in prompts[0]
    assert prompts[0] == prompts[1]


def requests(corral: Corral) -> Sequence[dict[str, Any]]:
    return corral.model.requests()


async def says_file(session: SessionUnderTest, kind: str, file_id: str) -> Any:
    block: Any = {"type": kind, "source": {"type": "file", "file_id": file_id}}
    text: Any = {"type": "text", "text": "look"}
    return await session.sends({"type": "user.message", "content": [text, block]})


def inline(media_type: str, content: bytes) -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    ("kind", "name", "content", "source"),
    [
        pytest.param("image", "p.png", PNG, inline("image/png", PNG), id="image"),
        pytest.param("document", "d.pdf", PDF, inline("application/pdf", PDF), id="pdf"),
        pytest.param(
            "document",
            "t.txt",
            b"a text",
            {"type": "text", "media_type": "text/plain", "data": "a text"},
            id="text",
        ),
    ],
)
async def test_a_file_in_a_message_reaches_the_model_as_its_bytes_and_the_log_as_its_id(
    corral: Corral, kind: str, name: str, content: bytes, source: dict[str, Any]
) -> None:
    session = await corral.session()
    file_id = await upload(corral, content, name)
    await says_file(session, kind, file_id)
    await session.idle()
    [block] = [one for one in requests(corral)[-1]["messages"][0]["content"] if one["type"] == kind]
    assert block["source"] == source
    [message] = await session.events(types=["user.message"])
    assert message.content[1].source.file_id == file_id


async def test_a_file_that_is_gone_is_told_to_the_model_as_text(corral: Corral) -> None:
    session = await corral.session()
    file_id = await upload(corral, PNG, "p.png")
    await says_file(session, "image", file_id)
    idle = await session.idle()
    await corral.client.beta.files.delete(file_id)
    await session.says("and now?")
    await session.idle(after=idle.id)
    last = msgspec.json.encode(requests(corral)[-1]["messages"]).decode()
    assert f"A file ({file_id}) stood here" in last
    assert '"image"' not in last
