"""Credentials of vaults on the wire: as they are sent, and as they are shown (contract section 15.2).

What is sent may hold secrets, as `SecretText`; what is shown has no field for one. The rules that lead from
the one to the other: `corral.wire.credential_rules`.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.fields import Metadata, MetadataPatch, Request
from corral.wire.secret import SecretText

Url = Annotated[str, Meta(min_length=1, max_length=2047)]
Scope = Annotated[str, Meta(min_length=1, max_length=8192)]
ClientAuthType: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post"]
SecretField: TypeAlias = Literal["access_token", "refresh_token", "client_secret", "token", "secret_value"]
"""What of a credential is sealed."""


class Token(SecretText):
    """An access, refresh or bearer token."""

    __slots__ = ()
    longest = 8192


class ClientSecret(SecretText):
    """An OAuth client's secret."""

    __slots__ = ()
    longest = 512


class SecretValue(SecretText):
    """What stands in for a placeholder."""

    __slots__ = ()
    longest = 4096


class NoClientAuth(Request, tag="none"):
    """The token endpoint asks for no authentication of the client."""


class ClientSecretBasic(Request, tag="client_secret_basic"):
    """The client's secret goes to the token endpoint by HTTP Basic."""

    client_secret: ClientSecret


class ClientSecretPost(Request, tag="client_secret_post"):
    """The client's secret goes to the token endpoint in the body."""

    client_secret: ClientSecret


class RefreshParams(Request):
    """How to get a new access token."""

    client_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    refresh_token: Token
    token_endpoint: Url
    token_endpoint_auth: NoClientAuth | ClientSecretBasic | ClientSecretPost
    resource: Url | None = None
    scope: Scope | None = None


class OAuthParams(Request, tag="mcp_oauth"):
    """An OAuth token for an MCP server."""

    access_token: Token
    mcp_server_url: Url
    expires_at: str | None = None
    refresh: RefreshParams | None = None


class BearerParams(Request, tag="static_bearer"):
    """A token for an MCP server that does not change by itself."""

    token: Token
    mcp_server_url: Url


class AnyHost(Request, tag="unrestricted"):
    """The secret goes to any host that the environment lets a sandbox reach."""


class NamedHosts(Request, tag="limited"):
    """The secret goes to these hosts alone."""

    allowed_hosts: list[str]


class InjectionParams(Request):
    """Where in a request the secret may stand. Null is refused, unlike absence."""

    header: bool | UnsetType = UNSET
    body: bool | UnsetType = UNSET


class VariableParams(Request, tag="environment_variable"):
    """A secret that a sandbox knows by a placeholder in an environment variable."""

    secret_name: Annotated[str, Meta(min_length=1, max_length=255)]
    secret_value: SecretValue
    networking: AnyHost | NamedHosts
    injection_location: InjectionParams | UnsetType = UNSET


class BasicUpdate(Request, tag="client_secret_basic"):
    """A new client's secret. The stored way of sending it stays, whichever of the two is named."""

    client_secret: ClientSecret | None = None


class PostUpdate(Request, tag="client_secret_post"):
    """A new client's secret. The stored way of sending it stays, whichever of the two is named."""

    client_secret: ClientSecret | None = None


class RefreshUpdate(Request):
    """What may change of a refresh; an empty scope clears it."""

    refresh_token: Token | None = None
    scope: Annotated[str, Meta(max_length=8192)] | None = None
    token_endpoint_auth: BasicUpdate | PostUpdate | UnsetType = UNSET


class OAuthUpdate(Request, tag="mcp_oauth"):
    """What may change of an OAuth token; a null expiry is an unknown one."""

    access_token: Token | None = None
    expires_at: str | UnsetType | None = UNSET
    refresh: RefreshUpdate | None = None


class BearerUpdate(Request, tag="static_bearer"):
    """What may change of a fixed token."""

    token: Token | None = None


class VariableUpdate(Request, tag="environment_variable"):
    """What may change of a variable: networking as a whole, the injection location field by field."""

    secret_value: SecretValue | None = None
    networking: AnyHost | NamedHosts | None = None
    injection_location: InjectionParams | UnsetType = UNSET


AuthParams: TypeAlias = OAuthParams | BearerParams | VariableParams
AuthUpdate: TypeAlias = OAuthUpdate | BearerUpdate | VariableUpdate


class CreateCredential(Request):
    """The body of ``POST /v1/vaults/{id}/credentials``."""

    auth: AuthParams
    display_name: Annotated[str, Meta(max_length=255)] | None = None
    metadata: Metadata | None = None


class UpdateCredential(Request):
    """The body of ``POST /v1/vaults/{id}/credentials/{id}``: an absent field stays."""

    auth: AuthUpdate | UnsetType = UNSET
    display_name: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType | None = UNSET
    metadata: MetadataPatch | None = None


class ClientAuth(msgspec.Struct, kw_only=True):
    """How the client shows itself to the token endpoint."""

    type: ClientAuthType


class Refresh(msgspec.Struct, kw_only=True):
    """How a new access token is got, without what is secret of it."""

    client_id: str
    token_endpoint: str
    token_endpoint_auth: ClientAuth
    resource: str | None
    scope: str | None


class OAuth(msgspec.Struct, tag="mcp_oauth", kw_only=True):
    """An OAuth token for an MCP server, as it is shown."""

    mcp_server_url: str
    expires_at: str | None
    refresh: Refresh | None


class Bearer(msgspec.Struct, tag="static_bearer", kw_only=True):
    """A fixed token for an MCP server, as it is shown."""

    mcp_server_url: str


class InjectionLocation(msgspec.Struct, kw_only=True):
    """Where in a request the secret may stand; one of the two at least."""

    header: bool
    body: bool


class Variable(msgspec.Struct, tag="environment_variable", kw_only=True):
    """A secret behind an environment variable, as it is shown."""

    secret_name: str
    networking: AnyHost | NamedHosts
    injection_location: InjectionLocation


Auth: TypeAlias = OAuth | Bearer | Variable


class Credential(msgspec.Struct, tag="vault_credential", kw_only=True):
    """The credential as the API shows it."""

    id: str
    vault_id: str
    display_name: str | None
    auth: Auth
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None
