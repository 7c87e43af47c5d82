"""Times on the wire: RFC 3339 in UTC with microseconds and a ``Z`` (contract section 2.4)."""

from datetime import UTC, datetime


def to_wire(moment: datetime) -> str:
    """The wire form of an aware datetime, e.g. ``2026-04-03T18:24:10.412000Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_wire(text: str) -> datetime:
    """The aware datetime of an RFC 3339 text; without an offset it is read as UTC.

    Raises:
        ValueError: the text is not an RFC 3339 date-time.
    """
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
