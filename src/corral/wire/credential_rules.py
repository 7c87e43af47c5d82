"""From what is sent to what is shown, and to the secrets that go into the vault (contract section 15.2).

Pure: the time comes in, secrets go out apart from the rest, and no message holds one.
"""

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType, structs

from corral.wire.credentials import (
    AnyHost,
    Auth,
    AuthParams,
    AuthUpdate,
    Bearer,
    BearerParams,
    BearerUpdate,
    ClientAuth,
    ClientSecretBasic,
    ClientSecretPost,
    InjectionLocation,
    InjectionParams,
    NamedHosts,
    NoClientAuth,
    OAuth,
    OAuthParams,
    OAuthUpdate,
    Refresh,
    RefreshParams,
    RefreshUpdate,
    SecretField,
    Variable,
    VariableParams,
    VariableUpdate,
)
from corral.wire.environments import check_hosts
from corral.wire.errors import InvalidRequest
from corral.wire.secret import Secret
from corral.wire.server_urls import check_url, normalised
from corral.wire.times import from_wire, to_wire

HOSTS: Final = 16
"""Most hosts that one secret may be limited to."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Resolved(NamedTuple):
    """What is kept in the open, and what is sealed."""

    auth: Auth
    secrets: dict[SecretField, Secret]


def created(params: AuthParams, now: datetime) -> Resolved:
    """A new credential.

    Raises:
        InvalidRequest: a URL, host, name or expiry is inadmissible, or nothing may be injected anywhere.
    """
    match params:
        case OAuthParams():
            check_url(params.mcp_server_url, "auth.mcp_server_url")
            secrets: dict[SecretField, Secret] = {"access_token": params.access_token}
            expires = None if params.expires_at is None else _expiry(params.expires_at, now)
            refresh = None if params.refresh is None else _refresh(params.refresh, secrets)
            return Resolved(
                OAuth(mcp_server_url=params.mcp_server_url, expires_at=expires, refresh=refresh), secrets
            )
        case BearerParams():
            check_url(params.mcp_server_url, "auth.mcp_server_url")
            return Resolved(Bearer(mcp_server_url=params.mcp_server_url), {"token": params.token})
        case VariableParams():
            if not _VARIABLE.fullmatch(params.secret_name):
                raise InvalidRequest(
                    "auth.secret_name: must be the name of an environment variable: ASCII letters, digits "
                    "and underscores, not beginning with a digit"
                )
            auth = Variable(
                secret_name=params.secret_name,
                networking=_networking(params.networking),
                injection_location=_new_location(params.injection_location),
            )
            return Resolved(auth, {"secret_value": params.secret_value})


def updated(stored: Auth, params: AuthUpdate, now: datetime) -> Resolved:
    """A stored credential with a change applied; the secrets are those that take the place of stored ones.

    Raises:
        InvalidRequest: the type is another one, a change is to something that the credential has not, or a
            rule of `created` does not hold.
    """
    match stored, params:
        case OAuth(), OAuthUpdate():
            return _updated_oauth(stored, params, now)
        case Bearer(), BearerUpdate():
            return Resolved(stored, {} if params.token is None else {"token": params.token})
        case Variable(), VariableUpdate():
            auth = structs.replace(
                stored,
                networking=(
                    stored.networking if params.networking is None else _networking(params.networking)
                ),
                injection_location=_changed_location(stored.injection_location, params.injection_location),
            )
            return Resolved(
                auth, {} if params.secret_value is None else {"secret_value": params.secret_value}
            )
        case _:
            raise InvalidRequest(
                f'auth.type: cannot change from "{_type(stored)}" to "{_type(params)}"; archive the '
                "credential and create another"
            )


def key_hash(auth: Auth) -> bytes:
    """SHA-256 of what a credential is found by: two active ones of a vault must not share it."""
    match auth:
        case OAuth() | Bearer():
            return server_hash(auth.mcp_server_url)
        case Variable():
            return _hash("secret_name", auth.secret_name)


def server_hash(url: str) -> bytes:
    """The `key_hash` of a credential for the MCP server at this URL."""
    return _hash("mcp_server_url", normalised(url))


def key_field(auth: Auth) -> str:
    """The path of the field that a credential is found by."""
    return "auth.secret_name" if isinstance(auth, Variable) else "auth.mcp_server_url"


def _hash(kind: str, text: str) -> bytes:
    # Hashed, since the index takes entries of up to 2,700 bytes and a URL may have four times as many.
    return sha256(f"{kind}\x00{text}".encode()).digest()


def _type(auth: Auth | AuthUpdate) -> str:
    return str(auth.__struct_config__.tag)


def _expiry(text: str, now: datetime) -> str:
    try:
        moment = from_wire(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest("auth.expires_at: Input should be a valid RFC 3339 date and time") from None
    if moment <= now:
        raise InvalidRequest("auth.expires_at must be in the future.")
    return to_wire(moment)


def _refresh(params: RefreshParams, secrets: dict[SecretField, Secret]) -> Refresh:
    check_url(params.token_endpoint, "auth.refresh.token_endpoint")
    secrets["refresh_token"] = params.refresh_token
    match params.token_endpoint_auth:
        case NoClientAuth():
            auth = ClientAuth(type="none")
        case ClientSecretBasic(client_secret=secret):
            auth = ClientAuth(type="client_secret_basic")
            secrets["client_secret"] = secret
        case ClientSecretPost(client_secret=secret):
            auth = ClientAuth(type="client_secret_post")
            secrets["client_secret"] = secret
    return Refresh(
        client_id=params.client_id,
        token_endpoint=params.token_endpoint,
        token_endpoint_auth=auth,
        resource=params.resource,
        scope=params.scope,
    )


def _updated_oauth(stored: OAuth, params: OAuthUpdate, now: datetime) -> Resolved:
    secrets: dict[SecretField, Secret] = {}
    if params.access_token is not None:
        secrets["access_token"] = params.access_token
    expires = stored.expires_at
    if params.expires_at is not UNSET:
        expires = None if params.expires_at is None else _expiry(params.expires_at, now)
    refresh = stored.refresh
    if params.refresh is not None:
        if refresh is None:
            raise InvalidRequest(
                "auth.refresh: the credential was created without one; archive it and create another"
            )
        refresh = _updated_refresh(refresh, params.refresh, secrets)
    return Resolved(structs.replace(stored, expires_at=expires, refresh=refresh), secrets)


def _updated_refresh(stored: Refresh, params: RefreshUpdate, secrets: dict[SecretField, Secret]) -> Refresh:
    if params.refresh_token is not None:
        secrets["refresh_token"] = params.refresh_token
    if params.token_endpoint_auth is not UNSET:
        if stored.token_endpoint_auth.type == "none":
            raise InvalidRequest(
                "auth.refresh.token_endpoint_auth: the credential uses no client secret, and this cannot "
                "change; archive it and create another"
            )
        if params.token_endpoint_auth.client_secret is not None:
            secrets["client_secret"] = params.token_endpoint_auth.client_secret
    if params.scope is None:
        return stored
    return structs.replace(stored, scope=params.scope or None)


def _networking(params: AnyHost | NamedHosts) -> AnyHost | NamedHosts:
    if isinstance(params, NamedHosts):
        check_hosts(params.allowed_hosts, "auth.networking.allowed_hosts", most=HOSTS)
    return params


def _new_location(params: InjectionParams | UnsetType) -> InjectionLocation:
    if params is UNSET:
        return InjectionLocation(header=True, body=True)
    return _changed_location(InjectionLocation(header=False, body=False), params)


def _changed_location(stored: InjectionLocation, params: InjectionParams | UnsetType) -> InjectionLocation:
    if params is UNSET:
        return stored
    location = InjectionLocation(
        header=stored.header if params.header is UNSET else params.header,
        body=stored.body if params.body is UNSET else params.body,
    )
    if not location.header and not location.body:
        raise InvalidRequest("auth.injection_location: header or body must be true")
    return location
