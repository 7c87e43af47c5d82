"""What a route says of itself: its parameters, its body, what it answers and what it refuses.

The OpenAPI document is made from this (`corral.api.openapi`), and tests hold handlers and real answers
against it: each bound that a parameter names is tried, each answer is checked against its schema.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from corral.wire.fields import Request
from corral.wire.query import COMPARISONS

Schema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter or header. ``name`` is what is sent, brackets and all."""

    name: str
    about: str
    schema: Schema
    place: Literal["query", "header"] = "query"
    required: bool = False


Parameters: TypeAlias = tuple[Parameter, ...]


def text(name: str, about: str, *, longest: int = 4096, required: bool = False) -> Parameter:
    """A text; an empty one counts as absent."""
    least = {"minLength": 1} if required else {}
    return Parameter(name, about, {"type": "string", **least, "maxLength": longest}, required=required)


def integer(name: str, about: str, *, least: int, most: int, default: int | None = None) -> Parameter:
    """A whole number within bounds."""
    more = {} if default is None else {"default": default}
    return Parameter(name, about, {"type": "integer", "minimum": least, "maximum": most, **more})


def limit(*, default: int | None = 20, most: int = 100) -> Parameter:
    """The page size."""
    return integer("limit", "How many items at most; 0 is the default.", least=0, most=most, default=default)


def boolean(name: str, about: str) -> Parameter:
    """``true`` or ``false``; ``1``, ``0``, ``True`` and ``False`` are taken too."""
    return Parameter(name, about, {"type": "boolean"})


def choice(name: str, about: str, values: Iterable[str]) -> Parameter:
    """One of a few words."""
    return Parameter(name, about, {"enum": sorted(values)})


def choices(name: str, about: str, values: Iterable[str], *, most: int = 100) -> Parameter:
    """Any of a few words, as ``name[]=a&name[]=b``."""
    items = {"enum": sorted(values)}
    return Parameter(f"{name}[]", about, {"type": "array", "items": items, "maxItems": most})


def texts(name: str, about: str, *, most: int, longest: int = 128) -> Parameter:
    """Any texts, as ``name[]=a&name[]=b``."""
    items = {"type": "string", "minLength": 1, "maxLength": longest}
    return Parameter(f"{name}[]", about, {"type": "array", "items": items, "maxItems": most})


_WORDS: Final = {"gt": "after", "gte": "at or after", "lt": "before", "lte": "at or before"}


def times(name: str = "created_at", allowed: Iterable[str] = COMPARISONS) -> Parameters:
    """Bounds on a time, as ``created_at[gte]=…``."""
    schema = {"type": "string", "format": "date-time"}
    return tuple(
        Parameter(f"{name}[{word}]", f"Only what has a `{name}` {_WORDS[word]} this.", schema)
        for word in allowed
    )


def order(default: str) -> Parameter:
    """The sort direction."""
    return Parameter("order", "The sort direction.", {"enum": ["asc", "desc"], "default": default})


def header(name: str, about: str) -> Parameter:
    """A header of any text."""
    return Parameter(name, about, {"type": "string"}, place="header")


PAGE: Final = text("page", "The cursor of the page, from `next_page` of the one before.")
PAGED: Final[Parameters] = (limit(), PAGE)
"""A list of at most 100 items a page."""
ARCHIVED: Final = boolean("include_archived", "Whether archived ones are listed too.")


@dataclass(frozen=True, slots=True)
class Optional:
    """A JSON body that may be left out."""

    type: type[Request]


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart form. ``files`` are the names of its parts with bytes, ``fields`` those with text."""

    files: tuple[str, ...]
    fields: Mapping[str, Schema]
    required: tuple[str, ...]
    repeated: bool = False
    """Whether a part with bytes may come more than once."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A body of any bytes, of any media type."""


@dataclass(frozen=True, slots=True)
class PageOf:
    """A page of items. ``extra`` are fields that are there for some clients alone."""

    item: Any
    cursors: tuple[str, ...] = ("next_page",)
    flags: tuple[str, ...] = ()
    extra: Mapping[str, Schema] | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a deletion is answered with: the id, and the type that says what is gone."""

    type: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Server-sent events; each frame's data is one of these."""

    item: Any


@dataclass(frozen=True, slots=True)
class Site:
    """A page for people to look at, with one of these statuses."""

    statuses: tuple[int, ...] = (200,)


@dataclass(frozen=True, slots=True)
class Never:
    """The route refuses every request: what it is for, this server has not."""


Takes: TypeAlias = "type[Request] | Optional | Form | Bytes | None"
"""What a route takes: a struct as JSON, or one of the forms above."""
Gives: TypeAlias = Any
"""What a route answers with: anything that msgspec has a schema for, or one of the forms above."""
