"""Metadata: at most 16 pairs, keys of 1 to 64 characters, values of at most 512 (contract section 2.4)."""

from collections.abc import Mapping
from typing import Any, Final

from corral.wire.errors import InvalidRequest

PAIRS: Final = 16
KEY_LENGTH: Final = 64
VALUE_LENGTH: Final = 512


def created(metadata: Mapping[str, Any] | None, *, path: str = "metadata") -> dict[str, str]:
    """The metadata of a new object, checked.

    Raises:
        InvalidRequest: a pair is out of bounds; the message names the key.
    """
    return patched({}, metadata, path=path, nulls=False)


def patched(
    stored: Mapping[str, str],
    patch: Mapping[str, Any] | None,
    *,
    path: str = "metadata",
    empty_deletes: bool = False,
    nulls: bool = True,
) -> dict[str, str]:
    """The stored metadata with a patch applied: a string upserts, null deletes, an absent key stays.

    ``empty_deletes`` makes the empty string delete too, as environments do (contract section 7.2).

    Raises:
        InvalidRequest: a pair of the patch, or the number of pairs after it, is out of bounds.
    """
    result = dict(stored)
    for key, value in (patch or {}).items():
        if not 1 <= len(key) <= KEY_LENGTH:
            raise InvalidRequest(
                f"{path}: key {key[:KEY_LENGTH]!r} must have 1 to {KEY_LENGTH} characters",
                error_code="invalid_metadata",
            )
        if (value is None and nulls) or (value == "" and empty_deletes):
            result.pop(key, None)
            continue
        if not isinstance(value, str):
            raise InvalidRequest(
                f"{path}.{key}: Input should be a valid string", error_code="invalid_metadata"
            )
        if len(value) > VALUE_LENGTH:
            raise InvalidRequest(
                f"{path}.{key}: must have at most {VALUE_LENGTH} characters", error_code="invalid_metadata"
            )
        result[key] = value
    if len(result) > PAIRS:
        raise InvalidRequest(f"{path}: at most {PAIRS} pairs", error_code="invalid_metadata")
    return result
