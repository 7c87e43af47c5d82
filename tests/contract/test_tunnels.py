"""Tunnels: a self-hosted server has none, and says what to do instead (contract section 20)."""

import anthropic
import pytest

from .conftest import Api
from .refusals import refused

TUNNELS = "/v1/tunnels"


async def test_tunnels_are_answered_with_the_reason_why_there_are_none(api: Api) -> None:
    tunnels = api.sdk.beta.tunnels
    for request in (
        tunnels.retrieve("tnl_1"),
        tunnels.archive("tnl_1"),
        tunnels.reveal_token("tnl_1"),
        tunnels.rotate_token("tnl_1"),
        tunnels.certificates.create("tnl_1", ca_certificate_pem="PEM"),
        tunnels.certificates.retrieve("tcrt_1", tunnel_id="tnl_1"),
        tunnels.certificates.archive("tcrt_1", tunnel_id="tnl_1"),
    ):
        await refused(request, "no tunnels", "directly", kind=anthropic.NotFoundError)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_there_is_no_list_of_tunnels_either(api: Api, method: str) -> None:
    response = await api.http.request(method, TUNNELS, json={} if method == "POST" else None)
    assert response.status_code == 404
    assert "no tunnels" in response.json()["error"]["message"]
