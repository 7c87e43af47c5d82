"""The server under judgement, asked through its public API only."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec

_VERSION: Final = "2026-10-21"
_MANAGED_AGENTS: Final = "managed-agents-2026-04-01"
# The families whose beta header is another one (contract 2.1); an empty one means that none is sent.
_BETAS: Final[Mapping[str, str]] = {
    "memory_stores": "agent-memory-2026-07-22",
    "dreams": "dreaming-2026-04-21",
    "user_profiles": "user-profiles-2026-08-18",
    "files": "",
    "skills": "",
    "models": "",
}
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
_TRIES: Final = 3
_WAIT_SECONDS: Final = 0.5


class Refused(Exception):
    """The server did not make what a test's request needs."""

    def __init__(self, method: str, path: str, status: int, answer: bytes) -> None:
        told = answer.decode(errors="replace")
        super().__init__(f"{method} {path} answered {status}: {told[:500]}")
        self.status = status


class PublicApi:
    """A few calls with an API key. Every call raises `Refused` if the answer is no success."""

    def __init__(self, http: httpx.AsyncClient, api_key: str) -> None:
        self._http = http
        self._api_key = api_key

    async def get(self, path: str, query: Sequence[tuple[str, str]] = (), *, key: str | None = None) -> Any:
        """The answer of a GET, decoded."""
        return await self._call("GET", path, key, params=list(query))

    async def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> Any:
        """The answer of a POST, decoded; without ``body`` the request has none, as the SDK sends it."""
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        return await self._call("POST", path, key, content=content, headers=headers)

    async def upload(self, path: str, content: bytes, content_type: str) -> Any:
        """The answer to a multipart form, decoded."""
        return await self._call("POST", path, None, content=content, headers={"content-type": content_type})

    async def _call(self, method: str, path: str, key: str | None, **parts: Any) -> Any:
        headers = {
            "authorization": f"Bearer {key or self._api_key}",
            "anthropic-version": _VERSION,
            **({"anthropic-beta": beta} if (beta := _beta(path)) else {}),
            **parts.pop("headers", {}),
        }
        answer = await self._http.request(method, path, headers=headers, **parts)
        for again in range(1, _TRIES):
            if answer.status_code not in _BUSY:
                break
            await asyncio.sleep(_WAIT_SECONDS * again)
            answer = await self._http.request(method, path, headers=headers, **parts)
        if not answer.is_success:
            raise Refused(method, path, answer.status_code, answer.content)
        return msgspec.json.decode(answer.content)


def _beta(path: str) -> str:
    family = path.removeprefix("/v1/").split("/", 1)[0]
    return _BETAS.get(family, _MANAGED_AGENTS)
