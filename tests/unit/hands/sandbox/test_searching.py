"""Searches that could hold things up, and directories beside the workspace. In a real sandbox."""

import asyncio
from pathlib import Path

import pytest

from corral.hands.sandbox.provider import Bind, SandboxUnavailable
from tests.unit.hands.sandbox.given import hands
from tests.unit.hands.sandbox.watched import running, until_running, watching

CATASTROPHE = r"(a+)+$"


async def test_a_pattern_that_takes_for_ever_holds_up_nothing_and_can_be_cancelled(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.call("write", file_path="a.txt", content="a" * 60 + "b\n")
        search = asyncio.create_task(ours.call("grep", pattern=CATASTROPHE))
        await until_running("inside.pyz\0--grep")
        assert (await ours.bash("echo meanwhile")).text == "meanwhile"
        assert (await ours.call("read", file_path="a.txt")).text.endswith("b\n")
        with watching(running("inside.pyz\0--grep")) as left:
            search.cancel()
            with pytest.raises(asyncio.CancelledError):
                await search
            assert left.have_ended()
        assert (await ours.call("grep", pattern="b$")).text.startswith("/workspace/a.txt:1:")


async def test_edits_made_at_once_are_all_made_in_order(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        steps = [ours.call("write", file_path="a.txt", content="0")]
        steps += [
            ours.call("edit", file_path="a.txt", old_string=f"{n}", new_string=f"{n} {n + 1}")
            for n in range(9)
        ]
        results = await asyncio.gather(*steps, ours.call("read", file_path="a.txt"))
        assert results[-1].text == "0 1 2 3 4 5 6 7 8 9"


async def test_a_mounted_directory_can_be_read_and_not_changed(open_folder: Path) -> None:
    uploads = open_folder / "uploads"
    uploads.mkdir()
    (uploads / "in.txt").write_text("given\n")
    bind = Bind(uploads, "/mnt/session/uploads")
    async with hands(open_folder, binds=(bind,)) as ours:
        assert (await ours.call("read", file_path="/mnt/session/uploads/in.txt")).text == "given\n"
        found = await ours.call("grep", pattern="given", path="/mnt/session/uploads")
        assert found.text == "/mnt/session/uploads/in.txt:1:given"
        refused = await ours.call("write", file_path="/mnt/session/uploads/in.txt", content="x")
        assert refused.text.endswith("is inside read-only directory /mnt/session/uploads")
        assert (await ours.bash("echo x > /mnt/session/uploads/in.txt")).is_error
        outside = await ours.call("read", file_path="/etc/passwd")
        assert outside.text.endswith(
            "outside the session's working directory and its other permitted directories"
        )
    assert (uploads / "in.txt").read_text() == "given\n"


@pytest.mark.parametrize("target", ["/workspace/skills", "/etc", "/usr/bin", "relative", "/mnt/../etc", "/"])
async def test_a_mount_over_what_the_sandbox_uses_is_refused(target: str, open_folder: Path) -> None:
    (open_folder / "d").mkdir()
    with pytest.raises(SandboxUnavailable, match="the bind target"):
        async with hands(open_folder, binds=(Bind(open_folder / "d", target),)):
            pass


@pytest.mark.parametrize(
    ("name", "input", "text"),
    [
        ("web_fetch", {}, "unknown tool 'web_fetch'; this sandbox has bash, read, write, edit, glob, grep"),
        (
            "read",
            {"file_path": "a", "lines": 3},
            "read: unknown parameter 'lines'; it takes file_path, view_range",
        ),
        ("read", {"file_path": 3}, "read: file_path must be a string"),
        ("read", {"file_path": "a", "view_range": ["1", 2]}, "read: view_range must be a whole number"),
        ("edit", {"file_path": "a", "old_string": "b"}, "edit: new_string is required"),
        ("bash", {"command": "x", "timeout_ms": "5"}, "bash: timeout_ms must be a whole number"),
        ("bash", {"restart": "yes"}, "bash: restart must be true or false"),
    ],
)
async def test_bad_input_is_an_error_that_names_the_parameter(
    name: str, input: dict[str, object], text: str, open_folder: Path
) -> None:
    async with hands(open_folder) as ours:
        output = await ours.sandbox.execute(name, input)
        assert (output.content, output.is_error) == ([{"type": "text", "text": text}], True)
