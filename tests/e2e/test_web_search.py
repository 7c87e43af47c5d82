"""The tool web_search: at an endpoint of the operator's, and by the model provider (contract section 5.2)."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from corral.testing import ScriptedModel
from corral.wire.secret import Secret
from tests.corral_server import SessionUnderTest
from tests.upstream_servers import Answer, Asked, Upstream, upstream
from tests.web_world import SAYS, WebWorld, fetch, search, web_world

KEY = "search-key-hunter2"
HITS: list[dict[str, Any]] = [
    {"url": "http://docs.example.com/a", "title": "Docs", "content": f"about a, for {KEY}"},
    {"url": "http://evil.test/b", "title": "Evil", "content": "about b", "publishedDate": "2026-01-02"},
    {"title": "no address"},
]


class Engine:
    """A search engine in SearXNG's form."""

    def __init__(self) -> None:
        self.answer: Any = {"query": "x", "results": HITS}
        self.status = 200
        self.server = Upstream(0)

    async def respond(self, asked: Asked) -> Answer:
        body = self.answer if isinstance(self.answer, bytes) else msgspec.json.encode(self.answer)
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        return self.status, headers, [body]


@pytest_asyncio.fixture
async def engine() -> AsyncGenerator[Engine]:
    """A running search engine."""
    made = Engine()
    async with upstream(respond=made.respond) as server:
        made.server = server
        yield made


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, engine: Engine) -> AsyncGenerator[WebWorld]:
    """A world that searches at the engine, which only its own setting lets it reach."""
    async with web_world(
        database_url,
        model,
        search="endpoint",
        search_endpoint=f"http://127.0.0.1:{engine.server.port}/search",
        search_key=Secret(KEY),
    ) as world:
        yield world


async def searched(world: WebWorld, session: SessionUnderTest, query: str = "prices") -> Any:
    """The result of a search."""
    await world.says(session, "Find it.", search(query), SAYS)
    await session.idle()
    return (await session.events(types=["agent.tool_result"]))[-1]


def sources(result: Any) -> list[str]:
    """The addresses of a result's hits."""
    return [block.source for block in result.content if block.type == "search_result"]


async def test_an_endpoint_is_asked_and_its_hits_are_search_results(
    world: WebWorld, engine: Engine, model: ScriptedModel
) -> None:
    session = await world.session()
    result = await searched(world, session, "prices & plans")
    [use] = await session.events(types=["agent.tool_use"])
    assert (use.name, use.input, result.is_error) == ("web_search", {"query": "prices & plans"}, False)
    first, second = result.content
    assert (first.type, first.source, first.title) == ("search_result", HITS[0]["url"], "Docs")
    assert second.content[0].text == "Published: 2026-01-02\nabout b"
    assert first.citations.enabled is False
    [asked] = engine.server.asked
    assert asked.path == "/search?q=prices+%26+plans&format=json"
    assert asked.header("authorization") == f"Bearer {KEY}"
    assert KEY not in first.content[0].text, "what the endpoint gives back of the key is masked"
    usage = (await session.retrieve()).usage
    assert usage.server_tool_use.web_search_requests == 1
    assert usage.list_cost.amount == "1", "a cent a search, and next to nothing for the scripted tokens"


async def test_the_settings_go_along_and_what_they_forbid_is_left_out(
    world: WebWorld, engine: Engine
) -> None:
    location = {"type": "approximate", "city": "Oslo", "country": "NO", "timezone": "Europe/Oslo"}
    session = await world.session(
        {"name": "web_search", "blocked_domains": ["evil.test"], "user_location": location}
    )
    assert sources(await searched(world, session)) == ["http://docs.example.com/a"]
    assert engine.server.asked[0].path == (
        "/search?q=prices&format=json&blocked_domains=evil.test&city=Oslo&country=NO&timezone=Europe%2FOslo"
    )
    narrowed = await world.session({"name": "web_search", "allowed_domains": ["evil.test", "other.test"]})
    assert sources(await searched(world, narrowed)) == ["http://evil.test/b"]
    assert "&allowed_domains=evil.test%2Cother.test" in engine.server.asked[1].path


async def test_limited_networking_holds_for_searches_too(world: WebWorld, engine: Engine) -> None:
    some = await world.session(networking={"type": "limited", "allowed_hosts": ["docs.example.com"]})
    assert sources(await searched(world, some)) == ["http://docs.example.com/a"]
    none = await world.session(networking={"type": "limited", "allowed_hosts": []})
    result = await searched(world, none)
    assert (result.is_error, result.content[0].text.partition(":")[0]) == (True, "url_not_allowed")
    assert len(engine.server.asked) == 1


async def test_what_was_found_may_be_fetched(world: WebWorld, engine: Engine) -> None:
    url = world.site.url("/found")
    world.site.puts("/found", "here", "text/plain")
    engine.answer = {"results": [{"url": url, "title": "t", "content": f"and {url}?x=1"}]}
    session = await world.session()
    await world.says(session, "Find it.", search("x"), fetch(f"{url}?x=1"), fetch(url), SAYS)
    await session.idle()
    _, excerpt, page = await session.events(types=["agent.tool_result"])
    assert excerpt.content[0].text.startswith("url_not_in_prior_context"), "hits count, excerpts do not"
    assert page.content[0].source.data == "here"


@pytest.mark.parametrize("answer", [b"<html>", {"hits": []}, [], b"x" * 5_000_000, 500, {"results": []}])
async def test_an_endpoint_that_answers_otherwise_costs_nothing(
    world: WebWorld, engine: Engine, answer: Any
) -> None:
    if isinstance(answer, int):
        engine.status = answer
    else:
        engine.answer = answer
    session = await world.session()
    result = await searched(world, session)
    found_nothing = answer == {"results": []}
    assert result.is_error is not found_nothing
    said = "The search has no results." if found_nothing else "unavailable: the server's search endpoint"
    assert result.content[0].text.startswith(said)
    usage = (await session.retrieve()).usage
    assert usage.server_tool_use.web_search_requests == int(found_nothing)


@pytest.mark.parametrize("given", [{}, {"query": " "}, {"query": 5}, {"query": "x" * 1001}])
async def test_queries_that_are_none_are_refused(world: WebWorld, engine: Engine, given: Any) -> None:
    session = await world.session()
    await world.says(session, "Find it.", {"tools": [{"name": "web_search", "input": given}]}, SAYS)
    await session.idle()
    [result] = await session.events(types=["agent.tool_result"])
    assert result.is_error
    assert engine.server.asked == []


FOUND: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "prices"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {
                "type": "web_search_result", "url": "https://a.example/1", "title": "One",
                "encrypted_content": "xyz", "page_age": "3 days",
            },
            {
                "type": "web_search_result", "url": "https://b.example/2", "title": "Two",
                "encrypted_content": "xyz", "page_age": None,
            },
        ],
    },
    {
        "type": "text",
        "text": "Two says that it costs 5.",
        "citations": [
            {
                "type": "web_search_result_location", "url": "https://b.example/2", "title": "Two",
                "cited_text": "It costs 5 a month.", "encrypted_index": "abc",
            }
        ],
    },
]  # fmt: skip
FAILED: list[dict[str, Any]] = [
    FOUND[0],
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    },
]
USED = {"input_tokens": 1000, "output_tokens": 100, "server_tool_use": {"web_search_requests": 1}}
IS_SEARCH = "search step of another program"


def finding(model: ScriptedModel, content: list[dict[str, Any]] = FOUND, **step: Any) -> None:
    """Let the provider answer searches so."""
    model.rule(if_system_contains=IS_SEARCH, then={"content": content, "usage": USED, **step})


def search_requests(model: ScriptedModel) -> list[dict[str, Any]]:
    """The requests by which the provider was asked to search."""
    return [request for request in model.requests() if IS_SEARCH in str(request.get("system"))]


@pytest_asyncio.fixture
async def provided(database_url: str, model: ScriptedModel) -> AsyncGenerator[WebWorld]:
    """A world in which the model provider searches."""
    async with web_world(database_url, model, search="provider") as world:
        yield world


async def test_the_provider_searches_in_a_request_of_its_own(
    provided: WebWorld, model: ScriptedModel
) -> None:
    finding(model)
    location = {"type": "approximate", "country": "NO"}
    session = await provided.session(
        {"name": "web_search", "blocked_domains": ["ads.example"], "user_location": location}
    )
    result = await searched(provided, session)
    assert sources(result) == ["https://b.example/2", "https://a.example/1"], "what is cited comes first"
    assert result.content[0].content[0].text == "It costs 5 a month.\nTwo says that it costs 5."
    assert result.content[1].content[0].text == "Page age: 3 days"
    [request] = search_requests(model)
    assert request["tools"] == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "max_uses": 1,
            "blocked_domains": ["ads.example"],
            "user_location": location,
        }
    ]
    assert request["messages"] == [{"role": "user", "content": [{"type": "text", "text": "prices"}]}]
    usage = (await session.retrieve()).usage
    assert usage.server_tool_use.web_search_requests == 1
    own = await session.events(types=["span.model_request_end"])
    spans = sum(event.model_usage.input_tokens for event in own)
    assert usage.input_tokens == spans + 1000, "the search's tokens are the session's too"
    assert model.requests()[-1]["messages"][-1]["content"][0]["content"][0]["type"] == "search_result"


async def test_what_the_provider_is_narrowed_to_holds_afterwards_too(
    provided: WebWorld, model: ScriptedModel
) -> None:
    finding(model)
    hosts = {"type": "limited", "allowed_hosts": ["a.example", "*.b.example"]}
    session = await provided.session(networking=hosts)
    assert sources(await searched(provided, session)) == ["https://a.example/1"]
    [request] = search_requests(model)
    assert request["tools"][0]["allowed_domains"] == ["a.example", "b.example"]


@pytest.mark.parametrize(
    ("content", "named"),
    [(FAILED, "max_uses_exceeded"), ([{"type": "text", "text": "I know that."}], "did not search")],
)
async def test_a_provider_that_does_not_search_is_an_error_of_the_tool(
    provided: WebWorld, model: ScriptedModel, content: list[dict[str, Any]], named: str
) -> None:
    finding(model, content)
    result = await searched(provided, await provided.session())
    assert result.is_error
    assert named in result.content[0].text


async def test_a_search_that_fails_leaves_the_session_running(
    provided: WebWorld, model: ScriptedModel
) -> None:
    finding(model, error={"status": 529, "times": 5})
    session = await provided.session()
    result = await searched(provided, session)
    assert (result.is_error, "529" in result.content[0].text) == (True, True)
    assert (await session.events())[-1].stop_reason.type == "end_turn"
    assert (await session.retrieve()).usage.server_tool_use.web_search_requests == 0


async def test_no_search_is_made_once_the_budget_is_used_up(provided: WebWorld, model: ScriptedModel) -> None:
    finding(model)
    budget = {"type": "limit", "max_list_cost": {"amount": "1", "currency": "USD"}}
    session = await provided.session(budget=budget)
    dear = {**search("prices"), "usage": {"output_tokens": 1_000_000}}
    await provided.says(session, "Find it.", dear, SAYS)
    idle = await session.idle()
    [result] = await session.events(types=["agent.tool_result"])
    assert "budget" in result.content[0].text
    assert (search_requests(model), idle.stop_reason.type) == ([], "budget_reached")


async def test_an_interrupt_ends_a_search_of_the_provider(provided: WebWorld, model: ScriptedModel) -> None:
    finding(model, hold="searching")
    session = await provided.session()
    await provided.says(session, "Find it.", search("prices"), SAYS)
    await model.until_holding("searching")
    await session.sends({"type": "user.interrupt"})
    await session.idle()
    [result] = await session.events(types=["agent.tool_result"])
    assert "interrupted" in result.content[0].text
    await model.until_outcome("disconnected")


async def test_searching_is_off_unless_it_is_turned_on(database_url: str, model: ScriptedModel) -> None:
    async with web_world(database_url, model) as world:
        session = await world.session()
        result = await searched(world, session)
        [use] = await session.events(types=["agent.tool_use"])
        assert use.evaluated_permission == "deny"
        assert result.content[0].text == "Permission to use web_search has been denied."
        names = {tool["name"] for tool in model.requests()[0]["tools"]}
        assert ("web_fetch" in names, "web_search" in names) == (True, False)
