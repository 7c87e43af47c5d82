"""The memory endpoints as a worker uses them (contract section 16), of Corral or of the hosted service."""

import re
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.wire.secret import Secret

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PAGE: Final = 100
_FULL_PAGE: Final = 20


def checked_id(text: str) -> str:
    """An id, which becomes part of URLs and names of files.

    Raises:
        ApiFailure: it is none.
    """
    if _ID.fullmatch(text) is None:
        raise ApiFailure(f"the server sent an id that is none: {text[:64]!r}", status=400)
    return text


class Remembered(msgspec.Struct, frozen=True):
    """A memory as the store has it; without its content unless that was asked for."""

    id: str
    path: str
    content_sha256: str
    content: str | None = None


class _Entry(msgspec.Struct):
    type: str
    id: str = ""
    path: str = ""
    content_sha256: str = ""
    content: str | None = None


class _Deleted(msgspec.Struct):
    id: str


class _Page(msgspec.Struct):
    data: list[_Entry]
    next_page: str | None = None


class MemoryApi:
    """The memories of one store. Each call raises `ApiFailure` where it is not answered with success."""

    def __init__(self, api: WorkApi, store_id: str, key: Secret) -> None:
        self._api = api
        self._key = key
        self._path = f"/v1/memory_stores/{checked_id(store_id)}/memories"

    async def listed(self, *, full: bool) -> AsyncGenerator[Remembered]:
        """All memories of the store."""
        page: str | None = None
        while True:
            params: dict[str, Any] = {
                "limit": _FULL_PAGE if full else _PAGE,
                "view": "full" if full else "basic",
            }
            if page is not None:
                params["page"] = page
            answered = await self._api.ask("GET", self._path, self._key, _Page, params=params)
            for entry in answered.data:
                if entry.type == "memory":
                    yield Remembered(checked_id(entry.id), entry.path, entry.content_sha256, entry.content)
            page = answered.next_page
            if not page:
                return

    async def read(self, memory_id: str) -> Remembered:
        """A memory with its content."""
        path = f"{self._path}/{checked_id(memory_id)}"
        return await self._api.ask("GET", path, self._key, Remembered, params={"view": "full"})

    async def create(self, path: str, content: str) -> Remembered:
        """Make a memory; 409 if the path is taken."""
        body = {"path": path, "content": content}
        return await self._api.ask("POST", self._path, self._key, Remembered, json=body)

    async def update(self, memory_id: str, content: str, *, expected: str) -> Remembered:
        """Replace a memory's content; 409 if it is not the expected one any more."""
        body = {
            "content": content,
            "precondition": {"type": "content_sha256", "content_sha256": expected},
        }
        path = f"{self._path}/{checked_id(memory_id)}"
        return await self._api.ask("POST", path, self._key, Remembered, json=body)

    async def delete(self, memory_id: str, *, expected: str) -> None:
        """Delete a memory; 409 if its content is not the expected one any more."""
        path = f"{self._path}/{checked_id(memory_id)}"
        params = {"expected_content_sha256": expected}
        await self._api.ask("DELETE", path, self._key, _Deleted, params=params)
