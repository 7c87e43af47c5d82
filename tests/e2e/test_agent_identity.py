"""MCP servers are told which agent asks, by a token that they can check (``gateway.identity_issuer``)."""

import json
import time

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from corral.gateway.identity import public_keys
from corral.testing import ScriptedModel
from corral.vault.keys import PrivateKey
from tests.e2e.mcp_house import KEY, calls, last_message, mcp_house

ISSUER = "https://corral.corp.example"
SAYS = {"text": "they said: {result}"}


async def test_each_request_names_the_agent_and_the_session_and_can_be_checked(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, identity_issuer=ISSUER) as house:
        session = await house.session()
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        assert await last_message(session) == "they said: 5"
        shown = await session.retrieve()
        keys = KeySet.import_key_set(json.loads(json.dumps(public_keys([KEY]))))
        assert house.server.seen
        for one in house.server.seen:
            token = one["headers"]["corral-agent-identity"]
            claims = jwt.decode(token, keys, algorithms=["ES256"]).claims
            assert claims["iss"] == ISSUER
            assert claims["aud"] == house.server.url
            assert (claims["sub"], claims["agent_name"]) == (shown.agent.id, "tester")
            assert (claims["session_id"], claims["environment_id"]) == (session.id, shown.environment_id)
            assert 0 < claims["exp"] - time.time() <= 300
        forged = KeySet.import_key_set(json.loads(json.dumps(public_keys([PrivateKey.generate()]))))
        with pytest.raises(JoseError):
            jwt.decode(house.server.seen[0]["headers"]["corral-agent-identity"], forged, algorithms=["ES256"])


async def test_nothing_is_told_unless_the_operator_says_so(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model) as house:
        session = await house.session()
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        assert not [one for one in house.server.seen if "corral-agent-identity" in one["headers"]]
