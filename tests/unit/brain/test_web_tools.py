"""Which web tools the model is told of, and how."""

from typing import Any

import pytest

from corral.brain.web_tools import WebOffer, web_definitions
from corral.resources.dream_agent import agent_for
from corral.server import web_offer
from corral.settings import Gateway
from tests.unit.brain.simulation import AGENT

BOTH = WebOffer(fetch=True, search="endpoint")


def agent(**entry: Any) -> dict[str, Any]:
    """An agent whose toolset has this entry for web_fetch."""
    policy = {"type": "always_allow"}
    configs = [{"name": "web_fetch", "enabled": True, "permission_policy": policy, **entry}]
    return {**AGENT, "tools": [{**AGENT["tools"][0], "configs": configs}]}


def told(*agents: dict[str, Any], offer: WebOffer = BOTH) -> dict[str, str]:
    """The descriptions of the web tools by name."""
    return {tool["name"]: tool["description"] for tool in web_definitions(agents, offer)}


@pytest.mark.parametrize(
    ("offer", "names"),
    [
        (WebOffer(), []),
        (WebOffer(fetch=True), ["web_fetch"]),
        (WebOffer(search="provider"), ["web_search"]),
        (BOTH, ["web_search", "web_fetch"]),
    ],
)
def test_the_model_is_told_of_what_the_server_offers(offer: WebOffer, names: list[str]) -> None:
    assert list(told(AGENT, offer=offer)) == names


def test_it_is_not_told_of_what_the_agent_has_not_enabled() -> None:
    assert list(told(agent(enabled=False))) == ["web_search"]
    assert told({**AGENT, "tools": []}) == {}


def test_the_agent_that_dreams_has_no_web_tools() -> None:
    assert told(agent_for("claude-sonnet-4-5")) == {}


def test_the_model_is_told_which_sites_it_is_limited_to() -> None:
    assert told(agent(allowed_domains=["a.example", "b.example"]))["web_fetch"].endswith(
        " Limited to these sites: a.example, b.example."
    )
    assert told(agent(blocked_domains=["a.example"]))["web_fetch"].endswith(
        " These sites are left out: a.example."
    )


def test_an_agent_is_bound_by_the_lists_of_those_that_called_it() -> None:
    mine, callers = agent(allowed_domains=["docs.a.example"]), agent(allowed_domains=["a.example"])
    assert told(mine, callers)["web_fetch"].endswith(" Limited to these sites: docs.a.example.")
    elsewhere = agent(allowed_domains=["b.example"])
    assert "Every call fails: no domain is permitted" in told(mine, elsewhere)["web_fetch"]


@pytest.mark.parametrize(
    ("gateway", "names"),
    [
        (Gateway(), set[str]()),
        (Gateway(url="http://127.0.0.1:1", web_fetch=True), {"web_fetch"}),
        (Gateway(web_fetch=True), set[str]()),
        (Gateway(search="endpoint", search_endpoint="https://search.example/"), set[str]()),
        (Gateway(web_fetch=True, search="provider"), {"web_search"}),
    ],
)
def test_what_the_gateway_would_run_is_not_offered_without_one(gateway: Gateway, names: set[str]) -> None:
    assert web_offer(gateway).names == names
