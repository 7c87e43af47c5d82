"""Puts secrets where their placeholders stand: in a request's headers and body, never in its URL.

A value is written the way the place asks for (escaped in JSON and in forms), as the program that believed to
have it would have done. Nothing here decides where a secret may go; it is given what may.
"""

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus

from corral.gateway.http_sides import Headers, Refused
from corral.wire.credentials import NamedHosts, Variable
from corral.wire.environments import host_allowed
from corral.wire.placeholders import LENGTH, PREFIX, placeholder
from corral.wire.secret import Secret

_MARK: Final = PREFIX.encode()
_PLACEHOLDER: Final = re.compile(re.escape(_MARK) + b"[a-z2-7]{32}")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# They say where the request goes and how long it is.
_NEVER: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Injectable:
    """A credential of type ``environment_variable``, as a session has it."""

    credential_id: str
    vault_id: str
    variable: Variable
    placeholder: bytes

    @classmethod
    def of(cls, session_id: str, credential_id: str, vault_id: str, variable: Variable) -> "Injectable":
        """The credential as this session has it."""
        return cls(credential_id, vault_id, variable, placeholder(session_id, credential_id).encode())

    def goes_to(self, host: str) -> bool:
        """Whether its secret may be sent to this host."""
        networking = self.variable.networking
        return not isinstance(networking, NamedHosts) or host_allowed(host, networking.allowed_hosts)


Open = Callable[[str], Awaitable[Secret | None]]
"""The secret of a credential; None where it was purged meanwhile."""


class Injection:
    """The secrets of one request to one host; each is opened when its placeholder is met, and not before."""

    def __init__(self, injectable: Sequence[Injectable], host: str, open_secret: Open) -> None:
        self._header = {
            one.placeholder: one for one in _for(injectable, host) if one.variable.injection_location.header
        }
        self._body = {
            one.placeholder: one for one in _for(injectable, host) if one.variable.injection_location.body
        }
        self._open = open_secret

    @property
    def into_bodies(self) -> bool:
        """Whether a body has to be looked through."""
        return bool(self._body)

    async def headers(self, headers: Headers) -> Headers:
        """The headers with secrets in place. A user and a password of Basic authentication are looked into.

        Raises:
            Refused: a secret cannot stand in a header.
        """
        return [(name, await self._value(name, value)) for name, value in headers]

    async def _value(self, name: bytes, value: bytes) -> bytes:
        if name.lower() in _NEVER or not self._header:
            return value
        if _MARK in value:
            # White space at either end is no part of a header's value, whoever has put it there.
            return (await self._swap(value, self._header, _as_header)).strip(b" \t")
        scheme, _, encoded = value.partition(b" ")
        if name.lower() not in (b"authorization", b"proxy-authorization") or scheme.lower() != b"basic":
            return value
        try:
            plain = b64decode(encoded.strip(), validate=True)
        except binascii.Error:
            return value
        if _MARK not in plain:
            return value
        return scheme + b" " + b64encode(await self._swap(plain, self._header, _as_it_is))

    async def _swap(
        self, data: bytes, known: Mapping[bytes, Injectable], write: Callable[[str, str], bytes]
    ) -> bytes:
        out, end = bytearray(), 0
        for found in _PLACEHOLDER.finditer(data):
            one = known.get(found.group())
            secret = None if one is None else await self._open(one.credential_id)
            if one is None or secret is None:
                continue
            out += data[end : found.start()] + write(secret.reveal(), one.credential_id)
            end = found.end()
        return bytes(out + data[end:])

    def body(self, content_type: bytes) -> "BodyInjection":
        """What a body of this type goes through."""
        kind = content_type.partition(b";")[0].strip().lower()
        write = _as_it_is
        if kind == b"application/json" or kind.endswith((b"+json", b"/x-ndjson", b"/jsonl")):
            write = _as_json
        elif kind == b"application/x-www-form-urlencoded":
            write = _as_form

        async def swap(data: bytes) -> bytes:
            return await self._swap(data, self._body, write)

        return BodyInjection(swap, tuple(self._body))


class BodyInjection:
    """One body, piece by piece: a placeholder may lie across pieces."""

    def __init__(self, swap: Callable[[bytes], Awaitable[bytes]], known: tuple[bytes, ...]) -> None:
        self._swap = swap
        self._known = known
        self._held = b""

    async def feed(self, data: bytes) -> bytes:
        """What can be passed on once this piece has come; an end that may be half a placeholder is held."""
        data = self._held + data
        keep = _half(data, self._known)
        self._held = data[len(data) - keep :]
        data = data[: len(data) - keep]
        return await self._swap(data) if _MARK in data else data

    def finish(self) -> bytes:
        """What was held."""
        held, self._held = self._held, b""
        return held


def _half(data: bytes, known: tuple[bytes, ...]) -> int:
    """How many bytes at the end begin a placeholder that is not complete."""
    for length in range(min(LENGTH - 1, len(data)), 0, -1):
        tail = data[-length:]
        if any(one.startswith(tail) for one in known):
            return length
    return 0


def _for(injectable: Sequence[Injectable], host: str) -> list[Injectable]:
    return [one for one in injectable if one.goes_to(host)]


def _as_header(value: str, credential_id: str) -> bytes:
    if _CONTROLS.search(value):
        raise Refused(
            502,
            f"the secret of credential {credential_id} holds a line break or another control character and "
            "cannot stand in a header",
        )
    return value.encode()


def _as_it_is(value: str, _credential_id: str) -> bytes:
    return value.encode()


def _as_json(value: str, _credential_id: str) -> bytes:
    return json.dumps(value)[1:-1].encode()


def _as_form(value: str, _credential_id: str) -> bytes:
    return quote_plus(value).encode()
