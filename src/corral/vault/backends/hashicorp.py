"""HashiCorp Vault, and OpenBao, which speaks the same: the engines key-value, version 2, and transit.

A server's token needs ``create`` and ``update`` on ``{mount}/data/{prefix}/*`` and ``delete`` on
``{mount}/metadata/{prefix}/*``; the gateway's needs ``read`` on ``{mount}/data/{prefix}/*`` (and the server's
rights, since it stores refreshed OAuth tokens). For a key of the transit engine the gateway's needs
``update`` on ``{mount}/decrypt/{key}``, and that of whoever makes the vault's keys on
``{mount}/encrypt/{key}``. The token is a setting, or in a file that an agent of Vault keeps fresh: it is read
anew for each request.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from corral.vault.backends import http
from corral.vault.backends.backend import BackendFailed
from corral.vault.backends.key_service import as_base64, field_of, from_base64
from corral.vault.backends.locator import BackendName, fresh_name
from corral.vault.sealing import Place
from corral.wire.secret import Secret

_VALUE: Final = "value"
_MANAGER: Final = "HashiCorp Vault"


class VaultEngine:
    """One engine of a Vault server, at its mount. Close it when it is no longer needed."""

    def __init__(
        self, address: str, token: Callable[[], Secret], *, mount: str, namespace: str | None
    ) -> None:
        self._base = f"{address.rstrip('/')}/v1/{quote(mount.strip('/'))}"
        self._token = token
        self._namespace = namespace
        self._http = http.client()

    async def ask(
        self, method: str, path: str, right: str, *, json: object = None, missing_is_fine: bool = False
    ) -> Any:
        """What the engine answers at this path; ``right`` is what a policy must allow there.

        Raises:
            BackendFailed: it refuses, or is out of reach.
        """
        token = await asyncio.to_thread(self._token)
        headers = {"x-vault-token": token.reveal(), "x-vault-request": "true"}
        if self._namespace:
            headers["x-vault-namespace"] = self._namespace
        return await http.asked(
            self._http,
            method,
            f"{self._base}/{quote(path)}",
            manager=_MANAGER,
            advice=f"see that the token is valid and that its policy allows {right} on this path",
            headers=headers,
            json=json,
            missing_is_fine=missing_is_fine,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class HashicorpVault:
    """Secrets in one mount of a Vault server; see the module. Close it when it is no longer needed."""

    name: ClassVar[BackendName] = "hashicorp"

    def __init__(
        self, address: str, token: Callable[[], Secret], *, mount: str, prefix: str, namespace: str | None
    ) -> None:
        self._engine = VaultEngine(address, token, mount=mount, namespace=namespace)
        self._prefix = prefix

    def fresh(self, place: Place) -> str:
        """See `SecretBackend.fresh`."""
        return fresh_name(self._prefix, place)

    async def write(self, lies: str, secret: Secret) -> None:
        """See `SecretBackend.write`."""
        body = {"options": {"cas": 0}, "data": {_VALUE: secret.reveal()}}
        await self._engine.ask("POST", f"data/{lies}", "create and update", json=body)

    async def read(self, lies: str) -> Secret:
        """See `SecretBackend.read`."""
        answer = await self._engine.ask("GET", f"data/{lies}", "read")
        try:
            return Secret(answer["data"]["data"][_VALUE])
        except (KeyError, TypeError):
            raise BackendFailed(f"{_MANAGER} has no secret at {lies}", lasting=True) from None

    async def remove(self, lies: str) -> None:
        """See `SecretBackend.remove`."""
        await self._engine.ask("DELETE", f"metadata/{lies}", "delete", missing_is_fine=True)

    async def close(self) -> None:
        """See `SecretBackend.close`."""
        await self._engine.close()


class TransitKey:
    """One key of the transit engine, which never leaves the Vault server: see `KeyService`."""

    def __init__(self, engine: VaultEngine, key: str) -> None:
        self._engine = engine
        self._key = key

    async def encrypt(self, secret: Secret) -> str:
        """See `KeyService.encrypt`: a text such as ``vault:v1:…``."""
        body = {"plaintext": as_base64(secret)}
        answer = await self._engine.ask("POST", f"encrypt/{self._key}", "update", json=body)
        return field_of(answer, _MANAGER, "data", "ciphertext")

    async def decrypt(self, ciphertext: Secret) -> Secret:
        """See `KeyService.decrypt`."""
        body = {"ciphertext": ciphertext.reveal()}
        answer = await self._engine.ask("POST", f"decrypt/{self._key}", "update", json=body)
        return from_base64(field_of(answer, _MANAGER, "data", "plaintext"), _MANAGER)

    async def close(self) -> None:
        """See `KeyService.close`."""
        await self._engine.close()


def token_from(given: Secret | None, file: str | None) -> Callable[[], Secret]:
    """Gives the token of the settings: the one given, or else what is in the file each time."""
    return token_in(Path(file or "")) if given is None else lambda: given


def token_in(file: Path) -> Callable[[], Secret]:
    """Reads the token from a file each time.

    The function that it returns raises `BackendFailed` if the file cannot be read.
    """

    def read() -> Secret:
        try:
            return Secret(file.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise BackendFailed(f"the token file {file} cannot be read: {error}", lasting=False) from None

    return read
