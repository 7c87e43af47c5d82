"""What a secret manager is to the vault."""

from typing import ClassVar, Protocol

from corral.vault.backends.locator import BackendName
from corral.vault.sealing import Place
from corral.wire.secret import Secret


class BackendFailed(Exception):
    """A manager did not do what it was asked; the message says what to do and holds nothing of a secret.

    ``lasting`` tells that trying again cannot help: the manager refuses, as opposed to being out of reach.
    """

    def __init__(self, message: str, *, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


class SecretBackend(Protocol):
    """A place outside of the database that keeps secrets. Every method raises `BackendFailed`."""

    name: ClassVar[BackendName]
    """By which rows name it."""

    def fresh(self, place: Place) -> str:
        """Where a new secret of this place is to lie: nothing ever lay there."""
        ...

    async def write(self, lies: str, secret: Secret) -> None:
        """Keep a secret there, which must be fresh."""
        ...

    async def read(self, lies: str) -> Secret:
        """The secret that lies there."""
        ...

    async def remove(self, lies: str) -> None:
        """Remove it, with all its versions; what is gone already is no error."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
