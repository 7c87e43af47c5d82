"""Commands set logging up for their whole process; tests put it back."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def _logging_as_before() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
