"""Attacks on files: planted links, special files, names that lead elsewhere, other sessions, huge files."""

import base64
import os
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from corral.hands.worker.outputs import scan
from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.conftest import corral as corral
from tests.e2e.conftest import model as model
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool

OUTPUTS = "/mnt/session/outputs"
SECRET = b"the-host's-secret"


async def work_token(corral: Corral, session: SessionUnderTest) -> str:
    """The token that a worker gets for a session's work item."""
    row = await corral.database.fetch_one("select environment_id from sessions where id = %s", (session.id,))
    assert row is not None
    await corral.services.work.ensure(session.id, row["environment_id"])
    _, key = await corral.services.keys.create("environment", "attack", row["environment_id"])
    async with httpx.AsyncClient(base_url=corral.base_url, headers={"x-api-key": key}) as http:
        item = (await http.get(f"/v1/environments/{row['environment_id']}/work/poll")).json()
    return str(msgspec.json.decode(base64.urlsafe_b64decode(item["secret"] + "=="))["sessions_token"])


async def session_with_file(corral: Corral, content: bytes) -> tuple[SessionUnderTest, str]:
    """A session, and the id of the file that is mounted in it."""
    file = await corral.client.beta.files.upload(file=("a", content))
    resources: Any = [{"type": "file", "file_id": file.id, "mount_path": "a"}]
    session = await corral.session(TOOLSET, resources=resources)
    [mounted] = (await session.retrieve()).resources
    return session, mounted.file_id


def client(corral: Corral, token: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=corral.base_url, headers={"authorization": f"Bearer {token}"})


def content_path(session: SessionUnderTest, file_id: str) -> str:
    return f"/corral/v1/sessions/{session.id}/files/{file_id}/content"


async def downloads(corral: Corral) -> dict[str, bytes]:
    """Everything that can be downloaded, by name."""
    files = [file async for file in corral.client.beta.files.list() if file.downloadable]
    return {file.filename: await (await corral.client.beta.files.download(file.id)).read() for file in files}


async def test_links_and_special_files_among_the_outputs_are_never_followed(
    corral: Corral, open_folder: Path
) -> None:
    secret = open_folder / "secret"
    secret.write_bytes(SECRET)
    commands = [
        "ln -s /etc/shadow shadow",
        f"ln -s {secret} absolute",
        f"ln -s {open_folder} folder",
        "ln -s ../../../../secret relative",
        "ln -s /proc/self/environ environ",
        "mkfifo pipe",
        "ln -s pipe linked-pipe",
        "ln -s loop loop",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
        "echo honest > honest",
    ]
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash(f"cd {OUTPUTS}; {'; '.join(commands)}; ls"), {"text": "done"}])
        await session.idle()
        assert await downloads(corral) == {"honest": b"honest\n"}


async def test_an_output_that_turns_into_a_link_while_it_is_collected_leaks_nothing(
    corral: Corral, open_folder: Path
) -> None:
    secret = open_folder / "secret"
    secret.write_bytes(SECRET)
    # Swaps a folder and a link to the host's folder, and a file and a link, as fast as it can.
    swap = (
        f"cd {OUTPUTS}; mkdir -p real; echo fine > real/secret; echo fine > plain;"
        f" (while :; do ln -sfn {open_folder} d; rm -f d; cp -r real d; rm -rf d;"
        f" ln -sf {secret} f; rm -f f; cp plain f; done) >/dev/null 2>&1 & sleep 0.3; echo begun"
    )
    touches = [bash(f"date +%N > {OUTPUTS}/tick; sleep 0.1") for _ in range(5)]
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash(swap), *touches, {"text": "done"}])
        await session.idle()
    # Once nothing is collected any more: until then one output replaces another.
    assert SECRET not in b"".join((await downloads(corral)).values())


async def test_a_session_sees_no_file_of_another_in_its_sandbox(corral: Corral, open_folder: Path) -> None:
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        first, _ = await session_with_file(corral, SECRET)
        await first.says("go", script=[bash(f"echo {SECRET.decode()!r} > {OUTPUTS}/o"), {"text": "done"}])
        await first.idle()
        second = await corral.session(TOOLSET)
        look = f"ls -laR /mnt /workspace; cat /mnt/session/*/* ; grep -r host.s /mnt; ls {open_folder}"
        await second.says("go", script=[bash(look), {"text": "done"}])
        await second.idle()
    [seen] = await second.events(types=["agent.tool_result"])
    assert SECRET.decode() not in seen.content[0].text
    assert first.id not in seen.content[0].text


async def test_the_token_of_one_session_reaches_no_file_of_another(corral: Corral) -> None:
    mine, my_file = await session_with_file(corral, b"mine")
    theirs, their_file = await session_with_file(corral, SECRET)
    async with client(corral, await work_token(corral, mine)) as http:
        assert (await http.get(content_path(mine, my_file))).content == b"mine"
        for path in (
            content_path(theirs, their_file),
            content_path(mine, their_file),
            content_path(theirs, my_file),
            f"/v1/sessions/{theirs.id}/resources",
        ):
            answer = await http.get(path)
            assert (answer.status_code, SECRET in answer.content) == (404, False), path
        answer = await http.post(
            f"/corral/v1/sessions/{theirs.id}/outputs", params={"path": "x"}, content=b"x"
        )
        assert answer.status_code == 404


async def test_a_work_token_opens_nothing_of_the_files_api(corral: Corral) -> None:
    session, file_id = await session_with_file(corral, b"mine")
    async with client(corral, await work_token(corral, session)) as http:
        for method, path in (
            ("GET", "/v1/files"),
            ("POST", "/v1/files"),
            ("GET", f"/v1/files/{file_id}"),
            ("GET", f"/v1/files/{file_id}/content"),
            ("DELETE", f"/v1/files/{file_id}"),
            ("POST", f"/v1/sessions/{session.id}/resources"),
        ):
            assert (await http.request(method, path)).status_code == 403, path


async def test_a_worker_cannot_show_the_model_a_file_of_another_session(corral: Corral) -> None:
    mine, _ = await session_with_file(corral, b"mine")
    _, their_file = await session_with_file(corral, SECRET)
    upload = await corral.client.beta.files.upload(file=("s.txt", SECRET))
    async with client(corral, await work_token(corral, mine)) as http:
        for file_id in (their_file, upload.id):
            block = {"type": "document", "source": {"type": "file", "file_id": file_id}}
            event = {"type": "user.tool_result", "tool_use_id": "sevt_1", "content": [block]}
            answer = await http.post(f"/v1/sessions/{mine.id}/events", json={"events": [event]})
            assert answer.status_code == 400
            assert f"file {file_id} not found" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "./a",
        "a/.",
        "",
        "a\nb",
        "a\x00b",
        "x" * 300,
        "a/" * 40 + "b",
    ],
)
async def test_an_outputs_path_that_leads_elsewhere_is_refused(corral: Corral, path: str) -> None:
    session, _ = await session_with_file(corral, b"mine")
    async with client(corral, await work_token(corral, session)) as http:
        answer = await http.post(
            f"/corral/v1/sessions/{session.id}/outputs", params={"path": path}, content=b"x"
        )
    assert answer.status_code == 400
    assert await downloads(corral) == {}


async def test_names_from_a_sandbox_never_lead_a_client_astray(corral: Corral) -> None:
    session, _ = await session_with_file(corral, b"mine")
    async with client(corral, await work_token(corral, session)) as http:
        for path in ("deep/er/name", "..\\..\\windows", 'quo"te; filename=x'):
            answer = await http.post(
                f"/corral/v1/sessions/{session.id}/outputs", params={"path": path}, content=b"x"
            )
            assert answer.status_code == 200, answer.text
    names = set(await downloads(corral))
    assert names == {"name", ".._.._windows", 'quo"te; filename=x'}
    for file in [one async for one in corral.client.beta.files.list() if one.downloadable]:
        raw = await corral.client.beta.files.with_raw_response.download(file.id)
        assert re.fullmatch(
            r"attachment; filename\*=UTF-8''[A-Za-z0-9%._-]+", raw.headers["content-disposition"]
        )


async def test_a_sparse_file_that_is_too_large_is_left_out_and_the_rest_is_sent(
    corral: Corral, open_folder: Path
) -> None:
    huge = f"cd {OUTPUTS}; truncate -s 6G huge; echo small > small"
    async with at_work(await pool(corral, open_folder, sandbox="bubblewrap")):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash(huge), bash("true"), {"text": "done"}])
        await session.idle()
        assert await downloads(corral) == {"small": b"small\n"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    return folder


def test_the_scan_finds_regular_files_with_plain_names_alone(tree: Path) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    (tree / "a").write_bytes(b"a")
    (tree / "b").mkdir()
    (tree / "b" / "c").write_bytes(b"c")
    (tree / "link").symlink_to(outside / "secret")
    (tree / "folder").symlink_to(outside)
    os.mkfifo(tree / "pipe")
    (tree / "new\nline").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff")).write_bytes(b"x")
    assert list(scan(tree)) == ["a", "b/c"]


def test_the_scan_goes_neither_too_deep_nor_on_for_ever(tree: Path) -> None:
    deep = tree.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x")
    assert scan(tree) == {}
    for number in range(20_050):
        (tree / str(number)).touch()
    assert len(scan(tree)) <= 20_000


def test_an_outputs_folder_that_is_itself_a_link_is_not_entered(tree: Path) -> None:
    (tree / "a").write_bytes(b"a")
    link = tree.parent / "link"
    link.symlink_to(tree)
    with pytest.raises(OSError, match="link"):
        scan(link)
