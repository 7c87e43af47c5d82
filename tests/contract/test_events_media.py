"""What images and documents a client may send: what the model would refuse never enters a session."""

import struct
import zlib
from base64 import b64encode
from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.refusals import refused


def png(width: int, height: int) -> bytes:
    """A PNG of so many pixels by its header; the pixels themselves are not looked at."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\x00" * (width // 8 + 1)) if width < 64 else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00\x00\x00;"


def jpeg(width: int, height: int) -> bytes:
    frame = b"\xff\xc0\x00\x0b\x08" + struct.pack(">HH", height, width) + b"\x01\x01\x11\x00"
    return b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00" + frame + b"\xff\xd9"


def image(data: bytes | str, media_type: str = "image/png") -> dict[str, Any]:
    text = data if isinstance(data, str) else b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": text}}


def pdf(data: bytes, media_type: str = "application/pdf") -> dict[str, Any]:
    source = {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
    return {"type": "document", "source": source}


async def send(api: Api, *blocks: Any) -> Any:
    session = await api.session()
    content: Any = [{"type": "text", "text": "look"}, *blocks]
    events: Any = [{"type": "user.message", "content": content}]
    return await api.sdk.beta.sessions.events.send(session["id"], events=events)


@pytest.mark.parametrize(
    "block",
    [
        image(png(8, 8)),
        image(png(8000, 8000)),
        image(gif(3, 3), "image/gif"),
        image(jpeg(640, 480), "image/jpeg"),
        pdf(b"%PDF-1.7\n"),
        pdf(b"\n\n%PDF-1.4 after a preamble"),
        {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}},
    ],
    ids=["png", "largest", "gif", "jpeg", "pdf", "pdf-preamble", "url"],
)
async def test_what_the_model_takes_is_taken_and_echoed(api: Api, block: dict[str, Any]) -> None:
    sent = await send(api, block)
    echoed = sent.data[0].content[1].to_dict()
    assert {name: echoed[name] for name in block} == block


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too wide": (image(png(8001, 10)), "source.data: image is 8001 x 10 pixels"),
    "too high": (image(jpeg(10, 8001), "image/jpeg"), "source.data: image is 10 x 8001 pixels"),
    "no pixels": (image(png(0, 10)), "source.data"),
    "too large": (image("A" * (5 * 1024 * 1024 + 4)), "source.data: image is"),
    "other magic": (image(gif(3, 3)), "looks like image/gif"),
    "no image": (image(b"hello, world, this is no image at all"), "source.data"),
    "no header": (image(b"\x89PNG\r\n\x1a\n"), "source.data"),
    "no base64": (image("not base64!"), "source.data: not valid base64"),
    "empty": (image(""), "source.data"),
    "unknown type": (image(png(8, 8), "image/tiff"), "source.media_type"),
    "no pdf": (pdf(b"hello"), "source.data: not a PDF"),
    "unknown document": (pdf(b"%PDF-1.7", "application/msword"), "source.media_type"),
    "html as text": (
        {"type": "document", "source": {"type": "text", "media_type": "text/html", "data": "x"}},
        "source.media_type",
    ),
    "local address": (
        {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}},
        "source.url",
    ),
    "unknown file": (
        {"type": "image", "source": {"type": "file", "file_id": "file_01AAAA"}},
        "source.file_id: file file_01AAAA not found",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
async def test_what_the_model_would_refuse_is_refused_at_the_door(api: Api, case: str) -> None:
    block, named = REFUSED[case]
    await refused(send(api, block), "events[0].content[1].", named)


async def test_a_bad_image_in_a_tool_result_is_refused_too(api: Api) -> None:
    session = await api.session()
    result: Any = {
        "type": "user.custom_tool_result",
        "custom_tool_use_id": "sevt_01AAAAAAAAAAAAAAAAAAAAAAAA",
        "content": [image(png(9000, 1))],
    }
    request = api.sdk.beta.sessions.events.send(session["id"], events=[result])
    await refused(request, "events[0].content[0].source.data")
