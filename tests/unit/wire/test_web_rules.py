"""Settings of web tools along a chain of calls, and what they permit (contract section 5.2)."""

from typing import Any

import pytest

from corral.wire.web_results import RESULTS, Hit, search_content
from corral.wire.web_rules import NOTHING_PERMITTED, WebSettings, combined

NOTHING: dict[str, Any] = {}


def allowing(*domains: str) -> dict[str, Any]:
    return {"allowed_domains": list(domains)}


def blocking(*domains: str) -> dict[str, Any]:
    return {"blocked_domains": list(domains)}


@pytest.mark.parametrize(
    ("entries", "host", "path", "permitted"),
    [
        ([NOTHING], "anything.example", "/", True),
        ([{"allowed_domains": None}], "anything.example", "/", True),
        ([allowing("example.com")], "example.com", "/", True),
        ([allowing("Example.COM/")], "docs.example.com", "/", True),
        ([allowing("docs.example.com")], "example.com", "/", False),
        ([allowing("www.example.com")], "example.com", "/", False),
        ([allowing("example.com")], "badexample.com", "/", False),
        ([allowing("example.com/blog")], "example.com", "/blog", True),
        ([allowing("example.com/blog")], "www.example.com", "/blog/x", True),
        ([allowing("example.com/blog")], "example.com", "/blogs", False),
        ([allowing("example.com/*")], "example.com", "/x", True),
        ([blocking("example.com")], "docs.example.com", "/", False),
        ([blocking("example.com")], "example.org", "/", True),
        # Lists along a chain: what is allowed has to be allowed by all, and what one blocks is blocked.
        ([allowing("docs.example.com"), allowing("example.com")], "docs.example.com", "/", True),
        ([allowing("docs.example.com"), allowing("example.com")], "api.example.com", "/", False),
        ([allowing("example.com"), allowing("docs.example.com")], "api.example.com", "/", False),
        ([allowing("a.example", "b.example"), allowing("b.example", "c.example")], "b.example", "/", True),
        ([allowing("a.example", "b.example"), allowing("b.example", "c.example")], "a.example", "/", False),
        ([blocking("ads.example.com"), allowing("example.com")], "ads.example.com", "/", False),
        ([blocking("ads.example.com"), allowing("example.com")], "docs.example.com", "/", True),
        ([blocking("a.example"), blocking("b.example")], "a.example", "/", False),
        ([blocking("a.example"), blocking("b.example")], "b.example", "/", False),
        ([NOTHING, allowing("example.com"), NOTHING], "example.org", "/", False),
        ([allowing("example.com/a"), allowing("example.com")], "example.com", "/b", False),
        ([allowing("example.com/a"), allowing("example.com")], "example.com", "/a", True),
    ],
)
def test_lists_of_domains(entries: list[dict[str, Any]], host: str, path: str, permitted: bool) -> None:
    assert (combined(entries).refusal(host, path) is None) is permitted


def test_lists_that_have_nothing_in_common_permit_nothing() -> None:
    settings = combined([allowing("a.example"), allowing("b.example")])
    assert settings.permits_nothing
    assert settings.refusal("a.example") == NOTHING_PERMITTED


def test_other_settings_are_the_nearest_ones() -> None:
    near = {"max_content_tokens": 5, "user_location": None}
    far = {"max_content_tokens": 9, "user_location": {"type": "approximate", "city": "Oslo"}}
    settings = combined([{}, near, far])
    assert settings.max_content_tokens == 5
    assert settings.user_location == {"type": "approximate", "city": "Oslo"}


@pytest.mark.parametrize(
    ("hosts", "host", "permitted"),
    [
        (["docs.example.com"], "docs.example.com", True),
        (["docs.example.com"], "sub.docs.example.com", False),
        (["*.example.com"], "docs.example.com", True),
        (["*.example.com"], "example.com", False),
        ([], "example.com", False),
    ],
)
def test_allowed_hosts_of_the_environment_match_exactly(hosts: list[str], host: str, permitted: bool) -> None:
    settings = combined([allowing("example.com")], hosts)
    assert (settings.refusal(host) is None) is permitted
    assert settings.permits_nothing is (not hosts)


def test_every_agent_of_the_chain_has_to_admit_a_source_of_urls() -> None:
    tools = [{"type": "tool_reference", "name": "look_up"}]
    unset = {"user_input": None, "client_tool_results": None, "server_tool_results": None}
    only = {"url_sources": {**unset, "client_tool_results": {"type": "only", "tools": tools}}}
    mute = {"url_sources": {**unset, "user_input": {"type": "none"}}}
    assert combined([{}]).admits("user_input", "")
    assert combined([only]).admits("client_tool_results", "look_up")
    assert not combined([only]).admits("client_tool_results", "other")
    assert not combined([only, mute]).admits("user_input", "")
    assert combined([only, mute]).admits("server_tool_results", "web_fetch")


def test_of_a_search_what_is_not_permitted_is_left_out() -> None:
    hits = [
        Hit(url="https://docs.example.com/a", title="A", text="about a"),
        Hit(url="https://evil.example/b", title="B"),
        Hit(url="javascript:alert(1)", title="C"),
        Hit(url="https://docs.example.com/a", title="again"),
        Hit(url="https://docs.example.com/d"),
        Hit(url="http://[", title="E"),
    ]
    shown = search_content(hits, combined([allowing("example.com")]))
    assert [(block["source"], block["title"]) for block in shown] == [
        ("https://docs.example.com/a", "A"),
        ("https://docs.example.com/d", "https://docs.example.com/d"),
    ]
    assert shown[0]["content"] == [{"type": "text", "text": "about a"}]
    many = [Hit(url=f"https://example.com/{n}") for n in range(50)]
    assert len(search_content(many, WebSettings())) == RESULTS
    assert search_content([], WebSettings()) == [{"type": "text", "text": "The search has no results."}]
