"""Files as sources of images and documents: what is admitted, and what is refused (contract section 10.2)."""

import struct
import zlib
from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.refusals import refused


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


async def upload(api: Api, content: bytes, name: str, mime: str = "") -> str:
    file: Any = (name, content, mime) if mime else (name, content)
    return (await api.sdk.beta.files.upload(file=file)).id


def block(kind: str, file_id: str) -> Any:
    return {"type": kind, "source": {"type": "file", "file_id": file_id}}


def message(*blocks: Any) -> Any:
    return {"type": "user.message", "content": [{"type": "text", "text": "look"}, *blocks]}


async def send(api: Api, *blocks: Any) -> Any:
    session = await api.session()
    return await api.sdk.beta.sessions.events.send(session["id"], events=[message(*blocks)])


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("image", "a.png", png(10, 10)),
        ("image", "a.gif", b"GIF89a\x03\0\x03\0"),
        ("document", "a.pdf", b"%PDF-1.7"),
        ("document", "a.txt", b"text"),
        ("document", "a.md", "# 한글".encode()),
        ("document", "a.csv", b"a,b"),
    ],
    ids=["png", "gif", "pdf", "txt", "md", "csv"],
)
async def test_a_file_that_the_model_can_take_is_kept_as_its_id(
    api: Api, kind: str, name: str, content: bytes
) -> None:
    file_id = await upload(api, content, name)
    sent = await send(api, block(kind, file_id))
    source = sent.data[0].content[1].source
    assert (source.type, source.file_id) == ("file", file_id)


REFUSED: dict[str, tuple[str, str, bytes, str, str]] = {
    "no image": ("image", "a.txt", b"text", "", "no PNG, JPEG, GIF or WebP"),
    "other magic": ("image", "a.png", b"GIF89a\x03\0\x03\0", "image/png", "looks like image/gif"),
    "too wide": ("image", "a.png", png(8001, 1), "", "8001 x 1 pixels"),
    "too large an image": ("image", "a.png", png(10, 10) + b"\0" * 4_000_000, "", "image is larger"),
    "no pdf": ("document", "a.pdf", b"hello", "", "not a PDF"),
    "a program": ("document", "a.exe", b"MZ", "application/x-msdownload", "must be a PDF or text"),
    "an image as document": ("document", "a.png", png(1, 1), "", "must be a PDF or text"),
    "no text": ("document", "a.txt", b"\xff\xfe\0a", "text/plain", "not UTF-8"),
    "blank text": ("document", "a.txt", b" \n ", "", "no text"),
    "text with NUL": ("document", "a.txt", b"a\0b", "text/plain", "NUL"),
    "nothing": ("document", "a.txt", b"", "", "empty"),
    "too large a document": ("document", "a.txt", b"x" * (20 * 1024 * 1024 + 1), "", "document is larger"),
}


@pytest.mark.parametrize("case", list(REFUSED))
async def test_a_file_that_the_model_would_refuse_is_refused_at_the_door(api: Api, case: str) -> None:
    kind, name, content, mime, reason = REFUSED[case]
    file_id = await upload(api, content, name, mime)
    await refused(send(api, block(kind, file_id)), "events[0].content[1].source.file_id", reason)


async def test_files_that_do_not_exist_or_have_expired_are_refused(api: Api) -> None:
    await refused(send(api, block("image", "file_01unknown")), "file file_01unknown not found")
    file_id = await upload(api, b"text", "a.txt")
    await api.database.execute("update files set expires_at = now() - interval '1 second'")
    error = await refused(send(api, block("document", file_id)), f"file {file_id} has expired")
    assert error["details"]["error_code"] == "file_expired"


async def test_a_bad_file_in_an_initial_event_and_no_session_is_made(api: Api) -> None:
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    request = api.sdk.beta.sessions.create(
        agent=agent, environment_id=environment, initial_events=[message(block("image", "file_01unknown"))]
    )
    await refused(request, "initial_events[0].content[1].source.file_id")
    assert (await api.sdk.beta.sessions.list()).data == []
