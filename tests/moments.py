"""Moments in a session that tests wait for: what `SessionUnderTest.until` takes as ``where``."""

from typing import Any


def ends_turn(event: Any) -> bool:
    """An idle that ends the turn, not one that asks for something."""
    return event.stop_reason.type == "end_turn"


def is_taken(event: Any) -> bool:
    """A client event that the agent has taken up."""
    return event.processed_at is not None
