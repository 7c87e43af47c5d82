"""What a KMS is to the vault: a key that never leaves it, which encrypts the vault's private key."""

import binascii
from base64 import b64decode, b64encode
from typing import Any, Protocol

from corral.vault.backends.backend import BackendFailed
from corral.wire.secret import Secret


class KeyService(Protocol):
    """One key of a KMS. Every method raises `BackendFailed`."""

    async def encrypt(self, secret: Secret) -> str:
        """The secret's ciphertext, as text without a comma; only this key decrypts it."""
        ...

    async def decrypt(self, ciphertext: Secret) -> Secret:
        """What `encrypt` was given."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def as_base64(secret: Secret) -> str:
    """A secret in the form in which KMS take what they are to encrypt."""
    return b64encode(secret.reveal().encode()).decode()


def from_base64(text: str, manager: str) -> Secret:
    """The secret of a text that `as_base64` made.

    Raises:
        BackendFailed: it is none.
    """
    try:
        return Secret(b64decode(text, validate=True).decode())
    except (binascii.Error, ValueError):
        raise BackendFailed(f"{manager} decrypted it to something that is not text", lasting=True) from None


def field_of(answer: Any, manager: str, *path: str) -> str:
    """The text at this path of an answer.

    Raises:
        BackendFailed: there is none.
    """
    try:
        for name in path:
            answer = answer[name]
    except (KeyError, TypeError):
        answer = None
    if not isinstance(answer, str):
        raise BackendFailed(f"{manager} answered without {'.'.join(path)}", lasting=True)
    return answer
