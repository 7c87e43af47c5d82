"""What media one model request may hold in all; what is over is replaced by a text that says so.

Single images and documents are checked when they come in. These limits are on their sum, which grows with the
conversation: without this a session that passes one is refused by the model for ever. Figures from
messages-api.md, "Media".
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from corral.wire.media import image_size

MANY_IMAGES: Final = 20
SIDE_OF_MANY: Final = 2_000
"""Pixels; the longest side of an image where a request holds more than `MANY_IMAGES`."""
MEDIA_BYTES: Final = 24 * 1024 * 1024
"""Of all images and documents together, as base64: a request is at most 32 MB."""
_STEP_BYTES: Final = 8 * 1024 * 1024
"""The oldest go in portions of this size, so that the prompt's beginning seldom changes."""
_HEADER_CHARACTERS: Final = 256 * 1024

_TOO_LARGE: Final = (
    f"[An image is left out here: where a conversation has more than {MANY_IMAGES} images, none may have a "
    f"side of more than {SIDE_OF_MANY} pixels.]"
)
_STEPS: Final = 4
"""Into so many portions the images that are kept are divided."""
_AGED: Final = "[An older image stood here. It is left out: the conversation has many newer ones.]"
_NOT_SEEN: Final = "[A part of type {type} is left out here: this model cannot be shown it.]"
_TOO_MUCH: Final = "[An older {type} is left out here: the conversation holds more than fits into a request.]"

Block = dict[str, Any]
Message = dict[str, Any]


class MediaLimits(msgspec.Struct, frozen=True):
    """What a model is shown of media."""

    images_kept: int = 100
    """Of more images the oldest are left out, unless they have come in since the last answer."""
    max_images: int = 100
    """Most images in a request, whenever they came in."""
    images: bool = True
    documents: bool = True
    """Whether the model can see images, and PDF documents."""


DEFAULT_LIMITS: Final = MediaLimits()


def within_limits(
    messages: list[Message | msgspec.Raw], limits: MediaLimits = DEFAULT_LIMITS
) -> list[Message | msgspec.Raw]:
    """The conversation with as many of its media as one request may hold; the same list if that is all.

    Messages that are encoded already hold none.
    """
    media = list(media_of(messages))
    notes = _unseen(media, limits)
    images = [block for block in media if block["type"] == "image" and id(block) not in notes]
    notes |= _aged(images, _new_images(messages), limits)
    images = [block for block in images if id(block) not in notes]
    if len(images) > MANY_IMAGES:
        notes |= {id(block): _TOO_LARGE for block in images if _side(block) > SIDE_OF_MANY}
    kept = [block for block in media if id(block) not in notes]
    over = sum(map(_size, kept)) - MEDIA_BYTES
    portions = -(-over // _STEP_BYTES) * _STEP_BYTES
    for block in kept:
        if portions <= 0:
            break
        if size := _size(block):
            notes[id(block)] = _TOO_MUCH.format(type=block["type"])
            portions -= size
    if not notes:
        return messages
    return [
        message
        if isinstance(message, msgspec.Raw)
        else {**message, "content": _replaced(message["content"], notes)}
        for message in messages
    ]


def _unseen(media: list[Block], limits: MediaLimits) -> dict[int, str]:
    """The media that the model cannot see at all."""
    return {
        id(block): _NOT_SEEN.format(type=block["type"])
        for block in media
        if (block["type"] == "image" and not limits.images)
        or (block["type"] == "document" and not limits.documents and block["source"].get("type") != "text")
    }


def _aged(images: list[Block], new: int, limits: MediaLimits) -> dict[int, str]:
    """The oldest images where there are too many. They go in portions, so that the rest seldom moves."""
    step = max(1, limits.images_kept // _STEPS)
    over = -(-max(0, len(images) - limits.images_kept) // step) * step
    gone = max(min(over, len(images) - new), len(images) - limits.max_images)
    return {id(block): _AGED for block in images[: max(0, gone)]}


def _new_images(messages: list[Message | msgspec.Raw]) -> int:
    """How many images have come in since the model's last answer."""
    since: list[Message | msgspec.Raw] = []
    for message in reversed(messages):
        if isinstance(message, msgspec.Raw) or message["role"] == "assistant":
            break
        since.append(message)
    return sum(block["type"] == "image" for block in media_of(since))


def media_of(messages: Iterable[Message | msgspec.Raw]) -> Iterator[Block]:
    """The images and documents of the user's messages, those in tool results too."""
    for message in messages:
        if not isinstance(message, msgspec.Raw) and message["role"] == "user":
            for block in message["content"]:
                inner = block["content"] if block["type"] == "tool_result" else [block]
                yield from (one for one in inner if one["type"] in ("image", "document"))


def _replaced(content: list[Block], notes: Mapping[int, str]) -> list[Block]:
    replaced: list[Block] = []
    for block in content:
        if note := notes.get(id(block)):
            replaced.append({"type": "text", "text": note})
        elif block["type"] == "tool_result":
            replaced.append({**block, "content": _replaced(block["content"], notes)})
        else:
            replaced.append(block)
    return replaced


def _size(block: Block) -> int:
    data = block["source"].get("data")
    return len(data) if isinstance(data, str) else 0


def _side(block: Block) -> int:
    """The image's longer side; 0 where it is not known, since it is not here."""
    data = block["source"].get("data")
    if not isinstance(data, str):
        return 0
    try:
        start = base64.b64decode(data[:_HEADER_CHARACTERS])
        size = image_size(start) or image_size(base64.b64decode(data))
    except (binascii.Error, ValueError):
        return 0
    return max(size) if size is not None else 0
