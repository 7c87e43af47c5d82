"""Reads media type and size in pixels from the first bytes of an image, without decoding it."""

from __future__ import annotations

import struct
from typing import NamedTuple


class ImageHeader(NamedTuple):
    """What an image's first bytes say: its media type and its size in pixels."""

    media_type: str
    width: int
    height: int


def read_header(data: bytes) -> ImageHeader | None:
    """The header of a PNG, JPEG, GIF or WebP image; None when the bytes are none of these."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return ImageHeader("image/png", *struct.unpack(">II", data[16:24]))
        if data.startswith((b"GIF87a", b"GIF89a")):
            return ImageHeader("image/gif", *struct.unpack("<HH", data[6:10]))
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError):
        return None
    return None


def _jpeg(data: bytes) -> ImageHeader | None:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return ImageHeader("image/jpeg", width, height)
        elif marker == 0xD9:
            return None
        else:
            at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return None


def _webp(data: bytes) -> ImageHeader | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return ImageHeader("image/webp", width & 0x3FFF, height & 0x3FFF)
        case b"VP8L":
            bits = struct.unpack("<I", data[21:25])[0]
            return ImageHeader("image/webp", (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1)
        case b"VP8X":
            width = int.from_bytes(data[24:27], "little") + 1
            height = int.from_bytes(data[27:30], "little") + 1
            if len(data) < 30:
                return None
            return ImageHeader("image/webp", width, height)
        case _:
            return None
