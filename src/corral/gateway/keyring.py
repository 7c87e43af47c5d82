"""The private keys of the gateway: where they come from, whether they are the right ones, and their change.

They come from the environment (as they are, or encrypted by a KMS that is asked once), or from the folder of
a `corral up`; there they may be replaced while the gateway runs, so a secret whose key is unknown makes it
look again.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from corral.gateway.key_services import open_key_service
from corral.settings import Vault
from corral.store.database import Database
from corral.vault import rows as secret_rows
from corral.vault.backends.backend import BackendFailed
from corral.vault.backends.key_service import KeyService
from corral.vault.keys import PRIVATE_PREFIX, PrivateKey, PublicKey, WrongKey, split_keys
from corral.vault.sealing import CannotOpen, KeyRing, key_ring
from corral.wire.secret import Secret

PRIVATE: Final = "private.key"
FORMER: Final = "former.key"
"""In a folder of keys: those that came before, one a line, while they are being replaced."""

_KMS_ADVICE: Final = (
    "see that the KMS runs, that vault.kms_key names the key that encrypted it, that the gateway's "
    "credential may decrypt with that key, and that the ciphertext is whole. `corral admin vault-key create "
    "--kms` makes another pair, but that could not open what is sealed."
)

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class KeyTrouble(Exception):
    """The gateway cannot start with these keys; the message says what is wrong, `advice` what to do."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice: Final = advice


class Keys:
    """The keys at hand. `present` is what new secrets are sealed for."""

    def __init__(self, load: Callable[[], list[PrivateKey]]) -> None:
        """Raises `KeyTrouble` if there are none, or one is damaged."""
        self._load = load
        self._keys = load()
        self.ring: KeyRing = key_ring(*self._keys)

    @classmethod
    async def of_settings(cls, vault: Vault) -> "Keys":
        """Those of ``vault.key`` and ``vault.former_keys``, which a KMS decrypts if ``vault.kms`` names one.

        Raises:
            KeyTrouble: there are none, or the KMS does not give them.
        """
        keys = await _from_settings(vault)
        return cls(lambda: keys)

    @classmethod
    def in_folder(cls, folder: Path) -> "Keys":
        """Those that `corral up` keeps in its data folder."""
        return cls(lambda: _from_folder(folder))

    @property
    def present(self) -> PrivateKey:
        """The key of new secrets."""
        return self._keys[0]

    async def opening(self, step: Callable[[KeyRing], Awaitable[T]]) -> T:
        """What `step` gives; where it meets a secret of an unknown key, once more with the keys read anew.

        Raises:
            CannotOpen: no key opens it.
        """
        try:
            return await step(self.ring)
        except CannotOpen:
            self._keys = self._load()
            self.ring = key_ring(*self._keys)
            return await step(self.ring)

    async def check(self, database: Database) -> None:
        """Compare the keys with what is sealed.

        Raises:
            KeyTrouble: secrets are sealed for a key that is not at hand.
        """
        sealed = await secret_rows.key_ids(database)
        missing = {found: count for found, count in sealed.items() if found not in self.ring}
        if missing:
            named = ", ".join(f"{count} for key {found}" for found, count in missing.items())
            raise KeyTrouble(
                f"The vault holds secrets that the gateway's keys do not open: {named}; at hand: "
                f"{', '.join(self.ring)}.",
                "set CORRAL_VAULT__KEY to the key whose public half the servers seal with, and keys that "
                "came before it as CORRAL_VAULT__FORMER_KEYS. If a key is lost, `corral admin vault-key "
                "forget ID` removes what it sealed, and those credentials have to be entered again.",
            )
        _log.info("keys at hand", keys=list(self.ring), secrets=sum(sealed.values()))


async def _from_settings(vault: Vault) -> list[PrivateKey]:
    if vault.key is None:
        raise KeyTrouble(
            "The gateway has no key: CORRAL_VAULT__KEY is not set.",
            "set it to the private half of the pair whose public half the servers have as "
            "CORRAL_VAULT__PUBLIC_KEY; `corral admin vault-key create` makes a pair.",
        )
    former = split_keys(vault.former_keys)
    if vault.kms == "none":
        return [PrivateKey.parse(key) for key in (vault.key, *former)]
    try:
        async with open_key_service(vault) as service:
            present = await _decrypted(service, vault.key, "CORRAL_VAULT__KEY")
            keys = [present]
            for key in former:
                keys.append(await _former(service, key))
    except BackendFailed as error:
        raise KeyTrouble(f"The KMS of the vault's key cannot be used: {error}.", _KMS_ADVICE) from None
    if vault.public_key is not None and PublicKey.parse(vault.public_key).id != present.public.id:
        raise KeyTrouble(
            f"CORRAL_VAULT__KEY decrypts to key {present.public.id}, which is not the other half of "
            "vault.public_key.",
            "set the two that were made together.",
        )
    return keys


async def _former(service: KeyService, key: Secret) -> PrivateKey:
    """A former key; one from before there was a KMS is as it was, so that a KMS can be begun with."""
    name = "one of CORRAL_VAULT__FORMER_KEYS"
    if not key.reveal().startswith(PRIVATE_PREFIX):
        return await _decrypted(service, key, name)
    try:
        return PrivateKey.parse(key)
    except WrongKey as error:
        raise KeyTrouble(f"{name} {error}.", "put it back from a copy.") from None


async def _decrypted(service: KeyService, ciphertext: Secret, name: str) -> PrivateKey:
    try:
        text = await service.decrypt(Secret(ciphertext.reveal().strip()))
    except BackendFailed as error:
        raise KeyTrouble(f"The KMS does not decrypt {name}: {error}.", _KMS_ADVICE) from None
    try:
        return PrivateKey.parse(text)
    except WrongKey as error:
        raise KeyTrouble(f"What the KMS decrypts {name} to {error}.", _KMS_ADVICE) from None


def _from_folder(folder: Path) -> list[PrivateKey]:
    former = folder / FORMER
    try:
        texts = [(folder / PRIVATE).read_text("utf-8").strip()]
        if former.exists():
            texts += former.read_text("utf-8").split()
        return [PrivateKey.parse(Secret(text)) for text in texts]
    except OSError as error:
        raise KeyTrouble(
            f"The gateway's key {error.filename} cannot be read: {error.strerror}.",
            "put it back from a copy, and see that it belongs to the user that the gateway runs as.",
        ) from None
    except (WrongKey, UnicodeDecodeError) as error:
        raise KeyTrouble(f"A key in {folder}: it {error}.", "put it back from a copy.") from None
