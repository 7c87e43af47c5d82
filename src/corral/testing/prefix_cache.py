"""Token counts and the prompt cache, modelled so that tests can measure which prefixes requests share.

Tokens are estimated (a quarter of the UTF-8 bytes of a block's canonical JSON), deterministic, and no more
than that.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from corral.testing.conversation import without_mark

BYTES_PER_TOKEN = 4
MEDIA_TOKENS = 1600
"""Tokens of an image or a PDF, whatever its size."""
LOOKBACK = 20
"""How many blocks before a mark the cache is searched for an earlier entry."""
MAX_ENTRIES = 10_000
_SECONDS = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True)
class Usage:
    """Input tokens of a request by what the cache did with them."""

    input_tokens: int
    cache_read: int
    created_5m: int
    created_1h: int

    @property
    def total(self) -> int:
        """All input tokens."""
        return self.input_tokens + self.cache_read + self.created_5m + self.created_1h


@dataclass(frozen=True)
class _Item:
    digest: str
    tokens: int
    ttl: str | None


class PrefixCache:
    """Remembers marked prefixes for their time to live, which a read renews. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], *, minimum_tokens: int = 1) -> None:
        self._clock = clock
        self._minimum = minimum_tokens
        self._entries: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()

    def account(self, body: Mapping[str, Any]) -> Usage:
        """Counts the request's input, reads the longest cached prefix and writes every marked one."""
        items = list(_items(body))
        marked = [at for at, item in enumerate(items) if item.ttl]
        totals = [0]
        for item in items:
            totals.append(totals[-1] + item.tokens)
        read_to = self._longest(items, marked)
        created = {"5m": 0, "1h": 0}
        done = read_to
        for at in marked:
            if totals[at + 1] < self._minimum:
                continue
            ttl = items[at].ttl or "5m"
            self._store(items[at].digest, ttl)
            if at + 1 > done:
                created[ttl] += totals[at + 1] - totals[done]
                done = at + 1
        return Usage(totals[-1] - totals[done], totals[read_to], created["5m"], created["1h"])

    def _longest(self, items: list[_Item], marked: list[int]) -> int:
        now = self._clock()
        for mark in reversed(marked):
            for at in range(mark, max(mark - LOOKBACK, -1), -1):
                entry = self._entries.get(items[at].digest)
                if entry is not None and entry[0] >= now:
                    self._entries[items[at].digest] = (now + entry[1], entry[1])
                    return at + 1
        return 0

    def _store(self, digest: str, ttl: str) -> None:
        self._entries[digest] = (self._clock() + _SECONDS[ttl], _SECONDS[ttl])
        self._entries.move_to_end(digest)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)


def count_tokens(body: Mapping[str, Any]) -> int:
    """Input tokens of a request."""
    return sum(item.tokens for item in _items(body))


def tokens_of(value: Any) -> int:
    """The estimate for one value; at least 1."""
    if isinstance(value, dict) and cast("dict[str, Any]", value).get("type") in ("image", "document"):
        return MEDIA_TOKENS
    text = value if isinstance(value, str) else _canonical(value)
    return max(1, math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN))


def _items(body: Mapping[str, Any]) -> Iterator[_Item]:
    """The prompt in cache order (tools, system, messages), each item's digest covering all before it."""
    digest = hashlib.sha256(body["model"].encode())
    parts = list(_parts(body))
    if body.get("cache_control"):
        label, block = parts[-1]
        parts[-1] = (label, {**block, "cache_control": body["cache_control"]})
    in_messages = False
    for label, block in parts:
        mark = _mark(block)
        if not in_messages and label not in ("tool", "prompt"):
            # Changing these does not touch the cached tools and system prompt, only what comes after them.
            digest.update(_canonical([body.get("tool_choice"), body.get("thinking")]).encode())
            in_messages = True
        bare = without_mark(block)
        digest.update(f"{label}\0{_canonical(bare)}\0".encode("utf-8", "replace"))
        yield _Item(digest.hexdigest(), tokens_of(bare), mark.get("ttl", "5m") if mark else None)


def _mark(block: Mapping[str, Any]) -> dict[str, Any] | None:
    if block.get("cache_control"):
        return block["cache_control"]
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        inner = [item["cache_control"] for item in block["content"] if item.get("cache_control")]
        return inner[-1] if inner else None
    return None


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    tools: list[dict[str, Any]] = body.get("tools") or []
    for tool in tools:
        yield "tool", tool
    system: str | list[dict[str, Any]] = body.get("system") or []
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield "prompt", block
    for message in body["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield message["role"], block


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
