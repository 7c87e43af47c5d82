"""Cron schedules: when a deployment comes next, by the wall clock of a zone (contract section 19.2).

Nothing here looks at a clock; every function is told the time. Fields are matched as cron does it: where the
day of the month or that of the week begins with a star both must match, otherwise one of them.

A wall clock jumps where the zone's offset changes. Between two jumps it runs evenly, so times are looked for
in one such stretch after the other: what a jump leaves out is never shown and does not match, what it repeats
is shown twice and matches twice.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from corral.wire.deployments import CronSchedule
from corral.wire.errors import InvalidRequest
from corral.wire.times import zone_of

UPCOMING: Final = 5
"""How many coming times a deployment shows."""
JITTER_SECONDS: Final = 9
"""A run starts at most this much after its time; 15 % of a minute, the shortest interval."""
LATE_SHARE: Final = 0.15
LATE_LEAST: Final = timedelta(minutes=1)
LATE_MOST: Final = timedelta(minutes=9)

_FIELDS: Final = 5
_FIELD: Final = re.compile(r"[0-9A-Za-z*,/-]+", re.ASCII)
_NAME: Final = re.compile("jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat")
_SECOND: Final = timedelta(seconds=1)
# No zone changes its offset and changes it back within so little time.
_STEP: Final = timedelta(days=3)


class Due(NamedTuple):
    """What to do about a schedule whose time has come."""

    start: datetime | None
    """The time to start a run for; None if all that has come is too long ago."""
    following: datetime | None
    """The next time after now; None if there is none for 50 years."""


class Cron:
    """A schedule that can be asked for its times."""

    def __init__(self, schedule: CronSchedule) -> None:
        """Read a schedule.

        Raises:
            InvalidRequest: the expression is none of five fields, it matches never, or the zone is unknown.
        """
        self._expression = _checked(schedule.expression)
        self._zone = _zone(schedule.timezone)
        try:
            matches = any(True for _ in CronSim(self._expression, datetime(2000, 1, 1)))  # noqa: DTZ001
        except CronSimError as error:
            raise _refused(str(error)) from None
        if not matches:
            raise _refused("matches no time")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The times after `moment`, in order, in UTC; endless, but for schedules of the far future."""
        position = moment.astimezone(UTC)
        offset = self._offset(position)
        while True:
            jump = None
            for wall in CronSim(self._expression, (position + offset).replace(tzinfo=None)):
                match = wall.replace(tzinfo=UTC) - offset
                jump = self._jump(position, match, offset)
                if jump is not None:
                    break
                position = match
                yield match
            if jump is None:
                return
            offset = self._offset(jump)
            position = jump - _SECOND

    def upcoming(self, moment: datetime, count: int = UPCOMING) -> list[datetime]:
        """The first times after `moment`."""
        return list(itertools.islice(self.after(moment), count))

    def next(self, moment: datetime) -> datetime | None:
        """The first time after `moment`, if there is one within 50 years."""
        return next(self.after(moment), None)

    def due(self, planned: datetime, now: datetime) -> Due:
        """What to do at `now` about the time `planned`, which has come.

        Of several times that have come since, while no server ran, only the last is left to start; and that
        only while it is no longer ago than 15 % of the interval to the next, at least one minute and at
        most nine.
        """
        latest, following = planned, None
        for time in self.after(max(planned, now - LATE_MOST - _SECOND)):
            if time > now:
                following = time
                break
            latest = time
        bound = LATE_MOST
        if following is not None:
            bound = min(max((following - latest) * LATE_SHARE, LATE_LEAST), LATE_MOST)
        return Due(latest if now - latest <= bound else None, following)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta()

    def _jump(self, begin: datetime, end: datetime, offset: timedelta) -> datetime | None:
        """The first moment after `begin`, up to `end`, at which the zone has another offset than `offset`."""
        while begin < end:
            until = min(begin + _STEP, end)
            if self._offset(until) != offset:
                same, other = int(begin.timestamp()), int(until.timestamp())
                while other - same > 1:
                    middle = (same + other) // 2
                    if self._offset(datetime.fromtimestamp(middle, UTC)) == offset:
                        same = middle
                    else:
                        other = middle
                return datetime.fromtimestamp(other, UTC)
            begin = until
        return None


def jitter_of(deployment_id: str) -> timedelta:
    """By how much a deployment's runs start after their times: always the same, spread over deployments."""
    digest = hashlib.sha256(deployment_id.encode()).digest()
    return timedelta(milliseconds=int.from_bytes(digest[:4]) % (JITTER_SECONDS * 1000))


def _checked(expression: str) -> str:
    fields = expression.split(" ")
    if len(fields) != _FIELDS:
        raise _refused(f"must have {_FIELDS} fields (minute hour day-of-month month day-of-week)")
    for field in fields:
        if not _FIELD.fullmatch(field):
            raise _refused(f"{field[:20]!r} is not supported; a field holds numbers and * , - /")
        for word in re.findall("[A-Za-z]+", field):
            if not _NAME.fullmatch(word.lower()):
                raise _refused(f"{word[:20]!r} is not supported")
    return " ".join(fields)


def _zone(name: str) -> ZoneInfo:
    zone = zone_of(name)
    if zone is None:
        raise InvalidRequest(f'schedule.timezone: "{name[:100]}" is no zone of the IANA time zone database')
    return zone


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"schedule.expression: {reason}")
