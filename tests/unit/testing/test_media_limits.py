"""Images and PDF documents that the Messages API takes and refuses."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from corral.testing.refusal import Refused
from corral.testing.validation.images import ImageHeader, read_header
from corral.testing.validation.request import check_request


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    return b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + size


def image(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encoded}}


def pdf(data: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": encoded}
    return {"type": "document", "source": source}


def check(*blocks: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": list(blocks)}]
    check_request({"model": "claude-opus-5-5", "max_tokens": 10, "messages": messages})


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(800, 600), "image/png"),
        (jpeg(800, 600), "image/jpeg"),
        (gif(800, 600), "image/gif"),
        (webp(800, 600), "image/webp"),
    ],
)
def test_an_image_of_each_type_is_accepted_as_what_it_is(data: bytes, media_type: str) -> None:
    assert read_header(data) == ImageHeader(media_type, 800, 600)
    check(image(data, media_type))


def test_an_image_under_another_media_type_is_refused() -> None:
    with pytest.raises(Refused, match=r"messages\.0\.content\.0\.source\.media_type: says image/jpeg"):
        check(image(png(8, 8), "image/jpeg"))


def test_bytes_that_are_no_image_are_refused() -> None:
    with pytest.raises(Refused, match="not an image"):
        check(image(b"hello"))


def test_data_that_is_not_base64_is_refused() -> None:
    block = image(png(8, 8))
    block["source"]["data"] = "***"
    with pytest.raises(Refused, match=r"source\.data: is not valid base64"):
        check(block)


def test_an_image_may_have_8000_pixels_a_side_and_no_more() -> None:
    check(image(png(8000, 1)))
    with pytest.raises(Refused, match="at most 8000 pixels"):
        check(image(png(1, 8001)))


def test_an_image_over_five_megabytes_of_base64_is_refused() -> None:
    with pytest.raises(Refused, match="5 MB"):
        check(image(png(8, 8) + b"\0" * (4 * 1024 * 1024)))


def test_with_more_than_twenty_images_each_side_has_2000_pixels() -> None:
    check(*[image(png(2001, 10))] * 20)
    check(*[image(png(2000, 10))] * 21)
    with pytest.raises(Refused, match="more than 20 images"):
        check(*[image(png(2000, 10))] * 20, image(png(2001, 10)))


def test_images_in_tool_results_count_too() -> None:
    call: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "a", "content": [image(png(2001, 1))] * 21}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [answer]},
    ]
    with pytest.raises(Refused) as refused:
        check_request({"model": "m", "max_tokens": 10, "messages": messages})
    assert refused.value.path == "messages.2.content.0.content.0.source.data"


def test_a_pdf_must_be_one_and_have_at_most_100_pages() -> None:
    check(pdf(b"%PDF-1.7\n" + b"<< /Type /Page >>\n" * 100 + b"<< /Type /Pages >>"))
    with pytest.raises(Refused, match="not a PDF"):
        check(pdf(b"hello"))
    with pytest.raises(Refused, match="at most 100 pages"):
        check(pdf(b"%PDF-1.7\n" + b"<< /Type /Page >>\n" * 101))


def test_images_by_url_and_file_are_accepted() -> None:
    check(
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    )
