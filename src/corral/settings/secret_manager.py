"""Settings of a secret manager that new secrets of credentials go to."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, Final, Literal

from msgspec import Meta

from corral.settings.section import Section
from corral.wire.secret import Secret

_EXTRAS: Final = {"aws": "botocore", "azure": "azure.identity", "google": "google.auth"}


class SecretManager(Section, frozen=True, kw_only=True):
    """Where new secrets of credentials are kept: sealed in the database, or with a secret manager of yours.

    Servers and gateways need the same settings here, but each a credential of its own: servers write and
    remove, the gateway reads too (docs/secret-managers.md).
    """

    kind: Annotated[
        Literal["none", "hashicorp", "aws", "google", "azure"],
        Meta(
            description="`hashicorp` is HashiCorp Vault or OpenBao (KV version 2). Secrets that are there "
            "already stay where they are."
        ),
    ] = "none"
    address: Annotated[
        str | None,
        Meta(description="The server of `hashicorp`, the key vault of `azure`; elsewhere another endpoint."),
    ] = None
    prefix: Annotated[
        str, Meta(min_length=1, max_length=64, description="What the names of Corral's secrets begin with.")
    ] = "corral"
    mount: Annotated[str, Meta(description="Where the KV engine of `hashicorp` is.")] = "secret"
    namespace: Annotated[str | None, Meta(description="The namespace of `hashicorp`, if any.")] = None
    token: Annotated[
        Secret | None,
        Meta(
            description="The token for `hashicorp`, unless token_file is set.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    token_file: Annotated[
        str | None,
        Meta(description="A file with that token, which is read anew for each request."),
    ] = None
    region: Annotated[str | None, Meta(description="The region of `aws`.")] = None
    project: Annotated[str | None, Meta(description="The project of `google`.")] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What the manager that is named needs and has not."""
        match self.kind:
            case "hashicorp":
                if self.address is None:
                    yield "address", "is needed for hashicorp, such as https://vault.corp.example:8200"
                if self.token is None and self.token_file is None:
                    yield "token", "is needed for hashicorp; or set token_file"
            case "azure" if self.address is None:
                yield "address", "is needed for azure, such as https://my-vault.vault.azure.net"
            case "aws" if self.region is None:
                yield "region", "is needed for aws"
            case "google" if self.project is None:
                yield "project", "is needed for google"
            case _:
                pass
        if (module := _EXTRAS.get(self.kind)) is not None and not _is_there(module):
            yield "kind", f"needs a package that is not installed: pip install 'corral[{self.kind}]'"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is missing, or it is barred
        return False
