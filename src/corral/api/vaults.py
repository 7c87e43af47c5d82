"""Routes of vaults and their credentials (contract section 15). For applications: no worker sees a vault."""

from typing import Any, Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import ARCHIVED, PAGED, Deleted, PageOf
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.resources import credentials, vaults
from corral.wire.credentials import CreateCredential, Credential, UpdateCredential
from corral.wire.errors import Conflict, InvalidRequest
from corral.wire.vaults import CreateVault, UpdateVault, Vault

_VAULT: Final = "/v1/vaults/{vault_id}"
_CREDENTIALS: Final = _VAULT + "/credentials"
_CREDENTIAL: Final = _CREDENTIALS + "/{credential_id}"


async def create(call: Call) -> ASGIApp:
    """``POST /v1/vaults``."""
    return answer(await call.services.vaults.create(await call.decode(CreateVault)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/vaults/{vault_id}``."""
    return answer(await call.services.vaults.retrieve(call.params["vault_id"]))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/vaults/{vault_id}``."""
    params = await call.decode(UpdateVault)
    return answer(await call.services.vaults.update(call.params["vault_id"], params))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/vaults/{vault_id}/archive``."""
    return answer(await call.services.vaults.archive(call.params["vault_id"]))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/vaults/{vault_id}``."""
    vault_id = call.params["vault_id"]
    await call.services.vaults.delete(vault_id)
    return answer({"id": vault_id, "type": "vault_deleted"})


async def list_vaults(call: Call) -> ASGIApp:
    """``GET /v1/vaults``."""
    page = call.page(vaults.LIST, (int, str))
    archived = call.query.boolean("include_archived")
    return answer(await call.services.vaults.list(page, include_archived=archived))


async def create_credential(call: Call) -> ASGIApp:
    """``POST /v1/vaults/{vault_id}/credentials``."""
    params = await call.decode(CreateCredential)
    return answer(await call.services.vaults.credentials.create(call.params["vault_id"], params))


async def retrieve_credential(call: Call) -> ASGIApp:
    """``GET /v1/vaults/{vault_id}/credentials/{credential_id}``."""
    return answer(await call.services.vaults.credentials.retrieve(*_named(call)))


async def update_credential(call: Call) -> ASGIApp:
    """``POST /v1/vaults/{vault_id}/credentials/{credential_id}``."""
    params = await call.decode(UpdateCredential)
    return answer(await call.services.vaults.credentials.update(*_named(call), params))


async def archive_credential(call: Call) -> ASGIApp:
    """``POST /v1/vaults/{vault_id}/credentials/{credential_id}/archive``."""
    return answer(await call.services.vaults.credentials.archive(*_named(call)))


async def delete_credential(call: Call) -> ASGIApp:
    """``DELETE /v1/vaults/{vault_id}/credentials/{credential_id}``."""
    vault_id, credential_id = _named(call)
    await call.services.vaults.credentials.delete(vault_id, credential_id)
    return answer({"id": credential_id, "type": "vault_credential_deleted"})


async def list_credentials(call: Call) -> ASGIApp:
    """``GET /v1/vaults/{vault_id}/credentials``."""
    vault_id = call.params["vault_id"]
    page = call.page(credentials.LIST, (int, str), scope=vault_id)
    archived = call.query.boolean("include_archived")
    return answer(await call.services.vaults.credentials.list(vault_id, page, include_archived=archived))


async def validate_credential(call: Call) -> ASGIApp:
    """``POST /v1/vaults/{vault_id}/credentials/{credential_id}/mcp_oauth_validate``: needs a gateway."""
    credential = await call.services.vaults.credentials.for_validation(*_named(call))
    if call.services.gateway is None:
        raise InvalidRequest(
            "Validating a credential takes its secret, which only a gateway can open; this server has none. "
            "Its operator runs `corral gateway` and sets gateway.url.",
            error_code="gateway_required",
        )
    return answer(await call.services.gateway.validate(credential.id))


def _named(call: Call) -> tuple[str, str]:
    return call.params["vault_id"], call.params["credential_id"]


ROUTES = (
    Route("POST", "/v1/vaults", APPLICATION, create, "Make a vault", takes=CreateVault, gives=Vault),
    Route(
        "GET",
        "/v1/vaults",
        APPLICATION,
        list_vaults,
        "List vaults, newest first",
        query=(*PAGED, ARCHIVED),
        gives=PageOf(Vault),
    ),
    Route("GET", _VAULT, APPLICATION, retrieve, "Look at a vault", gives=Vault),
    Route("POST", _VAULT, APPLICATION, update, "Change a vault", takes=UpdateVault, gives=Vault),
    Route("DELETE", _VAULT, APPLICATION, delete, "Delete a vault", gives=Deleted("vault_deleted")),
    Route("POST", _VAULT + "/archive", APPLICATION, archive, "Archive a vault", gives=Vault),
    Route(
        "POST",
        _CREDENTIALS,
        APPLICATION,
        create_credential,
        "Put a credential into a vault",
        takes=CreateCredential,
        gives=Credential,
        refuses=(Conflict,),
    ),
    Route(
        "GET",
        _CREDENTIALS,
        APPLICATION,
        list_credentials,
        "List a vault's credentials, newest first",
        query=(*PAGED, ARCHIVED),
        gives=PageOf(Credential),
    ),
    Route("GET", _CREDENTIAL, APPLICATION, retrieve_credential, "Look at a credential", gives=Credential),
    Route(
        "POST",
        _CREDENTIAL,
        APPLICATION,
        update_credential,
        "Change a credential",
        takes=UpdateCredential,
        gives=Credential,
        refuses=(Conflict,),
    ),
    Route(
        "DELETE",
        _CREDENTIAL,
        APPLICATION,
        delete_credential,
        "Delete a credential",
        gives=Deleted("vault_credential_deleted"),
    ),
    Route(
        "POST",
        _CREDENTIAL + "/archive",
        APPLICATION,
        archive_credential,
        "Archive a credential",
        gives=Credential,
    ),
    Route(
        "POST",
        _CREDENTIAL + "/mcp_oauth_validate",
        APPLICATION,
        validate_credential,
        "Try a credential at its server",
        gives=dict[str, Any],
    ),
)
