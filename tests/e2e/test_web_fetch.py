"""The tool web_fetch, from a user's message to what the model is shown (contract section 5.2)."""

import base64
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from corral.testing import ScriptedModel
from tests.corral_server import Corral
from tests.mcp_parts import PIXEL
from tests.web_world import SAYS, WebWorld, fetch, web_world

PAGE = """<html><head><title>Prices &amp; plans</title><script>var secret = 1;</script></head>
<body><h1>Plans</h1><p>The <b>small</b> one costs 5.</p><ul><li>one</li><li>two</li></ul>
<a href="/more?x=1">More</a></body></html>"""
PDF = b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer <<>>\n%%EOF\n"


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel) -> AsyncGenerator[WebWorld]:
    """A world with web tools and one site."""
    async with web_world(database_url, model) as world:
        yield world


def text_of(result: Any) -> str:
    """The text of a result, of a document or of an error."""
    [block] = result.content
    return str(block.text if block.type == "text" else block.source.data)


async def test_a_page_comes_as_a_document_of_its_text(world: WebWorld, model: ScriptedModel) -> None:
    world.site.puts("/plans", PAGE, set_cookie="id=1")
    session = await world.session()
    url = world.site.url("/plans")
    result = await world.fetched(session, url)
    [use] = await session.events(types=["agent.tool_use"])
    assert (use.name, use.input, use.evaluated_permission) == ("web_fetch", {"url": url}, "allow")
    assert (result.tool_use_id, result.is_error) == (use.id, False)
    [block] = result.content
    assert (block.type, block.source.type, block.title) == ("document", "text", "Prices & plans")
    more = world.site.url("/more?x=1")
    assert block.source.data == f"# Plans\n\nThe small one costs 5.\n\n- one\n- two\n[More]({more})"
    shown = model.requests()[-1]["messages"][-1]["content"][0]["content"]
    assert shown[0]["source"]["data"] == block.source.data, "and that is what the model was shown"
    assert (await session.retrieve()).usage.server_tool_use.web_fetch_requests == 0


async def test_nothing_of_the_session_goes_out_but_the_url(world: WebWorld) -> None:
    world.site.leads("/a", world.site.url("/b", "other.example.com"))
    world.site.pages["/a"][1].append(("set-cookie", "id=1"))
    world.site.puts("/b", "done", "text/plain")
    await world.fetched(await world.session(), world.site.url("/a"))
    assert world.site.paths() == ["/a", "/b"]
    for asked in world.site.server.asked:
        names = {name for name, _ in asked.headers}
        assert names == {
            "host", "accept", "accept-encoding", "accept-language", "connection", "user-agent"
        }  # fmt: skip
        assert (asked.method, asked.header("user-agent")) == ("GET", "Corral-Web-Fetch/1.0")


async def test_web_tools_are_off_unless_the_operator_turns_them_on(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session({"type": "agent_toolset_20260401"})
    await session.says("Read https://example.com/", script=[fetch("https://example.com/"), SAYS])
    await session.idle()
    [use] = await session.events(types=["agent.tool_use"])
    [result] = await session.events(types=["agent.tool_result"])
    assert (use.evaluated_permission, use.evaluation) == ("deny", None)
    assert text_of(result) == "Permission to use web_fetch has been denied."
    assert {"web_fetch", "web_search"}.isdisjoint(tool["name"] for tool in model.requests()[0]["tools"])


async def test_an_agent_without_the_tool_is_not_told_of_it(world: WebWorld, model: ScriptedModel) -> None:
    session = await world.session({"name": "web_fetch", "enabled": False})
    result = await world.fetched(session, world.site.url("/x"))
    assert result.is_error
    assert "web_fetch" not in {tool["name"] for tool in model.requests()[0]["tools"]}
    assert world.site.server.asked == []


async def test_a_link_of_a_page_may_be_followed(world: WebWorld) -> None:
    world.site.puts("/plans", PAGE)
    world.site.puts("/more?x=1", "the rest", "text/plain")
    session = await world.session()
    first, then = world.site.url("/plans"), world.site.url("/more?x=1")
    await world.says(session, f"Read {first}.", fetch(first), fetch(then), SAYS)
    await session.idle()
    assert text_of((await session.events(types=["agent.tool_result"]))[-1]) == "the rest"


async def test_a_link_in_the_part_of_a_page_that_is_not_shown_may_be_followed(
    world: WebWorld, model: ScriptedModel
) -> None:
    then = world.site.url("/more")
    world.site.puts("/long", "x" * 120_000 + f" see {then}", "text/plain")
    world.site.puts("/more", "the rest", "text/plain")
    session = await world.session()
    look = {"tools": [{"name": "ant__history", "input": {"contains": "/more", "types": ["tool_result"]}}]}
    first = world.site.url("/long")
    await world.says(session, f"Read {first}.", fetch(first), look, fetch(then), SAYS)
    await session.idle()
    assert "characters, of which the first 10,000 are shown" in str(model.requests()[1]["messages"][-1])
    assert "/more" in str(model.requests()[2]["messages"][-1])
    assert text_of((await session.events(types=["agent.tool_result"]))[-1]) == "the rest"


async def test_a_url_that_nobody_has_shown_is_not_fetched(world: WebWorld) -> None:
    world.site.puts("/plans", PAGE)
    session = await world.session()
    made_up = world.site.url("/plans?what=we-talked-about")
    first = await world.fetched(session, made_up, said=f"Read {world.site.url('/plans')}.")
    assert (first.is_error, text_of(first).partition(":")[0]) == (True, "url_not_in_prior_context")
    # Not by having asked before, either: what the model and the server say shows nothing.
    again = await world.fetched(session, made_up, said="Try again.")
    assert text_of(again).startswith("url_not_in_prior_context")
    assert world.site.server.asked == []


NAMED = [{"type": "tool_reference", "name": "look_up"}]
LOOK_UP = {"type": "custom", "name": "look_up", "description": "d", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("sources", "shown"),
    [
        (None, True),
        ({"user_input": "none"}, True),
        ({"client_tool_results": "none"}, False),
        ({"client_tool_results": {"type": "only", "tools": NAMED}}, True),
        ({"client_tool_results": {"type": "except", "tools": NAMED}}, False),
    ],
)
async def test_a_custom_tool_shows_urls_as_far_as_url_sources_say(
    world: WebWorld, sources: Any, shown: bool
) -> None:
    world.site.puts("/found", "here", "text/plain")
    session = await world.session({"name": "web_fetch", "url_sources": sources}, tools=[LOOK_UP])
    url = world.site.url("/found")
    await world.says(session, "Look it up and read it.", {"tools": [{"name": "look_up"}]}, fetch(url), SAYS)
    idle = await session.idle()
    [use] = await session.events(types=["agent.custom_tool_use"])
    found = {"type": "text", "text": f'{{"url":"{url}","title":"x"}}'}
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": use.id, "content": [found]})
    await session.idle(after=idle.id)
    [result] = await session.events(types=["agent.tool_result"])
    assert text_of(result).startswith("here" if shown else "url_not_in_prior_context")


async def test_what_the_user_writes_may_be_left_out_too(world: WebWorld) -> None:
    session = await world.session({"name": "web_fetch", "url_sources": {"user_input": "none"}})
    result = await world.fetched(session, world.site.url("/plans"))
    assert text_of(result).startswith("url_not_in_prior_context")


@pytest.mark.parametrize(
    ("entry", "host", "named"),
    [
        ({"allowed_domains": ["example.com"]}, "docs.example.com", None),
        ({"allowed_domains": ["docs.example.com"]}, "api.example.com", "allowed_domains"),
        ({"allowed_domains": ["example.com"]}, "notexample.com", "allowed_domains"),
        ({"blocked_domains": ["example.com"]}, "docs.example.com", "blocked_domains"),
        ({"blocked_domains": ["ads.example.com"]}, "docs.example.com", None),
    ],
)
async def test_lists_of_domains_cover_what_is_below_them(
    world: WebWorld, entry: dict[str, Any], host: str, named: str | None
) -> None:
    world.site.puts("/x", "here", "text/plain")
    result = await world.fetched(
        await world.session({"name": "web_fetch", **entry}), world.site.url("/x", host)
    )
    said = text_of(result)
    assert said == "here" if named is None else (said.startswith("url_not_allowed") and named in said)
    assert len(world.site.server.asked) == (named is None)


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [(["docs.example.com"], True), (["*.example.com"], True), (["example.com"], False), ([], False)],
)
async def test_limited_networking_holds_for_fetches_too(
    world: WebWorld, hosts: list[str], allowed: bool
) -> None:
    world.site.puts("/x", "here", "text/plain")
    session = await world.session(networking={"type": "limited", "allowed_hosts": hosts})
    result = await world.fetched(session, world.site.url("/x"))
    assert text_of(result).startswith("here" if allowed else "url_not_allowed")
    assert len(world.site.server.asked) == allowed


async def test_every_hop_is_held_against_the_lists(world: WebWorld) -> None:
    world.site.leads("/a", world.site.url("/b", "docs.example.com"), 301)
    world.site.leads("/b", world.site.url("/secret", "evil.example.com"), 307)
    world.site.puts("/secret", "no", "text/plain")
    session = await world.session({"name": "web_fetch", "allowed_domains": ["docs.example.com"]})
    result = await world.fetched(session, world.site.url("/a"))
    assert (result.is_error, text_of(result).partition(":")[0]) == (True, "url_not_allowed")
    assert world.site.paths() == ["/a", "/b"]


async def test_a_call_waits_for_the_user_where_the_policy_says_so(world: WebWorld) -> None:
    world.site.puts("/x", "here", "text/plain")
    session = await world.session({"name": "web_fetch", "permission_policy": {"type": "always_ask"}})
    url = world.site.url("/x")
    await world.says(session, f"Read {url} twice.", {"tools": [fetch(url)["tools"][0]] * 2}, SAYS)
    idle = await session.idle()
    first, second = idle.stop_reason.event_ids
    assert world.site.server.asked == []
    await session.sends(
        {"type": "user.tool_confirmation", "tool_use_id": first, "result": "allow"},
        {"type": "user.tool_confirmation", "tool_use_id": second, "result": "deny", "deny_message": "no"},
    )
    await session.idle(after=idle.id)
    results = {one.tool_use_id: one for one in await session.events(types=["agent.tool_result"])}
    assert text_of(results[first]) == "here"
    assert "They said: no" in text_of(results[second])
    assert world.site.paths() == ["/x"]


async def test_pdfs_and_pictures_are_shown_as_they_are(world: WebWorld, model: ScriptedModel) -> None:
    world.site.puts("/paper", PDF, "application/pdf")
    world.site.puts("/dot", PIXEL, "image/png")
    session = await world.session()
    [paper] = (await world.fetched(session, world.site.url("/paper"))).content
    assert (paper.type, paper.source.media_type) == ("document", "application/pdf")
    assert base64.b64decode(paper.source.data) == PDF
    [dot] = (await world.fetched(session, world.site.url("/dot"))).content
    assert (dot.type, dot.source.media_type, base64.b64decode(dot.source.data)) == (
        "image", "image/png", PIXEL
    )  # fmt: skip


async def test_max_content_tokens_bound_text_and_not_documents(world: WebWorld) -> None:
    world.site.puts("/long", "x" * 5000, "text/plain")
    world.site.puts("/paper", PDF + b"%" * 5000, "application/pdf")
    session = await world.session({"name": "web_fetch", "max_content_tokens": 100})
    said = text_of(await world.fetched(session, world.site.url("/long")))
    assert (said[:400], said[400:402]) == ("x" * 400, "\n\n")
    assert "more than 400 characters" in said
    [paper] = (await world.fetched(session, world.site.url("/paper"))).content
    assert len(base64.b64decode(paper.source.data)) == len(PDF) + 5000


async def test_what_was_asked_of_hosts_is_counted_without_paths(
    world: WebWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.site.puts("/x?token=hunter2", "here", "text/plain")
    session = await world.session({"name": "web_fetch", "blocked_domains": ["bad.example.com"]})
    caplog.set_level(logging.INFO)
    with capture_logs() as lines:
        await world.fetched(session, world.site.url("/x?token=hunter2"))
        await world.fetched(session, world.site.url("/", "bad.example.com"))
    assert [line["event"] for line in lines if line["event"].startswith("egress")] == [
        "egress allowed",
        "egress denied",
    ]
    assert "token" not in str(lines)
    assert "token" not in caplog.text
    rows: Any = []
    while len(rows) < 2:
        told: Any = await world.corral.client.get(f"/corral/v1/sessions/{session.id}/egress", cast_to=object)
        rows = told["data"]
    assert [(row["host"], row["port"], row["decision"], row["requests"]) for row in rows] == [
        ("bad.example.com", world.site.port, "denied", 1),
        ("docs.example.com", world.site.port, "allowed", 1),
    ]
    assert "hunter2" not in str(rows)


async def test_on_self_hosted_the_server_fetches_and_takes_no_ones_result_instead(world: WebWorld) -> None:
    world.site.puts("/x", "here", "text/plain")
    session = await world.session(
        {"name": "web_fetch", "permission_policy": {"type": "always_ask"}}, kind="self_hosted"
    )
    url = world.site.url("/x")
    await world.says(session, f"Read {url}", fetch(url), SAYS)
    idle = await session.idle()
    [call] = idle.stop_reason.event_ids
    with pytest.raises(Exception, match="which the server runs"):
        await session.sends({"type": "user.tool_result", "tool_use_id": call, "content": []})
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"})
    await session.idle(after=idle.id)
    [result] = await session.events(types=["agent.tool_result"])
    assert text_of(result) == "here"
