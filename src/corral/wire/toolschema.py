"""The rules on a custom tool's name and input schema (contract section 5.4)."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from corral.wire.errors import InvalidRequest

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_PROPERTY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_COMBINATORS: Final = ("oneOf", "anyOf", "allOf")
RESERVED_PREFIXES: Final = ("ant__", "mcp__")
SCHEMA_DEPTH: Final = 64


def check_custom_tool(name: str, schema: Mapping[str, Any], builtin: Collection[str], path: str) -> None:
    """Check a custom tool's name and schema.

    Raises:
        InvalidRequest: the name is malformed, reserved or a built-in tool's, or the schema is one that the
            model's API would refuse.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.name: may hold letters, digits, underscores and hyphens only")
    if name.startswith(RESERVED_PREFIXES):
        raise InvalidRequest(f"{path}.name: the prefixes {' and '.join(RESERVED_PREFIXES)} are reserved")
    if name in builtin:
        raise InvalidRequest(f'{path}.name: "{name}" is the name of a built-in tool')
    where = f"{path}.input_schema"
    if schema.get("type") != "object":
        raise InvalidRequest(f'{where}.type: must be "object"')
    for word in _COMBINATORS:
        if word in schema:
            raise InvalidRequest(f"{where}.{word}: not allowed at the top level of an input schema")
    properties = schema.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise InvalidRequest(f"{where}.properties: Input should be a valid object")
    required = schema.get("required")
    if required is not None and not (
        isinstance(required, list) and all(isinstance(item, str) for item in cast("list[Any]", required))
    ):
        raise InvalidRequest(f"{where}.required: Input should be a list of strings")
    _walk(schema, where, 0)


def _walk(schema: Any, path: str, depth: int) -> None:
    if depth > SCHEMA_DEPTH:
        raise InvalidRequest(f"{path}: nested more than {SCHEMA_DEPTH} levels deep")
    if isinstance(schema, list):
        for index, item in enumerate(cast("list[Any]", schema)):
            _walk(item, f"{path}[{index}]", depth + 1)
    if not isinstance(schema, dict):
        return
    node = cast("dict[str, Any]", schema)
    for word in _REFERENCES:
        if word in node:
            raise InvalidRequest(f"{path}.{word}: references are not supported; write the schema out")
    for key, value in node.items():
        if key in ("enum", "const", "default", "examples"):
            continue  # data, not schema
        if key == "properties" and isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                if not _PROPERTY.fullmatch(name):
                    raise InvalidRequest(
                        f"{path}.properties: property name {name[:64]!r} must match [A-Za-z0-9_.-]{{1,64}}"
                    )
                _walk(inner, f"{path}.properties.{name}", depth + 1)
        else:
            _walk(value, f"{path}.{key}", depth + 1)
