"""Turns the sections' structs into a flat description of every setting, for reading and for documenting."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from corral.settings.sections import Section, Settings
from corral.wire.secret import Secret


class Setting(NamedTuple):
    """One setting as the reader and the documentation see it."""

    section: str
    key: str
    type: Any
    default: Any
    description: str
    example: Any
    is_secret: bool
    allowed_without_password: bool
    also: str | None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"CORRAL_{self.section.upper()}__{self.key.upper()}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, if they are few."""
        bare = _bare(self.type)
        return cast("tuple[str, ...]", get_args(bare)) if get_origin(bare) is Literal else ()

    @property
    def is_mapping(self) -> bool:
        """Whether it is a mapping or a list, which the environment gives as YAML."""
        return get_origin(_bare(self.type)) in (dict, list)


def sections() -> Iterator[tuple[str, type[Section]]]:
    """The sections' names and structs, in their order."""
    for field in msgspec.structs.fields(Settings):
        yield field.name, cast("type[Section]", field.type)


def describe() -> Iterator[Setting]:
    """Every setting, in its order."""
    for name, section in sections():
        hints = get_type_hints(section, include_extras=True)
        for field in msgspec.structs.fields(section):
            yield _setting(name, field, hints[field.name])


def _setting(section: str, field: msgspec.structs.FieldInfo, hint: Any) -> Setting:
    meta = next(one for one in get_args(hint) if isinstance(one, msgspec.Meta) and one.description)
    extra = meta.extra_json_schema or {}
    default: Any = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return Setting(
        section=section,
        key=field.name,
        type=hint,
        default=default,
        description=meta.description or "",
        example=meta.examples[0] if meta.examples else None,
        is_secret=Secret in _alternatives(hint),
        allowed_without_password=bool(extra.get("without_password")),
        also=extra.get("also"),
    )


def _bare(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _alternatives(hint: Any) -> tuple[Any, ...]:
    bare = _bare(hint)
    return get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)
