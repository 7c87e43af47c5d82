"""Azure Key Vault. Needs the extra ``corral[azure]``: azure-identity finds the credential.

A server's identity needs ``set``, ``delete`` and ``purge`` on secrets, the gateway's ``get`` besides. A vault
whose purge protection is on keeps removed secrets until their retention ends; they are out of use all
the same.
"""

import asyncio
from typing import Any, ClassVar, Final
from urllib.parse import quote

from azure.core.exceptions import ClientAuthenticationError
from azure.identity import CredentialUnavailableError, DefaultAzureCredential

from corral.vault.backends import http
from corral.vault.backends.backend import BackendFailed
from corral.vault.backends.locator import BackendName, fresh_name
from corral.vault.sealing import Place
from corral.wire.secret import Secret

_MANAGER: Final = "Azure Key Vault"
_SCOPE: Final = "https://vault.azure.net/.default"
_VERSION: Final = "api-version=7.4"


class AzureKeyVault:
    """Secrets in one key vault; see the module. Close it when it is no longer needed."""

    name: ClassVar[BackendName] = "azure"

    def __init__(self, address: str, *, prefix: str) -> None:
        self._base = address.rstrip("/")
        self._prefix = prefix
        self._credential = DefaultAzureCredential()
        self._http = http.client()

    def fresh(self, place: Place) -> str:
        """See `SecretBackend.fresh`. Names are letters, digits and hyphens here."""
        return fresh_name(self._prefix, place, separator="-").replace("_", "-").replace("/", "-")

    async def write(self, lies: str, secret: Secret) -> None:
        """See `SecretBackend.write`."""
        body = {"value": secret.reveal(), "tags": {"made-by": "corral"}}
        await self._ask("PUT", f"secrets/{lies}", "set", json=body)

    async def read(self, lies: str) -> Secret:
        """See `SecretBackend.read`."""
        answer = await self._ask("GET", f"secrets/{lies}", "get")
        try:
            return Secret(answer["value"])
        except (KeyError, TypeError):
            raise BackendFailed(f"{_MANAGER} has no secret named {lies}", lasting=True) from None

    async def remove(self, lies: str) -> None:
        """See `SecretBackend.remove`. What may not be purged stays in the vault's bin for its retention."""
        await self._ask("DELETE", f"secrets/{lies}", "delete", missing_is_fine=True)
        try:
            await self._ask("DELETE", f"deletedsecrets/{lies}", "purge", missing_is_fine=True)
        except BackendFailed as error:
            if not error.lasting:
                raise

    async def close(self) -> None:
        """See `SecretBackend.close`."""
        await self._http.aclose()
        await asyncio.to_thread(self._credential.close)

    async def _ask(
        self, method: str, path: str, right: str, *, json: object = None, missing_is_fine: bool = False
    ) -> Any:
        token = await asyncio.to_thread(self._token)
        return await http.asked(
            self._http,
            method,
            f"{self._base}/{quote(path)}?{_VERSION}",
            manager=_MANAGER,
            advice=f"see that the identity has the permission {right} on secrets of this vault",
            headers={"authorization": f"Bearer {token}"},
            json=json,
            missing_is_fine=missing_is_fine,
        )

    def _token(self) -> str:
        try:
            return self._credential.get_token(_SCOPE).token
        except (CredentialUnavailableError, ClientAuthenticationError) as error:
            raise BackendFailed(
                f"no Azure credential can be had ({type(error).__name__}); set AZURE_TENANT_ID, "
                "AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or give the pod or machine an identity",
                lasting=False,
            ) from None
