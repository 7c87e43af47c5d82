"""The statement that writes a group of commits, and its parameters: a column for each array."""

from collections.abc import Iterable
from importlib import resources
from itertools import product
from typing import Any, Final, LiteralString, Protocol, cast

import msgspec

from corral.session.commit import Commit, DecisionRow, ThreadRow

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

    @property
    def digests(self) -> list[str]:
        """The digest of each of its events, in hexadecimal (`corral.session.chain`)."""
        ...


def _without(part: str, source: str) -> str:
    kept, _, rest = source.partition(f"-- [{part}\n")
    while rest:
        between, _, rest = rest.partition(f"-- {part}]\n")[2].partition(f"-- [{part}\n")
        kept += between
    return kept


_PARTS: Final = ("inputs", "wakes", "threads", "decisions")


def _variant(has: tuple[bool, ...]) -> LiteralString:
    source = _SOURCE
    for part, wanted in zip(_PARTS, has, strict=True):
        source = source if wanted else _without(part, source)
    return cast("LiteralString", source)


_VARIANTS: Final[dict[tuple[bool, ...], LiteralString]] = {
    has: _variant(has) for has in product((False, True), repeat=len(_PARTS))
}

_TEXT: Final = frozenset(
    (
        *("session_id", "status", "wake"),
        *("e_session", "e_id", "e_thread", "e_type", "e_resolves", "e_digest"),
        *("t_session", "t_id", "i_session", "i_id", "i_thread", "i_type"),
        *("r_session", "r_id", "r_status", "r_parent", "r_since"),
        *("d_session", "d_id", "d_actor"),
    )
)
"""Columns of ids and names, sent as one text each: they hold no control characters and are never empty."""
_NUMBERS: Final = frozenset(
    ["epoch", "seq", "last_input", "n_events", "n_inputs", "delay", "e_n", "e_crossposted", "i_n"]
)
"""Columns of numbers, sent as array literals. The others, which hold JSON, are sent as binary arrays."""
_SEPARATOR: Final = "\x1f"

_SESSION: Final = "session_id epoch seq last_input n_events n_inputs status usage wake delay"
_EVENT: Final = "e_session e_n e_id e_thread e_type e_body e_private e_resolves e_digest"
_TAKEN: Final = "t_session t_id"
_INPUT: Final = "i_session i_n i_id i_thread i_type i_body"
_DECISION: Final = "d_session d_id d_actor d_action d_objects d_record"
_THREAD: Final = "r_session r_id r_status r_parent r_agent r_usage r_since"


def statement(group: Iterable[Prepared]) -> tuple[LiteralString, dict[str, Any]]:
    """The statement for this group, with no part in it that writes nothing, and its parameters."""
    sessions: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    taken: list[tuple[Any, ...]] = []
    inputs: list[tuple[Any, ...]] = []
    threads: list[tuple[Any, ...]] = []
    crossposted: list[int] = []
    decisions: list[tuple[Any, ...]] = []
    for prepared in group:
        commit = prepared.commit
        session = commit.session_id
        sessions.append(_session(commit))
        written = zip(commit.events, prepared.texts, prepared.digests, strict=True)
        for n, (event, texts, digest) in enumerate(written, 1):
            events.append((session, n, event.id, event.thread_id, event.type, *texts, event.resolves, digest))
            crossposted.append(event.crossposted)
        taken.extend((session, input_id) for input_id in commit.take)
        for n, new in enumerate(commit.inputs, 1):
            inputs.append((session, n, new.id, new.thread_id, new.type, new.body_text()))
        threads.extend(_thread(session, row) for row in commit.threads)
        decisions.extend(_decision(session, row) for row in commit.decisions)
    wakes = any(row[-2] is not None for row in sessions)
    columns = _columns(_SESSION, sessions) | _columns(_EVENT, events)
    if taken or inputs:
        columns |= _columns(_TAKEN, taken) | _columns(_INPUT, inputs)
    beside = bool(threads) or any(crossposted)
    if beside:
        columns |= _columns(_THREAD, threads)
        columns["e_crossposted"] = _encoded("e_crossposted", tuple(crossposted))
    if decisions:
        columns |= _columns(_DECISION, decisions)
    return _VARIANTS[bool(taken or inputs), wakes, beside, bool(decisions)], columns


def _decision(session: str, row: DecisionRow) -> tuple[Any, ...]:
    record = msgspec.json.encode(row.record).decode()
    return session, row.id, row.actor, row.action, " ".join(row.objects), record


def _thread(session: str, row: ThreadRow) -> tuple[Any, ...]:
    agent = None if row.agent is None else msgspec.json.encode(row.agent).decode()
    usage = None if row.usage is None else msgspec.json.encode(row.usage).decode()
    since = None if row.since is None else row.since.isoformat()
    return session, row.id, row.status, row.parent, agent, usage, since


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
