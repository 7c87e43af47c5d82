"""Which sites a session's web tools may reach, out of all settings that bear on it. Pure.

(contract section 5.2) In a session of one agent that is its tool's entry; where agents call each other, the
entries along the chain of calls: lists of allowed domains intersect and lists of blocked ones add up, so that
an agent can narrow what a tool reaches and never widen it. The environment's ``limited`` networking narrows
it further.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from corral.wire.environments import host_allowed
from corral.wire.webtools import All, Except, Nothing, Only, UrlSources

WEB_TOOLS: Final = ("web_search", "web_fetch")
"""The built-in tools that the server runs, in the order in which the model is told of them."""

NOTHING_PERMITTED: Final = "no domain is permitted: the lists of allowed domains have none in common"

Source: TypeAlias = Literal["user_input", "client_tool_results", "server_tool_results"]
"""Where a URL may have been shown to the model."""


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one web tool of one thread. `combined` makes it."""

    allowed: tuple[str, ...] | None = None
    """The only domains; None for all, and empty if the lists have none in common."""
    blocked: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    """The environment's allowed hosts; None where its networking is not limited."""
    max_content_tokens: int | None = None
    user_location: Mapping[str, Any] | None = None
    url_sources: tuple[UrlSources, ...] = ()
    """Each of them has to admit a source."""

    @property
    def permits_nothing(self) -> bool:
        """Whether every call must fail, whatever it asks for."""
        return self.allowed == () or self.hosts == ()

    def refusal(self, host: str, path: str = "/") -> str | None:
        """Why a URL with this host (plain, in lower case) and path may not be reached; None if it may."""
        if self.allowed == ():
            return NOTHING_PERMITTED
        if self.allowed is not None and not any(_covers(entry, host, path) for entry in self.allowed):
            return f"{host} is not among the tool's allowed_domains"
        if any(_covers(entry, host, path) for entry in self.blocked):
            return f"{host} is among the tool's blocked_domains"
        if self.hosts is not None and not host_allowed(host, list(self.hosts)):
            return f"{host} is not among the environment's allowed_hosts"
        return None

    def admits(self, source: Source, tool: str) -> bool:
        """Whether URLs of this source may be fetched; `tool` is the one whose result it is, if any."""
        return all(_admits(getattr(sources, source), tool) for sources in self.url_sources)


def combined(entries: Sequence[Mapping[str, Any]], allowed_hosts: Sequence[str] | None = None) -> WebSettings:
    """The settings of one tool out of its `entries` along the chain of calls, the nearest first.

    An entry is a tool's resolved configuration; one that has no settings of its own adds nothing.
    """
    allowed: list[str] | None = None
    blocked: list[str] = []
    for entry in entries:
        if (domains := entry.get("allowed_domains")) is not None:
            plain = [_plain(domain) for domain in domains]
            allowed = plain if allowed is None else _common(allowed, plain)
        blocked += [_plain(domain) for domain in entry.get("blocked_domains") or ()]
    return WebSettings(
        allowed=None if allowed is None else tuple(dict.fromkeys(allowed)),
        blocked=tuple(dict.fromkeys(blocked)),
        hosts=None if allowed_hosts is None else tuple(allowed_hosts),
        max_content_tokens=_nearest(entries, "max_content_tokens"),
        user_location=_nearest(entries, "user_location"),
        url_sources=tuple(
            msgspec.convert(entry["url_sources"], UrlSources) for entry in entries if entry.get("url_sources")
        ),
    )


def _nearest(entries: Sequence[Mapping[str, Any]], field: str) -> Any:
    return next((entry[field] for entry in entries if entry.get(field) is not None), None)


def _admits(source: All | Nothing | Only | Except | None, tool: str) -> bool:
    match source:
        case None | All():
            return True
        case Nothing():
            return False
        case Only(tools):
            return any(reference.name == tool for reference in tools)
        case Except(tools):
            return all(reference.name != tool for reference in tools)


def _plain(domain: str) -> str:
    return domain.lower().removesuffix("/")


def _covers(entry: str, host: str, path: str) -> bool:
    """Whether an entry covers a host or one above it, and, where it has a path, what is below that."""
    domain, slash, below = entry.partition("/")
    if host != domain and not host.endswith("." + domain):
        return False
    below = below.rstrip("*").rstrip("/")
    return not slash or not below or path == "/" + below or path.startswith(f"/{below}/")


def _within(entry: str, other: str) -> bool:
    host, _, below = entry.partition("/")
    return _covers(other, host, "/" + below)


def _common(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """What two lists of allowed domains both cover: of each pair that overlaps, the narrower entry."""
    narrower = [entry for entry in one if any(_within(entry, wide) for wide in other)]
    return narrower + [entry for entry in other if any(_within(entry, wide) for wide in one)]
