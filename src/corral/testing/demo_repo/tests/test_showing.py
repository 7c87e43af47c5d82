"""What `humanize` and `isoformat` write."""

import unittest

from tock import humanize, isoformat, parse


class Humanize(unittest.TestCase):
    """Lengths of time for people."""

    def test_shows_the_two_largest_units(self) -> None:
        self.assertEqual(humanize(5405), "1h 30m")

    def test_shows_as_many_parts_as_asked(self) -> None:
        self.assertEqual(humanize(5405, parts=3), "1h 30m 5s")

    def test_shows_a_whole_unit_as_one(self) -> None:
        self.assertEqual(humanize(60), "1m")

    def test_shows_seconds(self) -> None:
        self.assertEqual(humanize(59), "59s")

    def test_shows_nothing_as_zero_seconds(self) -> None:
        self.assertEqual(humanize(0), "0s")

    def test_shows_a_sign(self) -> None:
        self.assertEqual(humanize(-150), "-2m 30s")

    def test_refuses_no_parts(self) -> None:
        with self.assertRaises(ValueError):
            humanize(5, parts=0)


class Isoformat(unittest.TestCase):
    """ISO 8601 durations."""

    def test_writes_days_and_time(self) -> None:
        self.assertEqual(isoformat(93784), "P1DT2H3M4S")

    def test_writes_weeks_as_days(self) -> None:
        self.assertEqual(isoformat(1209605), "P14DT5S")

    def test_writes_nothing_as_zero_seconds(self) -> None:
        self.assertEqual(isoformat(0), "PT0S")

    def test_is_read_back_as_the_same_length(self) -> None:
        for seconds in (1, 59, 60, 3599, 3600, 86400, 604800):
            self.assertEqual(parse(isoformat(seconds)), seconds)
