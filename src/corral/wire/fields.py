"""The building blocks of request models: the base struct and the bounded field types (contract section 2.5).

``UNSET`` is an absent field, ``None`` is an explicit null, anything else is a value: three things, which
every model here keeps apart wherever the contract does.
"""

from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

T = TypeVar("T")

__all__ = [
    "UNSET",
    "Domain",
    "Id",
    "LongToken",
    "Metadata",
    "MetadataPatch",
    "MetadataTexts",
    "PositiveInt",
    "Request",
    "UnsetType",
    "given",
]


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that a client sends. Unknown fields are refused."""

    exact_text: ClassVar[bool] = False
    """Whether texts are kept as they were sent: what cannot be kept is then refused, not replaced."""

    def check(self) -> None:
        """The rules that reach over several fields; `decode` calls it on the outermost struct.

        Raises:
            InvalidRequest: a rule does not hold; the message names the field's path.
        """


Id = Annotated[str, Meta(min_length=1, max_length=128)]
LongToken = Annotated[str, Meta(min_length=1, max_length=2048)]
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Domain = Annotated[str, Meta(min_length=1, max_length=255)]
# Bounds on metadata are checked by `corral.wire.metadata`, which can name the key; the schemas tell of them.
_KEYS: Final = {"propertyNames": {"minLength": 1, "maxLength": 64}}
_VALUE: Final = {"type": "string", "maxLength": 512}
Metadata = Annotated[
    dict[str, Any],
    Meta(extra_json_schema={**_KEYS, "maxProperties": 16, "additionalProperties": _VALUE}),
]
MetadataPatch = Annotated[
    dict[str, Any],
    Meta(extra_json_schema={**_KEYS, "additionalProperties": {"anyOf": [_VALUE, {"type": "null"}]}}),
]
MetadataTexts = Annotated[dict[str, Any], Meta(extra_json_schema={**_KEYS, "additionalProperties": _VALUE})]
"""A patch in which the empty text deletes, not null."""


def given(value: T | UnsetType | None, default: T) -> T:
    """The value, or the default where it is absent or null."""
    return default if value is UNSET or value is None else value
