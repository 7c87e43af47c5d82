"""How the scripted model accounts for cached prefixes."""

from __future__ import annotations

from typing import Any

from corral.testing.prefix_cache import PrefixCache, Usage

MARK = {"type": "ephemeral"}
TOOL = {"name": "bash", "input_schema": {"type": "object"}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def body(*texts: str, marked: tuple[int, ...] = (), **fields: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": text, **({"cache_control": MARK} if at in marked else {})}
        for at, text in enumerate(texts)
    ]
    system = [{"type": "text", "text": "You are a careful agent.", "cache_control": MARK}]
    fields = {"system": system, "tools": [TOOL], **fields}
    return {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}], **fields}


def test_a_marked_prefix_is_written_once_and_read_afterwards() -> None:
    cache = PrefixCache(Clock())

    first = cache.account(body("hello"))
    second = cache.account(body("hello"))

    assert first.cache_read == 0
    assert first.created_5m > 0
    assert second == Usage(first.input_tokens, first.created_5m, 0, 0)


def test_a_growing_conversation_reads_what_it_shared_and_writes_the_rest() -> None:
    cache = PrefixCache(Clock())

    first = cache.account(body("one", marked=(0,)))
    second = cache.account(body("one", "two", marked=(1,)))

    assert second.cache_read == first.total
    assert second.created_5m > 0
    assert second.input_tokens == 0


def test_a_change_at_the_front_loses_the_cache() -> None:
    cache = PrefixCache(Clock())
    cache.account(body("one"))

    changed = cache.account(body("one", tools=[{**TOOL, "description": "now with words"}]))

    assert changed.cache_read == 0


def test_another_tool_choice_keeps_tools_and_system_but_not_messages() -> None:
    cache = PrefixCache(Clock())
    first = cache.account(body("one", marked=(0,)))

    changed = cache.account(body("one", marked=(0,), tool_choice={"type": "none"}))

    assert 0 < changed.cache_read < first.total


def test_an_entry_lives_five_minutes_and_a_read_renews_it() -> None:
    clock = Clock()
    cache = PrefixCache(clock)
    cache.account(body("one"))
    for clock.now in (299.0, 598.0):
        assert cache.account(body("one")).cache_read > 0

    clock.now = 899.0
    assert cache.account(body("one")).cache_read == 0


def test_an_hour_is_counted_apart() -> None:
    cache = PrefixCache(Clock())
    system = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]

    usage = cache.account(body("one", marked=(0,), system=system))

    assert usage.created_1h > 0
    assert usage.created_5m > 0
    assert usage.input_tokens == 0


def test_a_prefix_below_the_minimum_is_not_cached() -> None:
    cache = PrefixCache(Clock(), minimum_tokens=1024)

    assert cache.account(body("one")).created_5m == 0
    assert cache.account(body("one")).cache_read == 0


def test_automatic_caching_marks_the_last_block() -> None:
    cache = PrefixCache(Clock())
    first = cache.account(body("one", cache_control=MARK))

    assert first.input_tokens == 0
    assert cache.account(body("one", cache_control=MARK)).cache_read == first.total
