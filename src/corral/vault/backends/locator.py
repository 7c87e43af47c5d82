"""What the database has of a secret that a manager keeps: the manager's name, and where it lies there.

As bytes it is a version that no envelope has, so that a row tells which of the two it holds:

    version 2 | manager, a NUL, the place at the manager
"""

import secrets
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from corral.vault.sealing import CannotOpen, Place

VERSION: Final = 2

BackendName: TypeAlias = Literal["hashicorp", "aws", "google", "azure"]
_NAMES: Final[tuple[BackendName, ...]] = ("hashicorp", "aws", "google", "azure")
_FRESH_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class Locator:
    """Where a secret lies."""

    manager: BackendName
    place: str

    def encoded(self) -> bytes:
        """The form that the database keeps."""
        return bytes((VERSION,)) + f"{self.manager}\x00{self.place}".encode()

    @classmethod
    def parse(cls, stored: bytes) -> Self:
        """The locator in a row.

        Raises:
            CannotOpen: it is none.
        """
        manager, separator, place = stored[1:].decode("utf-8", "replace").partition("\x00")
        if not is_locator(stored) or not separator or not place:
            raise CannotOpen("the row of the secret is damaged: it does not say where the secret lies")
        for name in _NAMES:
            if name == manager:
                return cls(name, place)
        raise CannotOpen(f"the secret lies in a manager that this version does not know: {manager!r}")


def is_locator(stored: bytes) -> bool:
    """Whether a row holds a locator, as opposed to an envelope."""
    return stored[:1] == bytes((VERSION,))


def fresh_name(prefix: str, place: Place, separator: str = "/") -> str:
    """A name for a new secret: never that of an earlier one, so that nothing that is in use is overwritten.

    It names the credential, which helps whoever looks at the manager; each writing of a secret has its own.
    """
    parts = (prefix.strip("/"), place.credential_id, place.field, secrets.token_hex(_FRESH_BYTES))
    return separator.join(part for part in parts if part)
