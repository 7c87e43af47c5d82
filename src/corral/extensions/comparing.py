"""Compares events that this version would write with those that a log has. Pure.

Ids are new each time, and times and prices are not the brain's decisions: they are left out. Everything else
has to be the same, what is kept beside an event for the model included.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from corral.session.events import Event, NewEvent

_LEFT_OUT: Final = frozenset(
    {"usage", "request", "origin", "former", "retry_at", "list_cost", "active_seconds", "model_cost"}
)
"""Keys of what depends on the clock or on prices, and of what is compared in another way."""


def first_difference(
    written: Sequence[NewEvent], recorded: Sequence[Event]
) -> tuple[int, NewEvent | None, Event | None] | None:
    """The place in `written`, counted from 0, of the first event that the log does not have; None if it has
    all.
    """
    names = _names(written, recorded)
    for place, new in enumerate(written):
        found = recorded[place] if place < len(recorded) else None
        if found is None or not _same(new, found, names):
            return place, new, found
    return None


def _names(written: Sequence[NewEvent], recorded: Sequence[Event]) -> dict[str, str]:
    """The log's ids by those that have been made up for the same events."""
    names: dict[str, str] = {}
    for new, found in zip(written, recorded, strict=False):
        names[new.id] = found.id
        for field in ("session_thread_id", "outcome_id"):
            if new.type == found.type and field in new.body and field in found.body:
                names[str(new.body[field])] = str(found.body[field])
    return names


def _same(new: NewEvent, found: Event, names: Mapping[str, str]) -> bool:
    if new.type != found.type or names.get(new.thread_id, new.thread_id) != found.thread_id:
        return False
    return comparable(new.body, names) == comparable(found.body, {}) and comparable(
        new.private or {}, names
    ) == comparable(found.private or {}, {})


def comparable(value: Any, names: Mapping[str, str], *, outermost: bool = True) -> Any:
    """A JSON value without what is not compared, under the log's ids."""
    match value:
        case str():
            return _renamed(value, names)
        case list():
            items = cast("list[Any]", value)
            return [comparable(item, names, outermost=False) for item in items]
        case Mapping():
            mapping = cast("Mapping[str, Any]", value)
            skipped = _LEFT_OUT | {"id", "type"} if outermost else _LEFT_OUT
            return {
                _renamed(key, names): comparable(item, names, outermost=False)
                for key, item in mapping.items()
                if key not in skipped
            }
        case tuple():
            return [comparable(item, names, outermost=False) for item in cast("tuple[Any, ...]", value)]
        case _:
            return value


def _renamed(text: str, names: Mapping[str, str]) -> str:
    if not names or "_01" not in text:
        return text
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)
