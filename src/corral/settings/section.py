"""What every section of the settings is, and the bounds that several share."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Price: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000)]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings: a mapping in the file, a prefix in the environment."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between settings that are each fine by themselves, as (key, message)."""
        yield from ()
