"""AWS Secrets Manager and AWS KMS. Needs the extra ``corral[aws]``: botocore finds the credential and signs.

A server's role needs ``secretsmanager:CreateSecret`` and ``DeleteSecret`` on ``{prefix}/*``, the gateway's
``GetSecretValue`` besides. With a key of KMS the gateway's needs ``kms:Decrypt``, and that of whoever makes
keys ``kms:Encrypt``. The credential is found as in every AWS program: the environment, a profile, the
role of a pod or machine.
"""

import asyncio
import uuid
from typing import Any, ClassVar, Final

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from corral.vault.backends import http
from corral.vault.backends.backend import BackendFailed
from corral.vault.backends.key_service import as_base64, field_of, from_base64
from corral.vault.backends.locator import BackendName, fresh_name
from corral.vault.sealing import Place
from corral.wire.secret import Secret

_MANAGER: Final = "AWS Secrets Manager"
_KMS: Final = "AWS KMS"


class AwsService:
    """One service of AWS in one region. Close it when it is no longer needed.

    ``service`` is its name in addresses, signatures and rights, ``target`` its name in a request's header.
    """

    def __init__(self, manager: str, service: str, target: str, region: str, address: str | None) -> None:
        self._manager = manager
        self._service = service
        self._target = target
        self._region = region
        self._url = address or f"https://{service}.{region}.amazonaws.com"
        self._session = Session()
        self._http = http.client()

    async def ask(self, action: str, body: dict[str, Any], thing: str) -> Any:
        """What the service answers; ``thing`` is what the credential needs a right to.

        Raises:
            BackendFailed: it refuses or is out of reach, or there is no credential.
        """
        content = msgspec.json.encode(body)
        headers = await asyncio.to_thread(self._signed, action, content)
        return await http.asked(
            self._http,
            "POST",
            self._url,
            manager=self._manager,
            advice=f"see that the credential is valid and may do {self._service}:{action} on {thing}",
            headers=headers,
            content=content,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _signed(self, action: str, content: bytes) -> dict[str, str]:
        request = AWSRequest(
            "POST",
            self._url,
            headers={
                "content-type": "application/x-amz-json-1.1",
                "x-amz-target": f"{self._target}.{action}",
            },
            data=content,
        )
        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise BackendFailed(
                    "no AWS credential is found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, "
                    "or give the pod or machine a role",
                    lasting=True,
                )
            SigV4Auth(credentials.get_frozen_credentials(), self._service, self._region).add_auth(request)
        except BotoCoreError as error:
            raise BackendFailed(f"the AWS credential cannot be had: {error}", lasting=False) from None
        return dict(request.headers.items())


class AwsSecretsManager:
    """Secrets in one region; see the module. Close it when it is no longer needed."""

    name: ClassVar[BackendName] = "aws"

    def __init__(self, region: str, *, prefix: str, address: str | None) -> None:
        self._prefix = prefix
        self._service = AwsService(_MANAGER, "secretsmanager", "secretsmanager", region, address)

    def fresh(self, place: Place) -> str:
        """See `SecretBackend.fresh`."""
        return fresh_name(self._prefix, place)

    async def write(self, lies: str, secret: Secret) -> None:
        """See `SecretBackend.write`."""
        body = {"Name": lies, "SecretString": secret.reveal(), "ClientRequestToken": str(uuid.uuid4())}
        await self._ask("CreateSecret", body)

    async def read(self, lies: str) -> Secret:
        """See `SecretBackend.read`."""
        answer = await self._ask("GetSecretValue", {"SecretId": lies})
        try:
            return Secret(answer["SecretString"])
        except (KeyError, TypeError):
            raise BackendFailed(f"{_MANAGER} has no secret named {lies}", lasting=True) from None

    async def remove(self, lies: str) -> None:
        """See `SecretBackend.remove`. What is not there is removed without an error by AWS itself."""
        await self._ask("DeleteSecret", {"SecretId": lies, "ForceDeleteWithoutRecovery": True})

    async def close(self) -> None:
        """See `SecretBackend.close`."""
        await self._service.close()

    async def _ask(self, action: str, body: dict[str, Any]) -> Any:
        return await self._service.ask(action, body, f"{self._prefix}/*")


class AwsKey:
    """One key of AWS KMS, which never leaves it: see `KeyService`."""

    def __init__(self, region: str, *, key: str, address: str | None) -> None:
        self._key = key
        self._service = AwsService(_KMS, "kms", "TrentService", region, address)

    async def encrypt(self, secret: Secret) -> str:
        """See `KeyService.encrypt`: the ciphertext blob in base64."""
        body = {"KeyId": self._key, "Plaintext": as_base64(secret)}
        return field_of(await self._service.ask("Encrypt", body, self._key), _KMS, "CiphertextBlob")

    async def decrypt(self, ciphertext: Secret) -> Secret:
        """See `KeyService.decrypt`. The key is named, so that no other key's ciphertext is taken."""
        body = {"KeyId": self._key, "CiphertextBlob": ciphertext.reveal()}
        answer = await self._service.ask("Decrypt", body, self._key)
        return from_base64(field_of(answer, _KMS, "Plaintext"), _KMS)

    async def close(self) -> None:
        """See `KeyService.close`."""
        await self._service.close()
