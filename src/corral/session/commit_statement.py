"""The statement that writes a group of commits, and its parameters: a column for each array."""

from collections.abc import Iterable
from importlib import resources
from typing import Any, Final, LiteralString, Protocol, cast

import msgspec

from corral.session.commit import Commit

_SOURCE: Final = resources.files("corral.session").joinpath("commit.sql").read_text("utf-8")


class Prepared(Protocol):
    """A commit with its events' JSON, encoded once, as (body, private)."""

    @property
    def commit(self) -> Commit:
        """The commit."""
        ...

    @property
    def texts(self) -> list[tuple[str, str | None]]:
        """The stored JSON of each of its events."""
        ...


def _without(part: str, source: str) -> str:
    before, _, rest = source.partition(f"-- [{part}\n")
    return before + rest.partition(f"-- {part}]\n")[2]


def _variant(*, inputs: bool, wakes: bool) -> LiteralString:
    source = _SOURCE if inputs else _without("inputs", _SOURCE)
    return cast("LiteralString", source if wakes else _without("wakes", source))


_VARIANTS: Final[dict[tuple[bool, bool], LiteralString]] = {
    (inputs, wakes): _variant(inputs=inputs, wakes=wakes)
    for inputs in (False, True)
    for wakes in (False, True)
}

_TEXT: Final = frozenset(
    (
        *("session_id", "status", "wake"),
        *("e_session", "e_id", "e_thread", "e_type", "e_resolves"),
        *("t_session", "t_id", "i_session", "i_id", "i_thread", "i_type"),
    )
)
"""Columns of ids and names, sent as one text each: they hold no control characters and are never empty."""
_NUMBERS: Final = frozenset(["epoch", "seq", "last_input", "n_events", "n_inputs", "delay", "e_n", "i_n"])
"""Columns of numbers, sent as array literals. The others, which hold JSON, are sent as binary arrays."""
_SEPARATOR: Final = "\x1f"

_SESSION: Final = "session_id epoch seq last_input n_events n_inputs status usage wake delay"
_EVENT: Final = "e_session e_n e_id e_thread e_type e_body e_private e_resolves"
_TAKEN: Final = "t_session t_id"
_INPUT: Final = "i_session i_n i_id i_thread i_type i_body"


def statement(group: Iterable[Prepared]) -> tuple[LiteralString, dict[str, Any]]:
    """The statement for this group, with no part in it that writes nothing, and its parameters."""
    sessions: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    taken: list[tuple[Any, ...]] = []
    inputs: list[tuple[Any, ...]] = []
    for prepared in group:
        commit = prepared.commit
        session = commit.session_id
        sessions.append(_session(commit))
        for n, (event, texts) in enumerate(zip(commit.events, prepared.texts, strict=True), 1):
            events.append((session, n, event.id, event.thread_id, event.type, *texts, event.resolves))
        taken.extend((session, input_id) for input_id in commit.take)
        for n, new in enumerate(commit.inputs, 1):
            body = msgspec.json.encode({"id": new.id, "type": new.type, **new.body}).decode()
            inputs.append((session, n, new.id, new.thread_id, new.type, body))
    wakes = any(row[-2] is not None for row in sessions)
    columns = _columns(_SESSION, sessions) | _columns(_EVENT, events)
    if taken or inputs:
        columns |= _columns(_TAKEN, taken) | _columns(_INPUT, inputs)
    return _VARIANTS[bool(taken or inputs), wakes], columns


def _session(commit: Commit) -> tuple[Any, ...]:
    fence, wake = commit.fence, commit.wake
    return (
        commit.session_id,
        fence.epoch,
        fence.seq,
        fence.last_input,
        len(commit.events),
        len(commit.inputs),
        commit.status,
        None if commit.usage is None else msgspec.json.encode(commit.usage).decode(),
        None if wake is None else wake.kind,
        None if wake is None else wake.delay,
    )


def _columns(names: str, rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    fields = names.split()
    columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
    return {name: _encoded(name, column) for name, column in zip(fields, columns, strict=True)}


def _encoded(name: str, column: tuple[Any, ...]) -> str | list[str | None]:
    # psycopg encodes an array element by element, in Python; joining is one call.
    if name in _TEXT:
        return _SEPARATOR.join(value or "" for value in column)
    if name in _NUMBERS:
        return "{" + ",".join("NULL" if value is None else str(value) for value in column) + "}"
    return list(column)
