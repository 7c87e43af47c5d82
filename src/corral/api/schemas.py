"""The structs of the wire as JSON schemas, each once, by the names that the OpenAPI document refers to."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Final, Union, cast, get_args, get_origin

import msgspec
from msgspec import UnsetType

from corral.wire.agents import SessionAgent
from corral.wire.deployments import Deployment, InitialEvent
from corral.wire.fields import Request
from corral.wire.secret import SecretText
from corral.wire.sessions import BudgetLimit, Session, Thread
from corral.wire.shown_resources import (
    InlineThreadAgent,
    KeptResource,
    ShownResource,
    ThreadAgent,
    ThreadUsage,
)

_REFERENCE: Final = "#/components/schemas/{name}"
# Fields that the server keeps and sends as JSON, and what they hold.
_KEPT_AS_JSON: Final[dict[tuple[type[msgspec.Struct], str], Any]] = {
    (Session, "agent"): SessionAgent,
    (Session, "resources"): list[ShownResource],
    (Session, "budget"): BudgetLimit | None,
    (Thread, "agent"): ThreadAgent | InlineThreadAgent,
    (Thread, "usage"): ThreadUsage | None,
    (Deployment, "initial_events"): list[InitialEvent],
    (Deployment, "resources"): list[KeptResource],
    (Deployment, "budget"): BudgetLimit | None,
}


class Schemas:
    """Collects the types of a document. What `of` gives is filled in by `components`."""

    def __init__(self) -> None:
        self._asked: list[tuple[Any, dict[str, Any]]] = []

    def of(self, type_: Any) -> dict[str, Any]:
        """The schema of a type; empty until `components` was called."""
        schema: dict[str, Any] = {}
        self._asked.append((type_, schema))
        return schema

    def components(self) -> dict[str, Any]:
        """The schemas of all structs that were asked for, and of those within them, by name."""
        alternatives = set[Any]()
        structs = list(
            _structs(alternatives, [*(type_ for type_, _ in self._asked), *_KEPT_AS_JSON.values()])
        )
        types = [*(type_ for type_, _ in self._asked), *structs, *_KEPT_AS_JSON.values()]
        schemas, components = msgspec.json.schema_components(
            types, schema_hook=_custom, ref_template=_REFERENCE
        )
        known = tuple(schemas)
        for (_, asked), schema in zip(self._asked, known, strict=False):
            asked.update(schema)
        at = len(self._asked)
        names = {
            struct: schema["$ref"].rpartition("/")[2]
            for struct, schema in zip(structs, known[at:], strict=False)
        }
        for struct, name in names.items():
            if not issubclass(struct, Request):
                _require_what_is_always_sent(struct, components[name])
            elif struct not in alternatives and (tag := struct.__struct_config__.tag_field) is not None:
                # Where there is nothing to tell it from, a struct is taken without its tag.
                required = [field for field in components[name].get("required", []) if field != tag]
                components[name]["required"] = required
        for (struct, field), schema in zip(_KEPT_AS_JSON, known[at + len(structs) :], strict=True):
            if struct in names:
                components[names[struct]]["properties"][field] = schema
        return _portable(dict(sorted(components.items())))


def _portable(node: Any) -> Any:
    """The schemas with patterns as JSON Schema has them, whose ``$`` is Python's ``\\Z``."""
    match node:
        case {"pattern": str(pattern), "type": "string"}:
            return {**node, "pattern": pattern.replace(r"\Z", "$")}
        case dict():
            return {key: _portable(value) for key, value in cast("dict[str, Any]", node).items()}
        case list():
            return [_portable(value) for value in cast("list[Any]", node)]
        case _:
            return node


def _custom(type_: type) -> dict[str, Any]:
    if issubclass(type_, SecretText):
        return {"type": "string", "minLength": 1, "maxLength": type_.longest, "writeOnly": True}
    raise NotImplementedError(f"{type_.__name__} has no JSON schema")  # what msgspec asks for


def _require_what_is_always_sent(struct: type[msgspec.Struct], schema: dict[str, Any]) -> None:
    """An answer has every field of its struct, but those that may be unset."""
    unsettable = {f.encode_name for f in msgspec.structs.fields(struct) if UnsetType in get_args(f.type)}
    schema["required"] = [name for name in schema.get("properties", {}) if name not in unsettable]
    schema["additionalProperties"] = False
    for name, field in schema.get("properties", {}).items():
        if name not in unsettable:
            field.pop("default", None)


def _structs(alternatives: set[Any], types: list[Any]) -> Iterator[type[msgspec.Struct]]:
    """Every struct within the types. Those that stand in a union with another go into ``alternatives``."""
    seen: set[Any] = set()
    waiting = list(types)
    while waiting:
        type_ = waiting.pop(0)
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            if type_ not in seen:
                seen.add(type_)
                yield type_
                waiting += [field.type for field in msgspec.structs.fields(type_)]
        elif get_origin(type_) in (Union, UnionType) or get_args(type_):
            inner = [arg for arg in get_args(type_) if not isinstance(arg, str)]
            structs = [arg for arg in inner if isinstance(arg, type) and issubclass(arg, msgspec.Struct)]
            if len(structs) > 1:
                alternatives.update(structs)
            waiting += inner
