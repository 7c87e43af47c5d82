"""The names that tools may have."""

from __future__ import annotations

import re
from typing import Any

from corral.testing.refusal import Refused
from corral.testing.validation.fields import as_string

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def tool_name(value: Any, path: str) -> None:
    """A tool's name, as it is in a tool definition and in a `tool_use` block."""
    if not TOOL_NAME.fullmatch(as_string(value, path)):
        raise Refused(path, "must match ^[a-zA-Z0-9_-]{1,128}$")


def property_name(value: str, path: str) -> None:
    """The name of a property of a tool's input."""
    if not PROPERTY_NAME.fullmatch(value):
        raise Refused(path, "property names must match ^[a-zA-Z0-9_.-]{1,64}$")
