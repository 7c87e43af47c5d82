"""What web tools bring, as the content blocks of a tool result (contract section 5.2). Pure.

Errors name a code of those that the Messages API's web tools have, which models know.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from corral.wire.gateway import CallOutcome
from corral.wire.web_rules import WebSettings

QUERY_CHARACTERS: Final = 1000
RESULTS: Final = 10
"""Most results of one search that the model is shown."""

_TITLE: Final = 300
_SNIPPET: Final = 4000
_LONGEST_URL: Final = 2048

ErrorCode: TypeAlias = Literal[
    "invalid_tool_input",
    "url_too_long",
    "url_not_allowed",
    "url_not_in_prior_context",
    "url_not_accessible",
    "unsupported_content_type",
    "content_too_large",
    "query_too_long",
    "unavailable",
]


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a search."""

    url: str
    title: str = ""
    text: str = ""


def web_error(code: ErrorCode, detail: str) -> CallOutcome:
    """The outcome of a call that brought nothing: the code, and what it means here."""
    return CallOutcome(content=[{"type": "text", "text": f"{code}: {detail}"}], is_error=True)


def asked_query(given: Any) -> str | CallOutcome:
    """The query of a call's input, or what is wrong with it."""
    query: Any = given.get("query")
    if not isinstance(query, str) or not query.strip():
        return web_error("invalid_tool_input", "give a query, as text.")
    if len(query) > QUERY_CHARACTERS:
        return web_error("query_too_long", f"a query has at most {QUERY_CHARACTERS} characters.")
    return query.strip()


def search_content(hits: Iterable[Hit], settings: WebSettings) -> list[dict[str, Any]]:
    """The results that the settings permit, the first `RESULTS` of them; others are left out in silence."""
    shown: list[dict[str, Any]] = []
    seen: set[str] = set()
    for hit in hits:
        if hit.url in seen or not _is_permitted(hit.url, settings):
            continue
        seen.add(hit.url)
        shown.append(
            {
                "type": "search_result",
                "source": hit.url,
                "title": hit.title.strip()[:_TITLE] or hit.url,
                "content": [{"type": "text", "text": hit.text.strip()[:_SNIPPET] or "(no excerpt)"}],
                "citations": {"enabled": False},
            }
        )
        if len(shown) == RESULTS:
            break
    return shown or [{"type": "text", "text": "The search has no results."}]


def _is_permitted(url: str, settings: WebSettings) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host or len(url) > _LONGEST_URL:
        return False
    return settings.refusal(host, parts.path or "/") is None
