"""The tests of tock."""
