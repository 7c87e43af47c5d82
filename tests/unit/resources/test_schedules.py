"""When cron schedules come next, in zones whose clocks jump (contract section 19.2)."""

from datetime import UTC, datetime, timedelta

import pytest

from corral.resources.schedules import JITTER_SECONDS, Cron, jitter_of
from corral.wire.deployments import CronSchedule
from corral.wire.errors import InvalidRequest


def cron(expression: str, timezone: str = "UTC") -> Cron:
    return Cron(CronSchedule(expression=expression, timezone=timezone))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(expression: str, timezone: str, after: str, count: int) -> list[str]:
    """The next times as UTC texts like ``04-05 16:00``."""
    return [f"{time:%m-%d %H:%M}" for time in cron(expression, timezone).upcoming(at(after), count)]


def test_times_are_those_of_the_zones_wall_clock() -> None:
    assert times("0 20 * * 5", "America/New_York", "2026-05-03", 2) == ["05-09 00:00", "05-16 00:00"]
    assert times("0 9 * * 1-5", "Asia/Seoul", "2026-05-02", 2) == ["05-04 00:00", "05-05 00:00"]


def test_a_time_is_strictly_after_the_moment_even_within_its_own_second() -> None:
    assert times("0 12 * * *", "UTC", "2026-05-01T12:00:00", 1) == ["05-02 12:00"]
    assert times("0 12 * * *", "UTC", "2026-05-01T12:00:00.5", 1) == ["05-02 12:00"]
    assert times("0 12 * * *", "UTC", "2026-05-01T11:59:59.999999", 1) == ["05-01 12:00"]


@pytest.mark.parametrize(
    ("expression", "timezone", "after", "expected"),
    [
        # 2:30 is not shown on 8 March.
        ("30 2 * * *", "America/New_York", "2026-03-06T12:00", ["03-07 07:30", "03-09 06:30"]),
        # Nor on 29 March in Berlin, nor in London between 1 and 2.
        ("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00", ["03-28 01:30", "03-30 00:30"]),
        ("15 1 * * *", "Europe/London", "2026-03-27T12:00", ["03-28 01:15", "03-30 00:15"]),
        # In Cairo the day of the change begins at one o'clock.
        ("0 0 * * *", "Africa/Cairo", "2026-04-22T12:00", ["04-22 22:00", "04-24 21:00"]),
        # Half an hour only: 2:15 is left out, and 3:00 comes after 2:30.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00", ["10-02 15:45", "10-04 15:15"]),
        ("0 3 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["10-03 16:00", "10-04 16:00"]),
        # Samoa had no 30 December in 2011.
        ("0 12 30 12 *", "Pacific/Apia", "2010-06-01", ["12-30 22:00", "12-29 22:00"]),
    ],
)
def test_times_that_the_clock_leaves_out_do_not_come(
    expression: str, timezone: str, after: str, expected: list[str]
) -> None:
    assert times(expression, timezone, after, 2) == expected


@pytest.mark.parametrize(
    ("expression", "timezone", "after", "expected"),
    [
        ("30 1 * * *", "America/New_York", "2026-11-01T00:00", ["11-01 05:30", "11-01 06:30", "11-02 06:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 00:30", "10-25 01:30", "10-26 01:30"]),
        # Half an hour only: of 1:15 and 1:45, the latter is shown twice.
        (
            "15,45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00",
            ["04-04 14:15", "04-04 14:45", "04-04 15:15"],
        ),
        # Every quarter of the repeated hour comes in the order in which it is lived through.
        (
            "*/30 1 * * *", "America/New_York", "2026-11-01T00:00",
            ["11-01 05:00", "11-01 05:30", "11-01 06:00", "11-01 06:30"],
        ),
        # Asked in winter for a day of the coming autumn: both times, though the first is in summer time.
        ("30 2 25 10 *", "Europe/Berlin", "2025-12-01", ["10-25 00:30", "10-25 01:30", "10-25 00:30"]),
    ],
)  # fmt: skip
def test_times_that_the_clock_repeats_come_twice(
    expression: str, timezone: str, after: str, expected: list[str]
) -> None:
    assert times(expression, timezone, after, len(expected)) == expected


def test_asking_in_the_middle_of_the_repeated_hour_goes_on_with_its_second_half() -> None:
    assert times("30 1 * * *", "America/New_York", "2026-11-01T05:45", 2) == ["11-01 06:30", "11-02 06:30"]
    assert times("30 1 * * *", "America/New_York", "2026-11-01T06:30", 1) == ["11-02 06:30"]


def test_sunday_is_both_0_and_7_and_names_stand_for_numbers() -> None:
    expected = times("0 0 * * 0", "UTC", "2026-05-01", 3)
    assert times("0 0 * * 7", "UTC", "2026-05-01", 3) == expected
    assert times("0 0 * * sun", "UTC", "2026-05-01", 3) == expected
    assert times("0 0 1 JUL *", "UTC", "2026-05-01", 1) == ["07-01 00:00"]


def test_either_of_two_restricted_days_is_enough() -> None:
    assert times("0 0 13 * 5", "UTC", "2026-05-06", 3) == ["05-08 00:00", "05-13 00:00", "05-15 00:00"]


@pytest.mark.parametrize(
    "expression",
    [
        "", "@daily", "* * * *", "0 * * * * *", "* * * * * 2026", "0 0 L * *", "0 0 15W * *", "0 0 * * 5#2",
        "0 0 ? * *", "0 0 * * 5L", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8",
        "5-1 * * * *", "*/0 * * * *", "a * * * *", "0 0 30 2 *", "0 0 31 4,6 *", "0  0 * * *", "1,, * * * *",
        "-1 * * * *", "mon * * * *", "\u0661 * * * *", "0 0 * * mon\n",
    ],
)  # fmt: skip
def test_what_is_no_plain_cron_expression_is_refused_by_its_field(expression: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^schedule\.expression: "):
        cron(expression)


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Base", "America", "../etc/passwd", "/etc/localtime", "posix/UTC", "localtime", "E" * 99],
)
def test_what_is_no_zone_is_refused_by_its_field(zone: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^schedule\.timezone: "):
        cron("0 0 * * *", zone)


def test_a_time_that_has_just_come_is_started_and_the_next_one_planned() -> None:
    due = cron("0 * * * *").due(at("2026-05-01T10:00"), at("2026-05-01T10:00:12"))
    assert due == (at("2026-05-01T10:00"), at("2026-05-01T11:00"))


def test_of_many_missed_times_only_the_last_is_started_and_only_while_it_is_fresh() -> None:
    hourly = cron("0 * * * *")
    planned = at("2026-05-01T00:00")
    assert hourly.due(planned, at("2026-05-01T10:09")) == (at("2026-05-01T10:00"), at("2026-05-01T11:00"))
    assert hourly.due(planned, at("2026-05-01T10:10")) == (None, at("2026-05-01T11:00"))
    minutely = cron("* * * * *").due(planned, at("2027-05-01T10:00:59"))
    assert minutely == (at("2027-05-01T10:00"), at("2027-05-01T10:01"))


def test_the_time_in_which_a_late_start_is_allowed_grows_with_the_interval_up_to_nine_minutes() -> None:
    quarter = cron("*/15 * * * *")
    planned = at("2026-05-01T10:00")
    assert quarter.due(planned, planned + timedelta(seconds=135)).start == planned
    assert quarter.due(planned, planned + timedelta(seconds=136)).start is None
    yearly = cron("0 10 1 5 *")
    assert yearly.due(planned, planned + timedelta(minutes=9)).start == planned
    assert yearly.due(planned, planned + timedelta(minutes=9, seconds=1)).start is None


def test_a_deployment_always_has_the_same_jitter_and_another_one_another() -> None:
    jitters = [jitter_of(f"depl_{number}") for number in range(200)]
    assert jitters == [jitter_of(f"depl_{number}") for number in range(200)]
    assert len(set(jitters)) > 150
    assert all(timedelta() <= jitter < timedelta(seconds=JITTER_SECONDS) for jitter in jitters)
