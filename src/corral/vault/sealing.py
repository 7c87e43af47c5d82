"""The sealed form of a secret: an envelope that anyone can close and the gateway alone can open.

A fresh AES-256-GCM key encrypts the secret. That key is wrapped by another, which HKDF-SHA-256 derives from
an X25519 agreement between an ephemeral key and the gateway's. The envelope, in bytes:

    version 1 | key id 8 | ephemeral public key 32 | wrapped key 48 | nonce 12 | ciphertext, tag 16

Both encryptions authenticate the place that the secret belongs to, so an envelope that is moved to another
row or another field does not open. The inner one does not depend on the outer: when the gateway's key is
replaced, the data key is wrapped anew and the ciphertext stays.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from corral.vault.keys import ID_BYTES, PrivateKey, PublicKey
from corral.wire.credentials import SecretField
from corral.wire.secret import Secret

VERSION: Final = 1

_KEY_BITS: Final = 256
_NONCE: Final = 12
_WRAPPED: Final = 32 + 16
_EPHEMERAL_AT: Final = 1 + ID_BYTES
_WRAPPED_AT: Final = _EPHEMERAL_AT + 32
_NONCE_AT: Final = _WRAPPED_AT + _WRAPPED
_TEXT_AT: Final = _NONCE_AT + _NONCE
_SHORTEST: Final = _TEXT_AT + 16
# The wrapping key is used once, so its nonce need not differ.
_WRAPPING_NONCE: Final = bytes(_NONCE)

KeyRing: TypeAlias = Mapping[str, PrivateKey]
"""Private keys by their ids: the present one, and while keys are being replaced the former one too."""


class CannotOpen(Exception):
    """An envelope does not open; the message says why and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a secret belongs: one field of one credential."""

    credential_id: str
    field: SecretField

    def bound(self, purpose: bytes) -> bytes:
        """What is authenticated with a secret of this place. Neither part can hold a NUL."""
        return b"\x00".join((b"corral vault", purpose, self.credential_id.encode(), self.field.encode()))


def key_ring(*keys: PrivateKey) -> KeyRing:
    """The keys by their ids."""
    return {key.public.id: key for key in keys}


def seal(secret: Secret, place: Place, key: PublicKey) -> bytes:
    """The envelope of a secret for this place; a different one each time."""
    data_key = AESGCM.generate_key(_KEY_BITS)
    nonce = secrets.token_bytes(_NONCE)
    text = AESGCM(data_key).encrypt(nonce, secret.reveal().encode(), place.bound(b"secret"))
    return _wrapped(data_key, place, key) + nonce + text


def key_id(envelope: bytes) -> str:
    """The id of the key that opens an envelope.

    Raises:
        CannotOpen: this is no envelope, or one of a newer version.
    """
    if not envelope:
        raise CannotOpen("the sealed secret is empty")
    if envelope[0] != VERSION:
        raise CannotOpen(f"the secret is sealed in form {envelope[0]}, which this version does not know")
    if len(envelope) < _SHORTEST:
        raise CannotOpen("the sealed secret is cut short")
    return envelope[1:_EPHEMERAL_AT].hex()


def open_sealed(envelope: bytes, place: Place, keys: KeyRing) -> Secret:
    """The secret in an envelope.

    Raises:
        CannotOpen: the key that it was sealed for is not at hand, it was sealed for another place, or it has
            been changed.
    """
    data_key = _unwrapped(envelope, place, keys)
    nonce, text = envelope[_NONCE_AT:_TEXT_AT], envelope[_TEXT_AT:]
    try:
        return Secret(AESGCM(data_key).decrypt(nonce, text, place.bound(b"secret")).decode())
    except InvalidTag:
        raise _tampered(place) from None


def rewrap(envelope: bytes, place: Place, keys: KeyRing, new: PublicKey) -> bytes:
    """The same secret for another key; the secret itself is not decrypted on the way.

    Raises:
        CannotOpen: as `open_sealed`, but for a change to the ciphertext, which only opening finds.
    """
    return _wrapped(_unwrapped(envelope, place, keys), place, new) + envelope[_NONCE_AT:]


def _wrapped(data_key: bytes, place: Place, key: PublicKey) -> bytes:
    ephemeral = X25519PrivateKey.generate()
    head = bytes((VERSION,)) + key.id_bytes + ephemeral.public_key().public_bytes_raw()
    wrapping = _wrapping_key(key.agree(ephemeral), head, key)
    return head + wrapping.encrypt(_WRAPPING_NONCE, data_key, head + place.bound(b"key"))


def _unwrapped(envelope: bytes, place: Place, keys: KeyRing) -> bytes:
    wanted = key_id(envelope)
    key = keys.get(wanted)
    if key is None:
        held = ", ".join(keys) or "none"
        raise CannotOpen(
            f"the secret is sealed for key {wanted}; at hand: {held}. Give the gateway that key "
            "(CORRAL_VAULT__KEY), or have the credential's secret entered again"
        )
    head = envelope[:_WRAPPED_AT]
    try:
        shared = key.agree(head[_EPHEMERAL_AT:])
        wrapping = _wrapping_key(shared, head, key.public)
        return wrapping.decrypt(_WRAPPING_NONCE, envelope[_WRAPPED_AT:_NONCE_AT], head + place.bound(b"key"))
    except (InvalidTag, ValueError):
        raise _tampered(place) from None


def _wrapping_key(shared: bytes, head: bytes, key: PublicKey) -> AESGCM:
    derived = HKDF(SHA256(), 32, salt=None, info=b"corral vault wrapping key\x00" + head + key.raw)
    return AESGCM(derived.derive(shared))


def _tampered(place: Place) -> CannotOpen:
    return CannotOpen(
        f"the {place.field} of {place.credential_id} does not open: it was changed in the database, or "
        "sealed for another row. Have it entered again, and find out who wrote to the database"
    )
