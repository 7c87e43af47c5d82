"""The KMS that the settings name. Its module is imported only then: one needs an extra."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from corral.settings import Vault
from corral.vault.backends.backend import BackendFailed
from corral.vault.backends.key_service import KeyService


@asynccontextmanager
async def open_key_service(vault: Vault) -> AsyncGenerator[KeyService]:
    """The key of ``vault.kms``, which is set; closed at the end.

    Raises:
        BackendFailed: there is no credential for it, or its package is not installed.
    """
    service = _named(vault)
    try:
        yield service
    finally:
        await service.close()


def _named(vault: Vault) -> KeyService:
    # The address, the region and the key are there: `Vault.conflicts` has seen to it.
    if vault.kms == "aws":
        try:
            from corral.vault.backends.aws import AwsKey
        except ModuleNotFoundError:
            raise BackendFailed(
                "vault.kms needs a package that is not installed: pip install 'corral[aws]'", lasting=True
            ) from None
        return AwsKey(vault.kms_region or "", key=vault.kms_key or "", address=vault.kms_address)

    from corral.vault.backends.hashicorp import TransitKey, VaultEngine, token_from

    if vault.kms_token is None and vault.kms_token_file is None:
        raise BackendFailed("neither CORRAL_VAULT__KMS_TOKEN nor vault.kms_token_file is set", lasting=True)
    token = token_from(vault.kms_token, vault.kms_token_file)
    engine = VaultEngine(vault.kms_address or "", token, mount=vault.kms_mount, namespace=vault.kms_namespace)
    return TransitKey(engine, vault.kms_key or "")
