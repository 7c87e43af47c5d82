"""Reads and writes lengths of time the way people do."""

from tock.parsing import DurationError, parse
from tock.showing import humanize, isoformat

__all__ = ["DurationError", "humanize", "isoformat", "parse"]
