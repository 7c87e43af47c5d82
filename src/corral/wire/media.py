"""Admission of images and documents: what the model would refuse is refused here, once, with a clear error.

An image that the model's API rejects would otherwise sit in the history and fail every later request of the
session. Limits are those of the Messages API: 5 MB of base64 an image, 8000 pixels a side.
"""

import binascii
import struct
from base64 import b64decode
from collections.abc import Sequence
from typing import Final, assert_type

from corral.wire.content import (
    Base64Document,
    Base64Image,
    DocumentBlock,
    FileSource,
    ImageBlock,
    MessageBlock,
    PlainTextDocument,
    ResultBlock,
    UrlSource,
)
from corral.wire.errors import InvalidRequest

IMAGE_BASE64_BYTES: Final = 5 * 1024 * 1024
IMAGE_PIXELS: Final = 8000
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


def check_media(block: MessageBlock | ResultBlock, path: str) -> None:
    """Check one content block's media; blocks of text pass.

    Raises:
        InvalidRequest: the media is not what it says, too large, or nowhere to be had; names ``path``.
    """
    if isinstance(block, ImageBlock | DocumentBlock):
        source = block.source
        where = f"{path}.source"
        if isinstance(source, Base64Image):
            _check_image(source, where)
        elif isinstance(source, Base64Document):
            _check_pdf(source, where)
        elif isinstance(source, UrlSource):
            _check_url(source, where)
        elif isinstance(source, FileSource):
            pass  # what the file is, only the store of files can tell
        else:
            assert_type(source, PlainTextDocument)


def check_all_media(blocks: Sequence[MessageBlock | ResultBlock], path: str) -> None:
    """Check every block of a content list at ``path``."""
    for index, block in enumerate(blocks):
        check_media(block, f"{path}[{index}]")


def _check_url(source: UrlSource, path: str) -> None:
    if not source.url.lower().startswith(("https://", "http://")):
        raise InvalidRequest(f"{path}.url: must be an http or https URL")


def _decoded(data: str, path: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{path}.data: not valid base64") from None


def _check_pdf(source: Base64Document, path: str) -> None:
    if source.media_type != "application/pdf":
        raise InvalidRequest(f'{path}.media_type: "{source.media_type}" is not a valid value')
    # A PDF may carry a little before its header; readers look for it in the first kilobyte.
    if b"%PDF-" not in _decoded(source.data, path)[:1024]:
        raise InvalidRequest(f"{path}.data: not a PDF document")


def _check_image(source: Base64Image, path: str) -> None:
    if source.media_type not in IMAGE_TYPES:
        raise InvalidRequest(
            f'{path}.media_type: "{source.media_type}" is not a valid value '
            f"(use one of {', '.join(IMAGE_TYPES)})"
        )
    if len(source.data) > IMAGE_BASE64_BYTES:
        raise InvalidRequest(
            f"{path}.data: image is {len(source.data)} bytes of base64, "
            f"more than the {IMAGE_BASE64_BYTES} allowed"
        )
    check_image(source.media_type, _decoded(source.data, path), f"{path}.data")


def check_image(media_type: str, image: bytes, path: str) -> None:
    """Check that an image, or its first 256 KiB, is what its media type says, and of admissible size.

    Raises:
        InvalidRequest: it is not; names ``path``.
    """
    kind = image_type(image)
    if kind != media_type:
        seen = f"looks like {kind}" if kind else "is no PNG, JPEG, GIF or WebP image"
        raise InvalidRequest(f"{path}: media_type is {media_type}, but the data {seen}")
    size = image_size(image)
    if size is None:
        raise InvalidRequest(f"{path}: the image has no readable header")
    if max(size) > IMAGE_PIXELS:
        raise InvalidRequest(
            f"{path}: image is {size[0]} x {size[1]} pixels, more than {IMAGE_PIXELS} on a side"
        )
    if min(size) < 1:
        raise InvalidRequest(f"{path}: image has no pixels")


def image_type(image: bytes) -> str | None:
    """The media type that the first bytes tell, or None."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if image.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return None


def image_size(image: bytes) -> tuple[int, int] | None:
    """Width and height in pixels by the header alone, or None if it cannot be read."""
    try:
        match image_type(image):
            case "image/png":
                return struct.unpack(">II", image[16:24])
            case "image/gif":
                return struct.unpack("<HH", image[6:10])
            case "image/webp":
                return _webp_size(image)
            case "image/jpeg":
                return _jpeg_size(image)
            case _:
                return None
    except (struct.error, IndexError):
        return None


def _webp_size(image: bytes) -> tuple[int, int] | None:
    match image[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", image[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack("<I", image[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            packed = image[24:30]
            if len(packed) < 6:
                return None
            return int.from_bytes(packed[:3], "little") + 1, int.from_bytes(packed[3:], "little") + 1
        case _:
            return None


def _jpeg_size(image: bytes) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(image):
        if image[position] != 0xFF:
            return None
        marker = image[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
            continue
        # Start-of-frame markers carry the size; C4, C8 and CC share their range and do not.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", image[position + 5 : position + 9])
            return width, height
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:
            position += 2
            continue
        (length,) = struct.unpack(">H", image[position + 2 : position + 4])
        position += 2 + length
    return None
