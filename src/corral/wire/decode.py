"""From the bytes of a request to its struct, with errors that name the field in the API's style.

``events[0].content[1].text: Field required``, ``foo: Extra inputs are not permitted``. Nothing that a client
can send makes this raise anything but an `ApiError`.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from corral.wire.errors import InvalidRequest, RequestTooLarge
from corral.wire.fields import Request
from corral.wire.secret import SecretText
from corral.wire.text import clean, is_clean

BODY_BYTES: Final = 32 * 1024 * 1024
DEPTH: Final = 128

R = TypeVar("R", bound=Request)

# A body without these cannot decode to NUL or to a surrogate, so it need not be searched for them.
_ESCAPES: Final = re.compile(rb"\\u(0000|[dD][89a-fA-F])")
# Everything below these keys is free text; strings elsewhere are names, ids and the like.
_FREE_TEXT: Final = frozenset({"content", "system", "description", "deny_message", "message", "input_schema"})
# Types that the hosted service takes and this server does not: the error says so.
_UNAVAILABLE: Final = {
    "redacted": "redacted blocks come from the server only",
}


def decode(body: bytes, type_: type[R]) -> R:
    """The request's struct, with the rules over several fields checked too.

    Raises:
        InvalidRequest: the body is no JSON object of this shape; the message names the field.
        RequestTooLarge: the body has more than 32 MB.
    """
    try:
        request = msgspec.convert(parse(body, exact=type_.exact_text), type_, dec_hook=_special)
    except msgspec.ValidationError as error:
        raise InvalidRequest(describe(str(error))) from None
    except RecursionError:
        raise InvalidRequest(f"The request body is nested more than {DEPTH} levels deep") from None
    request.check()
    return request


def _special(type_: type, value: Any) -> Any:
    """The value of a field whose type msgspec does not know; its errors get the field's path from msgspec."""
    if not issubclass(type_, SecretText):
        raise TypeError(f"a request cannot have a field of type {type_.__name__}")
    return type_.sent(value)


def parse(body: bytes, *, exact: bool = False) -> Any:
    """The JSON value of a body: strict UTF-8, no duplicate keys, no NaN, no endless nesting, clean strings.

    Free text that is not clean is made so, or, if it has to be `exact`, refused like any other.

    Raises:
        InvalidRequest: the body is not such a value.
        RequestTooLarge: the body has more than 32 MB.
    """
    if len(body) > BODY_BYTES:
        raise RequestTooLarge(f"Request body exceeds the maximum of {BODY_BYTES} bytes")
    if not body.strip():
        raise InvalidRequest("The request body is empty; a JSON object is required")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The request body is not valid UTF-8 (byte {error.start})") from None
    try:
        value = _decoder().decode(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The request body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise InvalidRequest(f"The request body is nested more than {DEPTH} levels deep") from None
    except ValueError:
        # An integer of thousands of digits, which Python refuses to convert.
        raise InvalidRequest("The request body holds a number that is too long") from None
    free_text: frozenset[str] = frozenset() if exact else _FREE_TEXT
    return _made_clean(value, "", free_text) if _ESCAPES.search(body) else value


@cache
def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite, strict=True
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(f"{clean(key)[:100]}: the key is given more than once in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"The request body is not valid JSON: {name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise InvalidRequest("The request body holds a number that is out of range")
    return number


def _made_clean(
    value: Any, path: str, free_text: frozenset[str], *, free: bool = False, depth: int = 0
) -> Any:
    if depth > DEPTH:
        raise RecursionError
    if isinstance(value, str):
        if free:
            return clean(value)
        if not is_clean(value):
            raise InvalidRequest(f"{path or 'body'}: holds a NUL character or an unpaired surrogate")
        return value
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _made_clean(v, f"{path}[{i}]", free_text, free=free, depth=depth + 1) for i, v in enumerate(items)
        ]
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        for key, item in cast("dict[str, Any]", value).items():
            if not is_clean(key):
                raise InvalidRequest(
                    f"{path or 'body'}: a key holds a NUL character or an unpaired surrogate"
                )
            inner = f"{path}.{key}" if path else key
            inside = free or key in free_text
            result[key] = _made_clean(item, inner, free_text, free=inside, depth=depth + 1)
        return result
    return value


_JSON_TYPES: Final = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "null": "null",
    "NoneType": "null",
    "array": "list",
    "object": "object",
}


def _types(text: str) -> str:
    words: list[str] = text.strip("`").split(" | ")
    return " or ".join(_JSON_TYPES.get(word, word) for word in words)


def _path_of(message: str) -> tuple[str, str]:
    message, _, path = message.partition(" - at ")
    path = path.strip("`").replace("key in ", "")
    path = path.removeprefix("$").removeprefix(".").replace("[...]", ".*")
    return message, path


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


# Python's end of a text, as others write it.
_END: Final = re.compile(r"\\{1,2}Z")

# How msgspec words its findings, and how the API does. Each takes the match and the path.
_PATTERNS: Final[list[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]]]] = [
    (
        re.compile(r"Object missing required field `(?P<field>.+)`"),
        lambda m, path: f"{_joined(path, m['field'])}: Field required",
    ),
    (
        re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL),
        lambda m, path: f"{_joined(path, m['field'])}: Extra inputs are not permitted",
    ),
    (
        re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL),
        lambda m, path: f"{path}: {_not_valid(m['value'])}",
    ),
    (
        re.compile(r"Expected `(?P<expected>.*?)` matching regex '(?P<regex>.*)'"),
        lambda m, path: f"{path}: must match {_END.sub('$', m['regex'])}",
    ),
    (
        re.compile(r"Expected `(?P<type>\w+)` of length (?P<bound>[<>]=|==) (?P<count>\d+)"),
        lambda m, path: f"{path}: {_length(m['type'], m['bound'], int(m['count']))}",
    ),
    (
        re.compile(r"Expected `(?P<type>\w+)` (?P<bound>[<>]=|[<>]) (?P<number>-?[\d.]+)"),
        lambda m, path: f"{path}: must be {_BOUNDS[m['bound']]} {m['number']}",
    ),
    (
        re.compile(r"Expected (?P<expected>`[^`]*`), got (?P<got>`[^`]*`)"),
        lambda m, path: (
            f"{path or 'body'}: Input should be a valid {_types(m['expected'])}, got {_types(m['got'])}"
        ),
    ),
]
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "greater than", "<": "less than"}


def _not_valid(value: str) -> str:
    plain = value[1:-1] if value[:1] == "'" else value
    known = _UNAVAILABLE.get(plain)
    return f'"{plain[:200]}" is not a valid value' + (f" ({known})" if known else "")


def _length(kind: str, bound: str, count: int) -> str:
    what = {"str": "characters", "array": "items"}.get(kind, "entries")
    return f"must have {_BOUNDS.get(bound, 'exactly')} {count} {what}"


def describe(message: str) -> str:
    """A finding of msgspec's in the API's words: the field's path, a colon, what is wrong."""
    finding, path = _path_of(message)
    for pattern, worded in _PATTERNS:
        match = pattern.fullmatch(finding)
        if match:
            return worded(match, path)
    return f"{path or 'body'}: {finding}"
