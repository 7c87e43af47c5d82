"""Reading a tool's input, as the model wrote it, into typed arguments."""

from __future__ import annotations

from .failure import ToolFailure
from .quick import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


_REQUIRED: dict[str, tuple[str, ...]] = {
    "bash": (),
    "read": ("file_path",),
    "write": ("file_path", "content"),
    "edit": ("file_path", "old_string", "new_string"),
    "glob": ("pattern",),
    "grep": ("pattern",),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "bash": ("command", "restart", "timeout_ms"),
    "read": ("view_range",),
    "write": (),
    "edit": ("replace_all",),
    "glob": ("path",),
    "grep": ("path",),
}

#: The tools that this program executes.
TOOL_NAMES = tuple(_REQUIRED)


class Arguments:
    """The input of one call. Every getter raises `ToolFailure` naming the tool and the parameter."""

    def __init__(self, tool: str, given: object) -> None:
        if tool not in _REQUIRED:
            raise ToolFailure(f"unknown tool {tool!r}; this sandbox has {', '.join(TOOL_NAMES)}")
        if not isinstance(given, dict):
            raise ToolFailure(f"{tool}: input must be an object")
        self._tool = tool
        self._given: Mapping[str, Any] = {
            str(key): value for key, value in cast("dict[Any, Any]", given).items() if value is not None
        }
        known = _REQUIRED[tool] + _OPTIONAL[tool]
        for name in self._given:
            if name not in known:
                raise ToolFailure(f"{tool}: unknown parameter {name!r}; it takes {', '.join(known)}")
        for name in _REQUIRED[tool]:
            if name not in self._given:
                raise ToolFailure(f"{tool}: {name} is required")

    def text(self, name: str) -> str:
        """Return a required string."""
        value = self.optional_text(name)
        if value is None:
            raise ToolFailure(f"{self._tool}: {name} is required")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None if it was not given."""
        value = self._given.get(name)
        if value is not None and not isinstance(value, str):
            raise ToolFailure(f"{self._tool}: {name} must be a string")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean, False if it was not given."""
        value = self._given.get(name, False)
        if not isinstance(value, bool):
            raise ToolFailure(f"{self._tool}: {name} must be true or false")
        return value

    def integer(self, name: str) -> int | None:
        """Return a whole number, or None if it was not given."""
        value = self._given.get(name)
        return None if value is None else self._whole(name, value)

    def line_range(self, name: str) -> tuple[int, int] | None:
        """Return `[start_line, end_line]`, or None if it was not given or is empty."""
        value = self._given.get(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(cast("list[Any]", value)) != 2:
            raise ToolFailure(f"{self._tool}: {name} must be [start_line, end_line]")
        start, end = cast("list[Any]", value)
        return self._whole(name, start), self._whole(name, end)

    def _whole(self, name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ToolFailure(f"{self._tool}: {name} must be a whole number")
        return value
