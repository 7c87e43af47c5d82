"""Seals: where the chains of sessions stood at a moment, signed by a key that the database does not have.
Pure.

A seal holds the heads of many sessions at once and the digest of the seal before it, under a gapless number.
So whoever can write to the database can neither make a seal, nor alter one, nor take one out of the middle.
They can take the last ones away: who wants to notice that as well keeps the numbers that the server's log
tells.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from corral.wire.secret import Secret

FIRST: Final = b"\0" * 32
"""What the first seal tells of as the one before it."""
_KIND: Final = b"corral seal 1"
_PRIVATE: Final = "corral-chain-key-"
_PUBLIC: Final = "corral-chain-pub-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Entry(msgspec.Struct, frozen=True):
    """Where the chain of one session stood."""

    session_id: str
    seq: int
    head: bytes


class Seal(msgspec.Struct, frozen=True):
    """A seal as its row has it."""

    number: int
    previous: bytes
    sealed_at: datetime
    digest: bytes
    key_id: str | None
    signature: bytes | None


class VerifyKey:
    """The public half: says whether a signature is this operator's."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        raw = key.public_bytes_raw()
        self.text = _PUBLIC + _encoded(raw)
        self.id = "chk_" + hashlib.sha256(raw).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> "VerifyKey":
        """Raises ValueError: this is no such key."""
        return cls(Ed25519PublicKey.from_public_bytes(_decoded(text, _PUBLIC)))

    def verifies(self, signature: bytes, digest: bytes) -> bool:
        """Whether the signature is of this key and over `digest`."""
        try:
            self._key.verify(signature, digest)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """The private half, which signs."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = VerifyKey(key.public_key())

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new one."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, secret: Secret) -> "SigningKey":
        """Raises ValueError: this is no such key."""
        return cls(Ed25519PrivateKey.from_private_bytes(_decoded(secret.reveal(), _PRIVATE)))

    @property
    def text(self) -> Secret:
        """The key for a setting."""
        return Secret(_PRIVATE + _encoded(self._key.private_bytes_raw()))

    def sign(self, digest: bytes) -> bytes:
        """The signature over a digest."""
        return self._key.sign(digest)


def seal_digest(number: int, previous: bytes, sealed_at: datetime, entries: Sequence[Entry]) -> bytes:
    """What is signed of a seal: all of it."""
    micros = (sealed_at - _EPOCH) // timedelta(microseconds=1)
    hashed = hashlib.sha256(_KIND + number.to_bytes(8, "big") + previous + micros.to_bytes(8, "big"))
    for entry in sorted(entries, key=lambda entry: entry.session_id):
        text = f"{entry.session_id}\x1f{entry.seq}\x1f{entry.head.hex()}\x1f"
        hashed.update(hashlib.sha256(text.encode()).digest())
    return hashed.digest()


def seal_fault(seal: Seal, entries: Sequence[Entry], keys: Sequence[VerifyKey]) -> str | None:
    """What is wrong with a seal in itself; None if it is in order. Unsigned ones are, where there are no
    keys.
    """
    if seal_digest(seal.number, seal.previous, seal.sealed_at, entries) != seal.digest:
        return "is not as it was made"
    if not keys:
        return None
    if seal.signature is None:
        return "is not signed"
    if not any(key.id == seal.key_id and key.verifies(seal.signature, seal.digest) for key in keys):
        return "is not signed by a key that this server knows"
    return None


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str, prefix: str) -> bytes:
    if not text.startswith(prefix):
        raise ValueError(f"a key of the chain begins with {prefix}")
    try:
        raw = base64.urlsafe_b64decode(text.removeprefix(prefix) + "=")
    except (ValueError, binascii.Error) as error:
        raise ValueError("this is no key of the chain") from error
    if len(raw) != 32:
        raise ValueError("this is no key of the chain")
    return raw
