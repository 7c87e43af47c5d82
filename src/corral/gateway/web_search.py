"""Searching at an endpoint that the operator has named: SearXNG, or anything that answers in its form.

``GET {endpoint}?q=...&format=json``, with what narrows the search as further parameters, and the key, if
there is one, as bearer token. The answer is ``{"results": [{"url", "title", "content"}]}``. Whatever the
endpoint makes of the parameters, what the settings do not permit is left out of the results here.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final, cast

import httpx2
import msgspec

from corral.gateway.addresses import Reach
from corral.gateway.http import CheckedTransport, Refused, client_for
from corral.gateway.scrubbing import Scrubber
from corral.gateway.web_fetch import USER_AGENT, Note
from corral.wire.gateway import CallOutcome
from corral.wire.secret import Secret
from corral.wire.web_results import RESULTS, Hit, search_content, web_error
from corral.wire.web_rules import WebSettings

SEARCHES: Final = "web_search_requests"
"""The count of a session's usage that a search adds to."""

_ANSWER_BYTES: Final = 4 * 1024 * 1024
_MOST_HITS: Final = 20 * RESULTS


class SearchEndpoint:
    """Asks the endpoint. `reach` must let it be reached; `seconds` bound one search."""

    def __init__(
        self,
        *,
        url: str,
        key: Secret | None,
        reach: Reach,
        seconds: float,
        internal_tls: ssl.SSLContext | None,
    ) -> None:
        self._url = httpx2.URL(url)
        self._key = key
        # Named by the operator, so it may be internal without standing in gateway.internal too.
        self._reach = reach.plus([self._url.host])
        self._seconds = seconds
        self._internal_tls = internal_tls
        self._scrubber = Scrubber([] if key is None else [key])

    async def search(self, query: str, settings: WebSettings, note: Note) -> CallOutcome:
        """What a search brings. A search that was made counts, whatever it found."""
        port = self._url.port or (443 if self._url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._ask(query, settings)
        except Refused as error:
            note(self._url.host, port, "denied", f"web_search: {error}")
            return web_error("unavailable", "the server's search endpoint may not be reached.")
        except (TimeoutError, OSError, httpx2.HTTPError, httpx2.StreamError, _Unusable) as error:
            note(self._url.host, port, "failed", f"web_search: {error or type(error).__name__}")
            return web_error("unavailable", "the server's search endpoint does not answer as it should.")
        note(self._url.host, port, "allowed", "web_search")
        content = self._scrubber.value(search_content(answer, settings))
        return CallOutcome(content=content, is_error=False, usage={SEARCHES: 1})

    async def _ask(self, query: str, settings: WebSettings) -> list[Hit]:
        headers = {"user-agent": USER_AGENT, "accept": "application/json", "accept-encoding": "identity"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key.reveal()}"
        url = self._url.copy_merge_params({"q": query, "format": "json", **_narrowing(settings)})
        transport = CheckedTransport(self._reach, str(url), internal_tls=self._internal_tls)
        async with client_for(transport, seconds=self._seconds) as client:
            async with client.stream("GET", url, headers=headers) as answer:
                if answer.status_code != 200:
                    raise _Unusable(f"answered {answer.status_code}")
                body = bytearray()
                async for chunk in answer.aiter_raw():
                    body += chunk
                    if len(body) > _ANSWER_BYTES:
                        raise _Unusable("the answer is too long")
        return _hits(bytes(body))


class _Unusable(Exception):
    """The endpoint did not answer in its form; the message holds nothing of the answer."""


def _narrowing(settings: WebSettings) -> dict[str, str]:
    """What the endpoint may narrow the search by, if it knows how."""
    given: dict[str, str] = {}
    if settings.allowed is not None:
        given["allowed_domains"] = ",".join(settings.allowed)
    if settings.blocked:
        given["blocked_domains"] = ",".join(settings.blocked)
    location: Mapping[str, Any] = settings.user_location or {}
    for field in ("city", "region", "country", "timezone"):
        if location.get(field):
            given[field] = str(location[field])
    return given


def _hits(body: bytes) -> list[Hit]:
    """The hits of an answer; entries that are none are left out."""
    try:
        answer: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise _Unusable("the answer is not JSON") from None
    results: Any = cast("dict[str, Any]", answer).get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        raise _Unusable("the answer has no list of results")
    hits: list[Hit] = []
    for entry in cast("list[Any]", results)[:_MOST_HITS]:
        fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        if isinstance(fields.get("url"), str):
            hits.append(
                Hit(
                    url=fields["url"],
                    title=_text(fields.get("title")),
                    text="\n".join(filter(None, (_dated(fields), _text(fields.get("content"))))),
                )
            )
    return hits


def _dated(fields: Mapping[str, Any]) -> str:
    date = _text(fields.get("publishedDate"))
    return f"Published: {date[:40]}" if date else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
