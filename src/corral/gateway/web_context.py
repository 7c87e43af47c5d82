"""Whether a URL has been shown to the model before it asks to fetch it (contract section 5.2).

A model that could make up URLs could be talked into carrying what it knows out in one. So a URL has to have
stood in a message of the user's, in the result of a custom tool, or in what a web tool brought: nowhere that
the model writes itself, such as the output of a command that it chose.
"""

import asyncio
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, LiteralString, cast

import httpx2
import msgspec

from corral.gateway.web_fetch import URL_CHARACTERS, NotFetched, parse_url
from corral.store.database import Database
from corral.wire.web_rules import WEB_TOOLS, Source, WebSettings

_SOURCES: Final[Mapping[str, Source]] = {
    "user.message": "user_input",
    "user.define_outcome": "user_input",
    "system.message": "user_input",
    "user.custom_tool_result": "client_tool_results",
    "agent.tool_result": "server_tool_results",
}
_AFTER: Final = ".,;:!?)]}'\"*_>"
"""What may stand right behind a URL in a text without being part of it."""
_LONGEST_TOKEN: Final = 2 * URL_CHARACTERS
_CUTS: Final = ("](", "),", ");", "\\n", "\\")

# The bodies that hold the host somewhere; what they hold is looked at here.
_SHOWN: Final[LiteralString] = """
select e.type, e.body::text as body, u.body::text as use,
    case when e.type = 'agent.tool_result' then e.private::text end as private from events e
left join events u on u.session_id = e.session_id and u.id = e.resolves
    and u.type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use')
where e.session_id = %(session)s and e.seq < %(seq)s and e.type = any(%(types)s)
    and (strpos(lower(e.body::text), %(host)s) > 0 or strpos(lower(e.body::text), %(wire_host)s) > 0
        or (e.type = 'agent.tool_result' and (strpos(lower(e.private::text), %(host)s) > 0
            or strpos(lower(e.private::text), %(wire_host)s) > 0)))
order by e.seq
"""


async def was_shown(
    database: Database, session_id: str, seq: int, url: httpx2.URL, settings: WebSettings
) -> bool:
    """Whether a URL (of `parse_url`) stands before event `seq` in a source that the settings admit."""
    rows = await database.fetch(
        _SHOWN,
        {
            "session": session_id,
            "seq": seq,
            "types": list(_SOURCES),
            "host": url.host.lower(),
            "wire_host": url.raw_host.decode("ascii"),
        },
    )
    # What pages hold is long, and may be made to be slow.
    return await asyncio.to_thread(_is_among, url, rows, settings)


def _is_among(url: httpx2.URL, rows: Iterable[Mapping[str, Any]], settings: WebSettings) -> bool:
    for row in rows:
        use = "" if row["use"] is None else str(msgspec.json.decode(row["use"])["name"])
        body: dict[str, Any] = msgspec.json.decode(row["body"])
        if row.get("private") is not None:
            # What is shown in part has been brought as a whole.
            whole = msgspec.json.decode(row["private"]).get("whole")
            body = body if whole is None else {**body, "content": whole}
        source = _SOURCES[row["type"]]
        if source == "server_tool_results" and (use not in WEB_TOOLS or body.get("is_error")):
            continue
        if settings.admits(source, use) and any(stands_in(url, text) for text in _texts(source, use, body)):
            return True
    return False


def stands_in(url: httpx2.URL, text: str) -> bool:
    """Whether a URL stands in a text: as a whole, in any spelling, with or without its scheme."""
    hosts = {re.escape(_bracketed(host)) for host in (url.host, url.raw_host.decode("ascii"))}
    pattern = re.compile(
        rf"(?<![\w.@-])(https?://)?(?:{'|'.join(sorted(hosts))})(?![\w-]|\.\w)(?::\d{{1,5}})?"
        r"(?:[/?#][^\s<>\"`{|}^]*)?",
        re.IGNORECASE,
    )
    tokens = {found[0]: found[1] for found in pattern.finditer(text) if len(found[0]) <= _LONGEST_TOKEN}
    return any(
        _is_same(url, candidate, scheme) for token, scheme in tokens.items() for candidate in _endings(token)
    )


def _endings(token: str) -> Iterator[str]:
    """What a URL in a text may be: all of it, or without what stands behind it."""
    tokens = [token, html.unescape(token)]
    tokens += [token[: token.index(cut)] for cut in _CUTS if cut in token]
    for one in dict.fromkeys(tokens):
        end = len(one)
        yield one
        while end and one[end - 1] in _AFTER:
            end -= 1
            yield one[:end]


def _is_same(url: httpx2.URL, candidate: str, scheme: str | None) -> bool:
    try:
        given = parse_url(candidate if scheme else f"http://{candidate}")
    except NotFetched:
        return False
    if (given.raw_host, given.port, given.raw_path) != (url.raw_host, url.port, url.raw_path):
        return False
    # Whoever names the plain address, or none, may as well have meant the one with TLS.
    return given.scheme in (url.scheme, "http")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _texts(source: Source, tool: str, body: Mapping[str, Any]) -> Iterator[str]:
    """What of an event shows URLs: the text of a message, all of a result; of a search its hits alone."""
    blocks: list[Mapping[str, Any]] = body.get("content") or []
    if tool == "web_search":
        yield from (str(block["source"]) for block in blocks if block.get("type") == "search_result")
    elif source == "user_input":
        yield from (str(block["text"]) for block in blocks if block.get("type") == "text")
        rubric: Mapping[str, Any] = body.get("rubric") or {}
        yield str(body.get("description") or "")
        yield str(rubric.get("content") or "")
    else:
        for block in blocks:
            yield from _strings(block)


def _strings(value: Any) -> Iterator[str]:
    """The texts in a content block; bytes in base64 are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.get("type") != "base64":
            for inner in fields.values():
                yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _strings(inner)
