"""Checks of single values: types, required and unknown fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from corral.testing.refusal import Refused

Check = Callable[[Any, str], None]
"""A check of one value at one path; raises `Refused` when the value does not pass."""


def as_object(value: Any, path: str) -> dict[str, Any]:
    """`value` as a JSON object, or a refusal."""
    if not isinstance(value, dict):
        raise Refused(path, f"expected an object, found {name_of(value)}")
    return cast("dict[str, Any]", value)


def as_list(value: Any, path: str) -> list[Any]:
    """`value` as a JSON array, or a refusal."""
    if not isinstance(value, list):
        raise Refused(path, f"expected a list, found {name_of(value)}")
    return cast("list[Any]", value)


def as_string(value: Any, path: str) -> str:
    """`value` as a string, or a refusal."""
    if not isinstance(value, str):
        raise Refused(path, f"expected a string, found {name_of(value)}")
    return value


def name_of(value: Any) -> str:
    """The JSON name of a value's type, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def join(path: str, key: str | int) -> str:
    """The path of a member of `path`."""
    return f"{path}.{key}" if path else str(key)


def string(value: Any, path: str) -> None:
    """A string."""
    as_string(value, path)


def filled_string(value: Any, path: str) -> None:
    """A string that is not empty."""
    if not as_string(value, path):
        raise Refused(path, "must not be empty")


def boolean(value: Any, path: str) -> None:
    """A boolean."""
    if not isinstance(value, bool):
        raise Refused(path, f"expected a boolean, found {name_of(value)}")


def integer(value: Any, path: str) -> None:
    """A whole number (a boolean is none)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(path, f"expected an integer, found {name_of(value)}")


def number(low: float, high: float) -> Check:
    """A number from `low` to `high`."""

    def check(value: Any, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(path, f"expected a number, found {name_of(value)}")
        if not low <= value <= high:
            raise Refused(path, f"must be from {low:g} to {high:g}")

    return check


def anything(value: Any, path: str) -> None:
    """Any JSON value: for fields whose content is not this server's business."""


def an_object(value: Any, path: str) -> None:
    """A JSON object with any members."""
    as_object(value, path)


def a_list(value: Any, path: str) -> None:
    """A JSON array with any items."""
    as_list(value, path)


def one_of(*allowed: str) -> Check:
    """One of the given strings."""

    def check(value: Any, path: str) -> None:
        if value not in allowed:
            raise Refused(path, f"must be one of {', '.join(allowed)}")

    return check


def nullable(inner: Check) -> Check:
    """`inner`, or null."""

    def check(value: Any, path: str) -> None:
        if value is not None:
            inner(value, path)

    return check


def list_of(inner: Check) -> Check:
    """A list whose items each pass `inner`."""

    def check(value: Any, path: str) -> None:
        for index, item in enumerate(as_list(value, path)):
            inner(item, join(path, index))

    return check


def check_fields(
    value: Mapping[str, Any],
    path: str,
    *,
    required: Mapping[str, Check] | None = None,
    optional: Mapping[str, Check] | None = None,
) -> None:
    """Every required field is there, no field is unknown, and each passes its check."""
    known = {**(required or {}), **(optional or {})}
    refuse_missing(value, path, required or {})
    for key, item in value.items():
        check = known.get(key)
        if check is None:
            raise Refused(join(path, key), "unknown field: extra inputs are not permitted")
        check(item, join(path, key))


def refuse_missing(value: Mapping[str, Any], path: str, names: Iterable[str]) -> None:
    """Refuses an object that lacks one of `names`."""
    for name in names:
        if name not in value:
            raise Refused(join(path, name), "field required")


def refuse_duplicates(names: Sequence[str], path: str, what: str) -> None:
    """Refuses a list in which a name stands twice; the path is the second one's."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise Refused(join(path, index), f"{what} must be unique, {name!r} appears more than once")
        seen.add(name)
