"""Rules of `cache_control`: its shape, at most four marks, and longer times to live first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from corral.testing.refusal import Refused
from corral.testing.validation.fields import as_object, check_fields, join, one_of

MAX_MARKS = 4
"""`cache_control` marks in one request, over tools, system and messages."""


def cache_control(value: Any, path: str) -> None:
    """The shape of one mark."""
    check_fields(
        as_object(value, path),
        path,
        required={"type": one_of("ephemeral")},
        optional={"ttl": one_of("5m", "1h")},
    )


def marks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mark of a well-shaped request in prompt order, as (path of the marked block, mark)."""
    for name in ("tools", "system"):
        yield from _marks_in(body.get(name), name)
    for index, message in enumerate(body.get("messages") or []):
        yield from _marks_in(message.get("content"), f"messages.{index}.content")


def _marks_in(blocks: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(blocks, list):
        return
    for index, item in enumerate(cast("list[dict[str, Any]]", blocks)):
        here = join(path, index)
        if item.get("type") == "tool_result":
            yield from _marks_in(item.get("content"), join(here, "content"))
        if item.get("cache_control") is not None:
            yield here, item["cache_control"]


def check_marks(body: dict[str, Any]) -> None:
    """At most four marks, the automatic top-level one included; none of an hour after one of five minutes."""
    found = list(marks(body))
    count = len(found) + (1 if body.get("cache_control") else 0)
    if count > MAX_MARKS:
        path = found[MAX_MARKS][0] if len(found) > MAX_MARKS else "cache_control"
        raise Refused(path, f"at most {MAX_MARKS} blocks may have cache_control, found {count}")
    short_at: str | None = None
    for path, mark in found:
        if mark.get("ttl", "5m") == "5m":
            short_at = path
        elif short_at is not None:
            raise Refused(
                join(path, "cache_control.ttl"), f"a ttl of 1h must not come after one of 5m (at {short_at})"
            )
