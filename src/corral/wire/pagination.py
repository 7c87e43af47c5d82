"""Cursors: opaque to clients, bound to the list they came from, its order and its owner (contract 2.3).

A cursor is the base64url form of a JSON array. It carries a position and no secret; whoever changes one gets
another position in the same list at most, since every list is filtered by its owner again.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from corral.wire.errors import InvalidRequest
from corral.wire.query import TimeRange
from corral.wire.text import is_clean

Order = Literal["asc", "desc"]
_VERSION: Final = 1


class Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A place in a list. ``before`` asks for the page that ends there, not the one that starts there."""

    version: int
    kind: str
    """Which list."""
    scope: str
    """Whose list, e.g. a session's id; empty where a list has no owner."""
    order: Order
    position: tuple[int | str, ...]
    """The sort key of the last item seen."""
    before: bool = False


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What a list is asked for: ``after`` is the cursor, None for the first page."""

    limit: int
    order: Order
    after: Cursor | None = None


def encode(
    kind: str, position: tuple[int | str, ...], *, order: Order, scope: str = "", before: bool = False
) -> str:
    """The cursor text for a position."""
    raw = msgspec.json.encode(Cursor(_VERSION, kind, scope, order, position, before))
    return urlsafe_b64encode(raw).decode().rstrip("=")


def decode(
    text: str | None, kind: str, shape: tuple[type, ...], *, order: Order, scope: str = ""
) -> Cursor | None:
    """The cursor of a text; ``shape`` are the types of its position.

    Raises:
        InvalidRequest: it is none of ours, or belongs to another list or another order.
    """
    if text is None:
        return None
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        cursor = msgspec.json.decode(raw, type=Cursor)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise InvalidRequest("invalid page cursor") from None
    fits = tuple(type(part) for part in cursor.position) == shape
    if cursor.version != _VERSION or cursor.kind != kind or cursor.scope != scope or not fits:
        raise InvalidRequest("invalid page cursor")
    if any(isinstance(part, int) and not 0 <= part < 2**63 for part in cursor.position):
        raise InvalidRequest("invalid page cursor")
    if any(isinstance(part, str) and not is_clean(part) for part in cursor.position):
        raise InvalidRequest("invalid page cursor")
    if cursor.order != order:
        raise InvalidRequest("page token order does not match request")
    return cursor


# The last microsecond that a datetime can hold.
_LAST_MICROSECOND: Final = 253_402_300_799_999_999


def time_position(moment: datetime, item_id: str) -> tuple[int, str]:
    """The position of an item in a list ordered by time, then id. Microseconds: exact, as the database is."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds, item_id


def moment_at(microseconds: int) -> datetime:
    """The time that is so many microseconds after 1970.

    Raises:
        InvalidRequest: it lies beyond what a time can be, so the cursor was made up.
    """
    if microseconds > _LAST_MICROSECOND:
        raise InvalidRequest("invalid page cursor")
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


def moment_of(cursor: Cursor) -> datetime:
    """The time in a position that `time_position` made.

    Raises:
        InvalidRequest: the number is no time.
    """
    return moment_at(int(cursor.position[0]))


def check_within(cursor: Cursor | None, times: TimeRange) -> None:
    """A filter on time must not exclude the place where the cursor stands.

    Raises:
        InvalidRequest: it does.
    """
    if cursor is not None and not times.holds(moment_of(cursor)):
        raise InvalidRequest("page: the created_at filter excludes the position of the page cursor")


class Listing(msgspec.Struct, kw_only=True):
    """The envelope of a list; ``next_page`` is null on the last page, and never left out."""

    data: list[Any]
    next_page: str | None
