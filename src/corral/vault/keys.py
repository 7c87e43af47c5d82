"""The vault's keys: an X25519 pair. Servers have the public half and seal with it; the gateway has the other.

As text a key is a prefix that tells the halves apart, and the base64url form of its 32 bytes and of 4 more
that catch a slip: any 32 bytes are a valid key, so without them a mistyped one would seal secrets that nobody
can ever open.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Final, NoReturn, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from corral.wire.secret import MASK, Secret

PUBLIC_PREFIX: Final = "corral_vp_"
PRIVATE_PREFIX: Final = "corral_vk_"
ID_BYTES: Final = 8

_KEY_BYTES: Final = 32
_CHECK_BYTES: Final = 4
_HOW_TO_MAKE: Final = "`corral admin vault-key create` makes a pair"


class WrongKey(ValueError):
    """A text is not the key that is wanted; the message says what to do, and holds nothing of the text."""


class PublicKey:
    """The half that seals. It is no secret."""

    def __init__(self, key: X25519PublicKey) -> None:
        self._key = key
        self.raw: Final = key.public_bytes_raw()
        self.id_bytes: Final = sha256(b"corral vault key\x00" + self.raw).digest()[:ID_BYTES]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key of a text such as ``corral_vp_…``.

        Raises:
            WrongKey: it is none, or the private half, or one that cannot seal.
        """
        text = text.strip()
        if text.startswith(PRIVATE_PREFIX):
            raise WrongKey(
                "is the private half of the pair, which belongs to the gateway alone; give the public one, "
                f"which begins with {PUBLIC_PREFIX}. A server that had the private one should have a new pair"
            )
        key = X25519PublicKey.from_public_bytes(_raw(text, PUBLIC_PREFIX, "public"))
        try:
            # A few values are on no usable curve; it is better to know that now than at the first secret.
            X25519PrivateKey.generate().exchange(key)
        except ValueError:
            raise WrongKey(f"is not a usable key; {_HOW_TO_MAKE}") from None
        return cls(key)

    @property
    def id(self) -> str:
        """Tells keys apart: 16 hexadecimal digits."""
        return self.id_bytes.hex()

    @property
    def text(self) -> str:
        """The form that `parse` reads."""
        return PUBLIC_PREFIX + _encoded(self.raw)

    def agree(self, ephemeral: X25519PrivateKey) -> bytes:
        """What this key and an ephemeral one have in common."""
        return ephemeral.exchange(self._key)

    def __repr__(self) -> str:
        return f"PublicKey({self.id})"


class PrivateKey:
    """The half that opens. Like `Secret` it cannot be printed, pickled or encoded by accident."""

    __slots__ = ("__key", "public")

    def __init__(self, key: X25519PrivateKey) -> None:
        self.__key = key
        self.public: Final = PublicKey(key.public_key())

    @classmethod
    def generate(cls) -> Self:
        """A fresh key."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: Secret) -> Self:
        """The key of a text such as ``corral_vk_…``.

        Raises:
            WrongKey: it is none, or the public half.
        """
        revealed = text.reveal().strip()
        if revealed.startswith(PUBLIC_PREFIX):
            raise WrongKey(f"is the public half of the pair; give the one that begins with {PRIVATE_PREFIX}")
        return cls(X25519PrivateKey.from_private_bytes(_raw(revealed, PRIVATE_PREFIX, "private")))

    @property
    def text(self) -> Secret:
        """The form that `parse` reads."""
        return Secret(PRIVATE_PREFIX + _encoded(self.__key.private_bytes_raw()))

    def derive(self, purpose: bytes, length: int) -> bytes:
        """Secret bytes for another purpose; the same each time, and they tell nothing of the key."""
        derivation = HKDF(SHA256(), length, salt=None, info=b"corral vault key for\x00" + purpose)
        return derivation.derive(self.__key.private_bytes_raw())

    def agree(self, ephemeral: bytes) -> bytes:
        """What this key and an ephemeral public one have in common.

        Raises:
            ValueError: the ephemeral key is not one that an honest sealer makes.
        """
        return self.__key.exchange(X25519PublicKey.from_public_bytes(ephemeral))

    def __repr__(self) -> str:
        return f"PrivateKey({MASK}, {self.public.id})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a private key cannot be pickled")


def split_keys(text: Secret | None) -> list[Secret]:
    """Several keys that stand in one setting, separated by commas."""
    if text is None:
        return []
    return [Secret(part.strip()) for part in text.reveal().split(",") if part.strip()]


def _encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw + _check(raw)).decode()


def _raw(text: str, prefix: str, half: str) -> bytes:
    if not text.startswith(prefix):
        raise WrongKey(f"must be a {half} vault key, which begins with {prefix}; {_HOW_TO_MAKE}")
    try:
        decoded = urlsafe_b64decode(text.removeprefix(prefix).encode("ascii"))
    except (UnicodeEncodeError, binascii.Error):
        decoded = b""
    raw, check = decoded[:_KEY_BYTES], decoded[_KEY_BYTES:]
    if len(raw) != _KEY_BYTES or check != _check(raw):
        raise WrongKey(
            f"is damaged: it is not a whole {half} vault key. Copy it again from where it was made; "
            "a new one could not open what is sealed"
        )
    return raw


def _check(raw: bytes) -> bytes:
    return sha256(b"corral vault key check\x00" + raw).digest()[:_CHECK_BYTES]
