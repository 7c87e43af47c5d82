"""Vaults and their credentials."""

from typing import Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules, as_it_is
from tests.conformance.sdk.workshop import FAR, Workshop


async def vault(asked: Asked, at: Workshop) -> None:
    """A vault to look at, to change, to archive, to delete, or to put a credential into."""
    asked.params["vault_id"] = (await at.vault())["id"]


async def listed(asked: Asked, at: Workshop) -> None:
    """Two vaults, so that there is a second page."""
    for _ in range(2):
        await at.vault()


async def credential(asked: Asked, at: Workshop) -> None:
    """A credential with a bearer token."""
    await vault(asked, at)
    vault_id = asked.params["vault_id"]
    asked.params["credential_id"] = (await at.credential(vault_id))["id"]


async def oauth_credential(asked: Asked, at: Workshop) -> None:
    """A credential of OAuth, to change or to try; its next expiry lies ahead, as it must."""
    await vault(asked, at)
    vault_id = asked.params["vault_id"]
    asked.params["credential_id"] = (await at.oauth_credential(vault_id))["id"]
    if asked.body and asked.body.get("auth"):
        asked.body["auth"]["expires_at"] = FAR


async def listed_credentials(asked: Asked, at: Workshop) -> None:
    """A vault with two credentials: two keys, since a vault takes each once."""
    await vault(asked, at)
    vault_id = asked.params["vault_id"]
    await at.oauth_credential(vault_id)
    url = "https://other-server.modelcontextprotocol.io/sse"
    await at.credential(vault_id, {"type": "static_bearer", "token": "bearer", "mcp_server_url": url})


_ONE: Final = "/v1/vaults/{vault_id}"
_CREDENTIAL: Final = _ONE + "/credentials/{credential_id}"

RULES: Final[Rules] = {
    "POST /v1/vaults": as_it_is,
    "GET /v1/vaults": listed,
    f"GET {_ONE}": vault,
    f"POST {_ONE}": vault,
    f"DELETE {_ONE}": vault,
    f"POST {_ONE}/archive": vault,
    f"POST {_ONE}/credentials": vault,
    f"GET {_ONE}/credentials": listed_credentials,
    f"GET {_CREDENTIAL}": credential,
    f"POST {_CREDENTIAL}": oauth_credential,
    f"DELETE {_CREDENTIAL}": credential,
    f"POST {_CREDENTIAL}/archive": credential,
    f"POST {_CREDENTIAL}/mcp_oauth_validate": oauth_credential,
}
