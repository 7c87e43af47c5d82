"""What `parse` takes and what it refuses."""

import unittest

from tock import DurationError, parse


class Terms(unittest.TestCase):
    """Units written out or abbreviated."""

    def test_adds_up_units(self) -> None:
        self.assertEqual(parse("1h 30m"), 5400)

    def test_takes_long_names_and_commas(self) -> None:
        self.assertEqual(parse("2 days, 4 hours"), 187200)

    def test_takes_fractions(self) -> None:
        self.assertEqual(parse("1.5 hours"), 5400)

    def test_ignores_case(self) -> None:
        self.assertEqual(parse("3 MIN"), 180)

    def test_takes_a_sign(self) -> None:
        self.assertEqual(parse("-90s"), -90)

    def test_refuses_unknown_units(self) -> None:
        with self.assertRaisesRegex(DurationError, "fortnights"):
            parse("2 fortnights")

    def test_refuses_units_out_of_order(self) -> None:
        with self.assertRaisesRegex(DurationError, "out of order"):
            parse("5m 1h")

    def test_refuses_a_unit_twice(self) -> None:
        with self.assertRaisesRegex(DurationError, "out of order"):
            parse("5m 6m")

    def test_refuses_nothing(self) -> None:
        with self.assertRaisesRegex(DurationError, "empty"):
            parse("  ")


class Clock(unittest.TestCase):
    """Clock times."""

    def test_reads_minutes_and_seconds(self) -> None:
        self.assertEqual(parse("2:05"), 125)

    def test_reads_hours(self) -> None:
        self.assertEqual(parse("1:30:00"), 5400)

    def test_reads_fractions_of_a_second(self) -> None:
        self.assertEqual(parse("0:01.5"), 1.5)

    def test_refuses_sixty_seconds(self) -> None:
        with self.assertRaises(DurationError):
            parse("1:60")


class Iso(unittest.TestCase):
    """ISO 8601 durations."""

    def test_tells_months_from_minutes(self) -> None:
        self.assertEqual(parse("PT5M"), 300)
        with self.assertRaises(DurationError):
            parse("P5M")

    def test_reads_days_and_time(self) -> None:
        self.assertEqual(parse("P1DT12H"), 129600)

    def test_refuses_an_empty_one(self) -> None:
        for text in ("P", "PT", "P1DT"):
            with self.assertRaises(DurationError):
                parse(text)
