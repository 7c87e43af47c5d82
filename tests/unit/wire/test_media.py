"""Images are judged at the door by their bytes, so that none poisons a session's history."""

import struct
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.content import Base64Document, Base64Image, DocumentBlock, ImageBlock, UrlSource
from corral.wire.errors import InvalidRequest
from corral.wire.media import IMAGE_BASE64_BYTES, check_media, image_size

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def png(width: int, height: int) -> bytes:
    return PNG + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    frame = b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + b"\0" * 9
    return b"\xff\xd8\xff\xe0\x00\x04ab" + b"\xff\xc4\x00\x03z" + frame


IMAGES = {
    "image/png": png(70, 30),
    "image/jpeg": jpeg(70, 30),
    "image/gif": b"GIF89a" + struct.pack("<HH", 70, 30) + b"\0\0\0",
    "image/webp": b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\x45\0\0\x1d\0\0",
}


def image(media_type: str, data: bytes) -> ImageBlock:
    return ImageBlock(source=Base64Image(media_type=media_type, data=b64encode(data).decode()))


def refusal(block: ImageBlock | DocumentBlock) -> str:
    with pytest.raises(InvalidRequest) as refused:
        check_media(block, "events[0].content[2]")
    return refused.value.message


@pytest.mark.parametrize("media_type", IMAGES)
def test_a_sound_image_passes_and_its_size_is_read(media_type: str) -> None:
    check_media(image(media_type, IMAGES[media_type]), "p")
    assert image_size(IMAGES[media_type]) == (70, 30)


def test_lossy_and_lossless_webp_tell_their_size() -> None:
    lossy = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 70, 30)
    lossless = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 69 | 29 << 14)
    assert (image_size(lossy), image_size(lossless)) == ((70, 30), (70, 30))


def test_the_media_type_must_be_what_the_bytes_say() -> None:
    message = refusal(image("image/jpeg", IMAGES["image/png"]))
    assert message == (
        "events[0].content[2].source.data: media_type is image/jpeg, but the data looks like image/png"
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (image("image/png", png(8001, 10)), "8001 x 10 pixels, more than 8000"),
        (image("image/png", png(0, 10)), "no pixels"),
        (image("image/png", PNG), "no readable header"),
        (image("image/png", b"hello"), "is no PNG, JPEG, GIF or WebP image"),
        (image("image/bmp", b"BM"), '"image/bmp" is not a valid value'),
        (ImageBlock(source=Base64Image(media_type="image/png", data="a" * (IMAGE_BASE64_BYTES + 1))), "more"),
        (ImageBlock(source=Base64Image(media_type="image/png", data="???")), "not valid base64"),
        (ImageBlock(source=Base64Image(media_type="image/png", data="é")), "not valid base64"),
        (ImageBlock(source=UrlSource(url="file:///etc/passwd")), "must be an http or https URL"),
        (DocumentBlock(source=Base64Document(media_type="application/pdf", data="aGk=")), "not a PDF"),
        (DocumentBlock(source=Base64Document(media_type="text/html", data="aGk=")), "is not a valid value"),
    ],
)
def test_unsound_media_are_refused(block: ImageBlock | DocumentBlock, message: str) -> None:
    found = refusal(block)
    assert found.startswith("events[0].content[2].source.")
    assert message in found


@given(st.sampled_from(sorted(IMAGES)), st.integers(0, 40), st.binary(max_size=60))
def test_damaged_images_are_measured_or_given_up_without_a_fault(kind: str, keep: int, tail: bytes) -> None:
    image_size(IMAGES[kind][:keep] + tail)
