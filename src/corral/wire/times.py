"""Times on the wire: RFC 3339 in UTC with microseconds and a ``Z`` (contract section 2.4)."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo


def to_wire(moment: datetime) -> str:
    """The wire form of an aware datetime, e.g. ``2026-04-03T18:24:10.412000Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> str:
    """The present moment by this machine's clock, in the wire form."""
    return to_wire(datetime.now(UTC))


def from_wire(text: str) -> datetime:
    """The aware datetime of an RFC 3339 text; without an offset it is read as UTC.

    Raises:
        ValueError: the text is not an RFC 3339 date-time.
    """
    moment = datetime.fromisoformat(text.upper())  # RFC 3339 takes "t" and "z" for "T" and "Z"
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def zone_of(name: str) -> ZoneInfo | None:
    """The zone of this name in the IANA time zone database; None if there is none."""
    # Below the first two lie the same zones again, with other rules for seconds; the rest is the machine's.
    if name.startswith(("posix/", "right/")) or name in ("localtime", "posixrules"):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return None
