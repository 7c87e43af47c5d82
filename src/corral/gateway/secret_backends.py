"""The secret manager that the settings name. Its module is imported only then: each needs an extra."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from corral.settings import SecretManager
from corral.vault.backends.backend import SecretBackend


@asynccontextmanager
async def open_backend(settings: SecretManager) -> AsyncGenerator[SecretBackend | None]:
    """The manager, closed at the end; None if secrets stay in the database."""
    backend = _named(settings)
    try:
        yield backend
    finally:
        if backend is not None:
            await backend.close()


def _named(settings: SecretManager) -> SecretBackend | None:
    # What each needs is there: `SecretManager.conflicts` has seen to it.
    match settings.kind:
        case "none":
            return None
        case "hashicorp":
            from corral.vault.backends.hashicorp import HashicorpVault, token_from

            return HashicorpVault(
                settings.address or "",
                token_from(settings.token, settings.token_file),
                mount=settings.mount,
                prefix=settings.prefix,
                namespace=settings.namespace,
            )
        case "aws":
            from corral.vault.backends.aws import AwsSecretsManager

            return AwsSecretsManager(settings.region or "", prefix=settings.prefix, address=settings.address)
        case "google":
            from corral.vault.backends.google import GoogleSecretManager

            return GoogleSecretManager(
                settings.project or "", prefix=settings.prefix, address=settings.address
            )
        case "azure":
            from corral.vault.backends.azure import AzureKeyVault

            return AzureKeyVault(settings.address or "", prefix=settings.prefix)
