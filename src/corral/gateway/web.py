"""The web tools of sessions (contract section 5.2), as far as the gateway runs them.

What is allowed is decided here, from the session's agent, its environment and its log. Both tools only read,
so a call whose gateway died is made again.
"""

import asyncio
import ssl
from functools import partial
from typing import Any, Final

from corral.brain.permission import configuration
from corral.gateway.addresses import Reach
from corral.gateway.calls import LoggedCall
from corral.gateway.egress_log import EgressLog
from corral.gateway.sessions import SessionReach
from corral.gateway.shares import Shares
from corral.gateway.web_context import was_shown
from corral.gateway.web_fetch import NotFetched, WebFetcher, parse_url
from corral.gateway.web_pages import page_content
from corral.gateway.web_search import SearchEndpoint
from corral.settings import Gateway
from corral.store.database import Database
from corral.vault.grants import GrantedSession
from corral.wire.environments import limited_hosts
from corral.wire.gateway import CallOutcome
from corral.wire.web_results import asked_query, web_error
from corral.wire.web_rules import NOTHING_PERMITTED, WebSettings, combined

_FETCHES: Final = 32
"""Most pages that one gateway holds in memory at the same time."""
_OF_SESSION: Final = 4
"""Most of them that are one session's."""


class WebTools:
    """Makes the calls of web tools: `corral.gateway.calls.Maker`. What is None is not enabled."""

    def __init__(
        self,
        *,
        database: Database,
        reach: SessionReach,
        log: EgressLog,
        fetcher: WebFetcher | None,
        endpoint: SearchEndpoint | None,
    ) -> None:
        self._database = database
        self._reach = reach
        self._log = log
        self._fetcher = fetcher
        self._endpoint = endpoint
        self._room = asyncio.Semaphore(_FETCHES)
        self._shares = Shares(_OF_SESSION)

    async def make(self, session: GrantedSession, call: LoggedCall) -> CallOutcome:
        """See `corral.gateway.calls.Maker`."""
        if configuration(session.agent, call.tool) is None:
            return web_error("unavailable", f"the agent does not have {call.tool} enabled.")
        entries = [one for agent in session.chain if (one := configuration(agent, call.tool)) is not None]
        settings = combined(entries, limited_hosts(session.environment_config))
        if call.tool == "web_search":
            return await self._search(session, call, settings)
        try:
            async with self._shares.one(session.session_id), self._room:
                content = await self._fetched(session, call, settings)
        except NotFetched as error:
            return web_error(error.code, error.detail)
        return CallOutcome(content=content, is_error=False)

    async def is_repeatable(self, session: GrantedSession, call: LoggedCall) -> bool:
        """See `corral.gateway.calls.Maker`: always, since both tools only read."""
        return True

    async def _search(self, session: GrantedSession, call: LoggedCall, settings: WebSettings) -> CallOutcome:
        if self._endpoint is None:
            return web_error("unavailable", "this gateway has no search endpoint (gateway.search).")
        query = asked_query(call.input)
        if not isinstance(query, str):
            return query
        if settings.permits_nothing:
            return web_error("url_not_allowed", f"{NOTHING_PERMITTED}.")
        return await self._endpoint.search(query, settings, partial(self._log.note, session.session_id))

    async def _fetched(
        self, session: GrantedSession, call: LoggedCall, settings: WebSettings
    ) -> list[dict[str, Any]]:
        if self._fetcher is None:
            raise NotFetched("unavailable", "this gateway fetches no pages (gateway.web_fetch).")
        asked = call.input.get("url")
        if not isinstance(asked, str) or not asked.strip():
            raise NotFetched("invalid_tool_input", "give a URL, as text.")
        url = parse_url(asked.strip())
        note = partial(self._log.note, session.session_id)
        self._fetcher.check(url, settings, note)
        if not await was_shown(self._database, session.session_id, call.seq, url, settings):
            raise NotFetched(
                "url_not_in_prior_context",
                "a URL can be fetched once it has stood in the conversation: in a message of the user's, or "
                "in a result of a search, of a fetch or of a custom tool.",
            )
        reach = self._reach.of_environment(session.environment_id, session.environment_name)
        page = await self._fetcher.fetch(url, settings, reach, note)
        return await asyncio.to_thread(page_content, page, settings.max_content_tokens)


def web_tools(
    settings: Gateway, database: Database, reach: Reach, log: EgressLog, internal_tls: ssl.SSLContext | None
) -> WebTools:
    """The web tools that the settings enable. internal_tls: how internal servers are verified."""
    fetcher = endpoint = None
    if settings.web_fetch:
        fetcher = WebFetcher(
            ports=frozenset(settings.egress_ports),
            seconds=settings.web_seconds,
            most=settings.web_fetch_bytes,
            internal_tls=internal_tls,
        )
    if settings.search == "endpoint" and settings.search_endpoint is not None:
        endpoint = SearchEndpoint(
            url=settings.search_endpoint,
            key=settings.search_key,
            reach=reach,
            seconds=settings.web_seconds,
            internal_tls=internal_tls,
        )
    return WebTools(
        database=database,
        reach=SessionReach(reach, settings.internal_by_environment),
        log=log,
        fetcher=fetcher,
        endpoint=endpoint,
    )
