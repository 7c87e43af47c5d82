"""Files in the conversation: their ids are replaced by their bytes when a model request is built.

The transcript is a function of the log, which holds ids alone; this step comes after it and is not pure. For
as long as the files exist it gives the same bytes each time, so the provider's prompt cache holds.
"""

import asyncio
import base64
from typing import Any, Final, Protocol

import msgspec

from corral.brain.media_limits import DEFAULT_LIMITS, MediaLimits, within_limits

_GONE: Final = "[A file ({file_id}) stood here. It has been deleted or has expired.]"
_LARGE: Final = 1024 * 1024

Block = dict[str, Any]
Message = dict[str, Any]


class FileReader(Protocol):
    """Reads files for the brain."""

    async def read(self, file_id: str) -> tuple[str, bytes] | None:
        """The media type and the bytes of a file, or None if it is no longer to be had.

        Raises:
            Overloaded: it cannot be read at the moment.
        """
        ...


class FileSources:
    """Replaces file sources; what it has read once it keeps for the requests that follow."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self._read: dict[str, dict[str, Any]] = {}

    async def resolved(
        self, messages: list[Message | msgspec.Raw], limits: MediaLimits = DEFAULT_LIMITS
    ) -> list[Message | msgspec.Raw]:
        """The conversation with bytes in place of ids; the same list where it names no file.

        Messages that are encoded already name none.

        A file that is gone is replaced by a text that says so. Raises what `FileReader.read` raises.
        """
        if not any(_names_file(block) for message in messages for block in _blocks(message)):
            return messages
        resolved: list[Message | msgspec.Raw] = [
            message
            if isinstance(message, msgspec.Raw)
            else {**message, "content": await self._content(message["content"])}
            for message in messages
        ]
        return within_limits(resolved, limits)

    async def _content(self, content: list[Block]) -> list[Block]:
        return [await self._block(block) if _names_file(block) else block for block in content]

    async def _block(self, block: Block) -> Block:
        if block["type"] == "tool_result":
            return {**block, "content": await self._content(block["content"])}
        file_id: str = block["source"]["file_id"]
        source = self._read.get(file_id)
        if source is None:
            found = await self._reader.read(file_id)
            if found is None:
                kept = {"cache_control": block["cache_control"]} if "cache_control" in block else {}
                return {"type": "text", "text": _GONE.format(file_id=file_id), **kept}
            source = self._read[file_id] = await _source(*found)
        return {**block, "source": source}


def _blocks(message: Message | msgspec.Raw) -> list[Block]:
    return [] if isinstance(message, msgspec.Raw) else message["content"]


def _names_file(block: Block) -> bool:
    match block["type"]:
        case "tool_result":
            return any(_names_file(inner) for inner in block["content"])
        case "image" | "document":
            return block["source"]["type"] == "file"
        case _:
            return False


async def _source(mime: str, content: bytes) -> dict[str, Any]:
    if mime.startswith("text/"):
        return {"type": "text", "media_type": "text/plain", "data": content.decode("utf-8", "replace")}
    if len(content) > _LARGE:
        encoded = await asyncio.to_thread(base64.b64encode, content)
    else:
        encoded = base64.b64encode(content)
    return {"type": "base64", "media_type": mime, "data": encoded.decode("ascii")}
