"""Limits of images and PDF documents (contract/messages-api.md, Media)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, cast

from corral.testing.refusal import Refused
from corral.testing.validation.fields import (
    Check,
    as_object,
    check_fields,
    filled_string,
    join,
    one_of,
    string,
)
from corral.testing.validation.images import read_header

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Largest image, counted in base64 characters."""
MAX_SIDE = 8000
"""Longest side of an image in pixels."""
MAX_SIDE_OF_MANY = 2000
"""Longest side in pixels once a request has more than `MANY_IMAGES` images."""
MANY_IMAGES = 20
MAX_PDF_BYTES = 32 * 1024 * 1024
MAX_PDF_PAGES = 100


def image_source(value: Any, path: str) -> None:
    """The source of an image block: base64, url or file."""
    source = as_object(value, path)
    match source.get("type"):
        case "base64":
            shape: dict[str, Check] = {
                "type": string,
                "media_type": one_of(*IMAGE_TYPES),
                "data": filled_string,
            }
            check_fields(source, path, required=shape)
            _check_image(source["media_type"], source["data"], path)
        case "url":
            check_fields(source, path, required={"type": string, "url": filled_string})
        case "file":
            check_fields(source, path, required={"type": string, "file_id": filled_string})
        case _:
            raise Refused(join(path, "type"), "must be one of base64, url, file")


def pdf_source(source: dict[str, Any], path: str) -> None:
    """A base64 PDF source: the bytes are a PDF, within size and page limits."""
    check_fields(
        source,
        path,
        required={"type": string, "media_type": one_of("application/pdf"), "data": filled_string},
    )
    data = _decode(source["data"], join(path, "data"))
    if len(data) > MAX_PDF_BYTES:
        raise Refused(join(path, "data"), f"a PDF must be at most 32 MB, this one has {len(data)} bytes")
    if not data.startswith(b"%PDF-"):
        raise Refused(join(path, "data"), "the bytes are not a PDF document")
    pages = data.count(b"/Type /Page") - data.count(b"/Type /Pages")
    if pages > MAX_PDF_PAGES:
        raise Refused(
            join(path, "data"), f"a PDF must have at most {MAX_PDF_PAGES} pages, this one has {pages}"
        )


def check_many_images(body: dict[str, Any]) -> None:
    """With more than 20 images in a request, each side is at most 2,000 pixels."""
    found = list(_images(body.get("messages"), "messages"))
    if len(found) <= MANY_IMAGES:
        return
    for path, source in found:
        header = read_header(base64.b64decode(source["data"])) if source.get("type") == "base64" else None
        if header is not None and max(header.width, header.height) > MAX_SIDE_OF_MANY:
            raise Refused(
                join(path, "source.data"),
                f"in a request with more than {MANY_IMAGES} images each side must be at most "
                f"{MAX_SIDE_OF_MANY} pixels, this image is {header.width} x {header.height}",
            )


def _check_image(media_type: str, data: str, path: str) -> None:
    where = join(path, "data")
    if len(data) > MAX_IMAGE_BYTES:
        raise Refused(where, f"image exceeds 5 MB maximum: {len(data)} bytes > {MAX_IMAGE_BYTES} bytes")
    header = read_header(_decode(data, where))
    if header is None:
        raise Refused(where, "the bytes are not an image that can be read")
    if header.media_type != media_type:
        raise Refused(join(path, "media_type"), f"says {media_type}, but the bytes are {header.media_type}")
    if max(header.width, header.height) > MAX_SIDE:
        raise Refused(
            where,
            f"each side must be at most {MAX_SIDE} pixels, this image is {header.width} x {header.height}",
        )
    if min(header.width, header.height) < 1:
        raise Refused(where, "the image has no pixels")


def _decode(data: str, path: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(path, "is not valid base64") from None


def _images(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _images(item, join(path, index))
    elif isinstance(value, dict):
        block = cast("dict[str, Any]", value)
        if block.get("type") == "image":
            yield path, block["source"]
        elif block.get("type") in ("tool_result", "document", "content", None):
            for key in ("content", "source"):
                yield from _images(block.get(key), join(path, key))
