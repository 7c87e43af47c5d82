"""Google Secret Manager. Needs the extra ``corral[google]``: google-auth finds the credential.

A server's account needs ``secretmanager.secrets.create``, ``versions.add`` and ``secrets.delete``, the
gateway's ``versions.access`` besides (the roles ``secretVersionAdder`` and ``secretAccessor``).
"""

import asyncio
from base64 import b64decode, b64encode
from typing import Any, ClassVar, Final, Protocol, cast
from urllib.parse import quote

import google.auth as google_auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request

from corral.vault.backends import http
from corral.vault.backends.backend import BackendFailed
from corral.vault.backends.locator import BackendName, fresh_name
from corral.vault.sealing import Place
from corral.wire.secret import Secret

_MANAGER: Final = "Google Secret Manager"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_ADDRESS: Final = "https://secretmanager.googleapis.com"


class _Credentials(Protocol):
    """What is used of google-auth's credentials, which are not typed throughout."""

    valid: bool
    token: str

    def refresh(self, request: Request) -> None: ...


class GoogleSecretManager:
    """Secrets in one project; see the module. Close it when it is no longer needed."""

    name: ClassVar[BackendName] = "google"

    def __init__(self, project: str, *, prefix: str, address: str | None) -> None:
        self._secrets = f"{address or _ADDRESS}/v1/projects/{quote(project)}/secrets"
        self._prefix = prefix
        self._credentials: _Credentials | None = None
        self._finding = asyncio.Lock()
        self._http = http.client()

    def fresh(self, place: Place) -> str:
        """See `SecretBackend.fresh`. Names are letters, digits, hyphens and underscores here."""
        return fresh_name(self._prefix.replace("/", "-"), place, separator="-")

    async def write(self, lies: str, secret: Secret) -> None:
        """See `SecretBackend.write`. A secret and its first version are two requests."""
        created: dict[str, Any] = {"replication": {"automatic": {}}, "labels": {"made-by": "corral"}}
        await self._ask("POST", f"{self._secrets}?secretId={quote(lies)}", "secrets.create", created)
        data = {"payload": {"data": b64encode(secret.reveal().encode()).decode()}}
        try:
            await self._ask("POST", f"{self._secrets}/{quote(lies)}:addVersion", "versions.add", data)
        except BackendFailed:
            await self.remove(lies)
            raise

    async def read(self, lies: str) -> Secret:
        """See `SecretBackend.read`."""
        url = f"{self._secrets}/{quote(lies)}/versions/latest:access"
        answer = await self._ask("GET", url, "versions.access")
        try:
            return Secret(b64decode(answer["payload"]["data"], validate=True).decode())
        except (KeyError, TypeError, ValueError):
            raise BackendFailed(f"{_MANAGER} has no secret named {lies}", lasting=True) from None

    async def remove(self, lies: str) -> None:
        """See `SecretBackend.remove`."""
        await self._ask("DELETE", f"{self._secrets}/{quote(lies)}", "secrets.delete", missing_is_fine=True)

    async def close(self) -> None:
        """See `SecretBackend.close`."""
        await self._http.aclose()

    async def _ask(
        self, method: str, url: str, right: str, json: object = None, *, missing_is_fine: bool = False
    ) -> Any:
        async with self._finding:
            token = await asyncio.to_thread(self._token)
        return await http.asked(
            self._http,
            method,
            url,
            manager=_MANAGER,
            advice=f"see that the account may do secretmanager.{right} in this project",
            headers={"authorization": f"Bearer {token}"},
            json=json,
            missing_is_fine=missing_is_fine,
        )

    def _token(self) -> str:
        try:
            credentials = self._credentials or _found()
            if not credentials.valid:
                credentials.refresh(Request())
        except GoogleAuthError as error:
            raise BackendFailed(
                f"no Google credential can be had ({type(error).__name__}); set "
                "GOOGLE_APPLICATION_CREDENTIALS, or give the pod or machine a service account",
                lasting=isinstance(error, DefaultCredentialsError),
            ) from None
        self._credentials = credentials
        return credentials.token


def _found() -> _Credentials:
    return cast(Any, google_auth).default(scopes=[_SCOPE])[0]
