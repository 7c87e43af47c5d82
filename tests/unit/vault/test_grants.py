"""What a grant says of the thread that it is used for."""

from typing import Any

from corral.vault.grants import GrantedSession
from corral.wire.web_rules import combined


def agent(name: str, *sites: str) -> dict[str, Any]:
    return {"id": f"agent_{name}", "mcp_servers": [], "web": {"allowed_domains": list(sites)}}


def test_a_child_thread_has_its_own_agent_and_what_limits_its_coordinator_limits_it_too() -> None:
    lead = agent("lead", "example.com", "example.org")
    child = agent("child", "example.org", "example.net")
    session = GrantedSession("sesn_1", "env_1", "e", {"type": "cloud"}, lead, "agent_lead", ["vlt_1"])
    assert session.chain == (lead,)
    on_thread = session.on_thread(child)
    assert (on_thread.agent, on_thread.agent_id) == (child, "agent_child")
    assert on_thread.chain == (child, lead)
    assert combined([one["web"] for one in on_thread.chain], None).allowed == ("example.org",)
