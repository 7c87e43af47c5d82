"""Signatures of webhook messages, by the Standard Webhooks scheme (contract section 23). Pure."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

from corral.wire.secret import Secret

_PREFIX: Final = "whsec_"
_BYTES: Final = 32
_FEWEST: Final = 24
_MOST: Final = 64
"""What the scheme allows a secret to have."""


def new_secret() -> Secret:
    """A fresh signing secret: ``whsec_`` and 32 random bytes in base64."""
    return Secret(_PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode())


def check_secret(secret: Secret) -> None:
    """Refuse what cannot be a signing secret.

    Raises:
        ValueError: it is none; the message does not hold it.
    """
    _key(secret)


def signed_headers(message_id: str, timestamp: int, body: bytes, signing: Iterable[Secret]) -> dict[str, str]:
    """The headers by which a receiver knows a message, signed with each of the secrets.

    `timestamp` is the time of the attempt in seconds since 1970.
    """
    text = f"{message_id}.{timestamp}.".encode() + body
    signatures = [
        "v1," + base64.b64encode(hmac.digest(_key(secret), text, hashlib.sha256)).decode()
        for secret in signing
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def _key(secret: Secret) -> bytes:
    text = secret.reveal()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _FEWEST <= len(key) <= _MOST:
        raise ValueError(f"a signing secret is {_PREFIX} and {_FEWEST} to {_MOST} bytes in base64")
    return key
