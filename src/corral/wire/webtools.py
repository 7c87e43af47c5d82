"""The settings of the web tools: domain lists, location, and the sources of URLs (contract section 5.2)."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Request
from corral.wire.times import zone_of

_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))+")
_PRIVATE_ENDS: Final = (".local", ".internal", ".localdomain", ".invalid", ".localhost")
# An address in any of the forms that parsers of URLs take for one, such as 127.1 or 0x7f.1.
_NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
_PATH: Final = re.compile(r"[!-~]*")
_NOT_IN_PATHS: Final = frozenset("*?#@\\")
DOMAINS: Final = 64
_COUNTRIES: Final = (
    "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT "
    "BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH "
    "ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT "
    "HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS "
    "LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI "
    "NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG "
    "SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG "
    "UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW"
)
"""ISO 3166-1 alpha-2."""

Place = Annotated[str, Meta(min_length=1, max_length=255)]


class UserLocation(Request):
    """Where the user is, roughly, for search results."""

    type: Literal["approximate"]
    city: Place | None = None
    region: Place | None = None
    country: str | None = None
    timezone: Place | None = None


class ToolReference(Request, tag="tool_reference"):
    """One tool by name."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]


Tools = Annotated[list[ToolReference], Meta(min_length=1, max_length=128)]


class All(Request, tag="all"):
    """Every URL of the source may be fetched."""


class Nothing(Request, tag="none"):
    """No URL of the source may be fetched."""


class Only(Request, tag="only"):
    """The results of these tools alone."""

    tools: Tools


class Except(Request, tag="except"):
    """The results of every tool but these."""

    tools: Tools


Shorthand = Literal["all", "none"]


class UrlSourcesParams(Request):
    """Which sources contribute URLs that ``web_fetch`` may fetch, as sent."""

    user_input: Shorthand | All | Nothing | None = None
    client_tool_results: Shorthand | All | Nothing | Only | Except | None = None
    server_tool_results: Shorthand | All | Nothing | Only | Except | None = None


class UrlSources(msgspec.Struct, kw_only=True):
    """The same, resolved: objects only, null where unset."""

    user_input: All | Nothing | None
    client_tool_results: All | Nothing | Only | Except | None
    server_tool_results: All | Nothing | Only | Except | None


def check_domains(
    allowed: Sequence[str] | None, blocked: Sequence[str] | None, path: str, *, paths_allowed: bool
) -> None:
    """Check a web tool's two lists; ``paths_allowed`` permits a path after the host (web_search).

    Raises:
        InvalidRequest: both are set, one is empty or too long, or an entry is no public host name.
    """
    if allowed is not None and blocked is not None:
        raise InvalidRequest(f"{path}: Only one of allowed_domains or blocked_domains may be set.")
    for field, domains in (("allowed_domains", allowed), ("blocked_domains", blocked)):
        if domains is None:
            continue
        where = f"{path}.{field}"
        if not domains:
            raise InvalidRequest(
                f"{where}: Empty list of domains is ambiguous. Provide at least one domain or null."
            )
        if len(domains) > DOMAINS:
            raise InvalidRequest(f"{where}: at most {DOMAINS} domains")
        seen: set[str] = set()
        for index, domain in enumerate(domains):
            plain = _check_domain(domain, f"{where}[{index}]", paths_allowed=paths_allowed)
            if plain in seen:
                raise InvalidRequest(f'{where}[{index}]: "{domain}" is listed more than once')
            seen.add(plain)


def _check_domain(domain: str, path: str, *, paths_allowed: bool) -> str:
    if not 1 <= len(domain) <= 255:
        raise InvalidRequest(f"{path}: must have 1 to 255 characters")
    plain = domain.lower().removesuffix("/")
    host, slash, rest = plain.partition("/")
    if _is_address(host):
        raise InvalidRequest(
            f'{path}: IP addresses are not supported; provide a plain hostname like "example.com"'
        )
    fits = domain.isascii() and _HOST.fullmatch(host) and (paths_allowed or not slash)
    if not fits or not _PATH.fullmatch(rest) or not _NOT_IN_PATHS.isdisjoint(rest):
        raise InvalidRequest(f'{path}: "{domain}" is not a plain hostname like "example.com"')
    if host.endswith(_PRIVATE_ENDS):
        raise InvalidRequest(f'{path}: "{domain}" is not a public domain')
    return plain


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return _NUMERIC.fullmatch(host) is not None
    return True


def check_location(location: UserLocation | None, path: str) -> None:
    """Check a location: one field at least, a country code in upper case, a zone that exists."""
    if location is None:
        return
    where = f"{path}.user_location"
    if location.city is location.region is location.country is location.timezone is None:
        raise InvalidRequest(f"{where}: give at least one of city, region, country and timezone")
    if location.country is not None and not re.fullmatch("[A-Z]{2}", location.country):
        raise InvalidRequest(f"{where}.country: must be a two-letter ISO 3166-1 code in upper case")
    if location.country is not None and location.country not in _COUNTRIES.split():
        raise InvalidRequest(f"{where}.country: not a country the search provider supports")
    if location.timezone is not None and zone_of(location.timezone) is None:
        raise InvalidRequest(f'{where}.timezone: "{location.timezone}" is not an IANA time zone')


def resolve_url_sources(params: UrlSourcesParams | None, path: str, custom: set[str]) -> UrlSources | None:
    """The object form of ``url_sources``; ``custom`` are the names of the agent's custom tools."""
    if params is None:
        return None
    user, client, server = params.user_input, params.client_tool_results, params.server_tool_results
    resolved = UrlSources(
        user_input=_shorthand(user) if isinstance(user, str) else user,
        client_tool_results=_shorthand(client) if isinstance(client, str) else client,
        server_tool_results=_shorthand(server) if isinstance(server, str) else server,
    )
    if all(isinstance(getattr(resolved, field), Nothing) for field in resolved.__struct_fields__):
        raise InvalidRequest(f"{path}: at least one source must be allowed")
    _check_names(resolved.client_tool_results, f"{path}.client_tool_results", custom, "a custom tool here")
    web = {"web_search", "web_fetch"}
    _check_names(resolved.server_tool_results, f"{path}.server_tool_results", web, "web_search or web_fetch")
    return resolved


def _shorthand(word: Shorthand) -> All | Nothing:
    return All() if word == "all" else Nothing()


def _check_names(
    source: All | Nothing | Only | Except | None, path: str, allowed: set[str], what: str
) -> None:
    if not isinstance(source, Only | Except):
        return
    seen: set[str] = set()
    for index, tool in enumerate(source.tools):
        if tool.name not in allowed:
            raise InvalidRequest(f'{path}.tools[{index}].name: "{tool.name}" is not {what}')
        if tool.name in seen:
            raise InvalidRequest(f'{path}.tools[{index}].name: "{tool.name}" is listed more than once')
        seen.add(tool.name)
