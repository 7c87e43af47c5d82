"""The page on webhooks names every event that can be asked for and occurs."""

from pathlib import Path

import pytest

from corral.wire.webhooks import FURTHER, TOLD

TEXT = (Path(__file__).parents[3] / "docs/webhooks.md").read_text("utf-8")


@pytest.mark.parametrize("event", [*TOLD, *FURTHER])
def test_every_event_is_documented(event: str) -> None:
    assert f"`{event}`" in TEXT
