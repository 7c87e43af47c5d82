"""Environments on the wire: create and update, the resolved configuration, and how one merges into another.

(contract section 7)
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.agents import SessionAgent
from corral.wire.errors import InvalidRequest
from corral.wire.fields import Metadata, MetadataPatch, Request, given
from corral.wire.tools import AgentToolset

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Description = Annotated[str, Meta(max_length=1024)]
Scope = Literal["organization", "account"]
PackageList = list[Annotated[str, Meta(min_length=1, max_length=512)]]

_HOST: Final = re.compile(
    r"(?:\*\.)?(?!-)[A-Za-z0-9-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*", re.ASCII
)
ALLOWED_HOSTS: Final = 1000
MANAGERS: Final = ("apt", "cargo", "gem", "go", "npm", "pip")


class Unrestricted(Request, tag="unrestricted"):
    """Everything but what is always refused."""


class LimitedParams(Request, tag="limited"):
    """Only the named hosts, as sent; an absent or null field keeps what an update finds."""

    allowed_hosts: list[str] | None = None
    allow_mcp_servers: bool | None = None
    allow_package_managers: bool | None = None


class PackagesParams(Request):
    """Packages by manager, as sent; an absent or null list keeps what an update finds."""

    type: Literal["packages"] = "packages"
    apt: PackageList | None = None
    cargo: PackageList | None = None
    gem: PackageList | None = None
    go: PackageList | None = None
    npm: PackageList | None = None
    pip: PackageList | None = None


class CloudParams(Request, tag="cloud"):
    """Served by the operator's worker pool."""

    networking: Unrestricted | LimitedParams | None = None
    packages: PackagesParams | None = None


class SelfHosted(Request, tag="self_hosted"):
    """Served by whoever holds the environment's key."""


ConfigParams = CloudParams | SelfHosted


class CreateEnvironment(Request):
    """The body of ``POST /v1/environments``."""

    name: Name
    description: Description | None = None
    config: ConfigParams | None = None
    scope: Scope | None = None
    metadata: Metadata | None = None

    def check(self) -> None:
        """Refuse the scope that is not to be had."""
        check_scope(self.scope)


class UpdateEnvironment(Request):
    """The body of ``POST /v1/environments/{id}``: an absent field stays."""

    name: Name | None = None
    description: Description | UnsetType | None = UNSET
    config: ConfigParams | None = None
    scope: Scope | None = None
    metadata: MetadataPatch | None = None

    def check(self) -> None:
        """Refuse the scope that is not to be had."""
        check_scope(self.scope)


class Limited(msgspec.Struct, tag="limited", kw_only=True):
    """Only the named hosts, resolved."""

    allowed_hosts: list[str]
    allow_mcp_servers: bool
    allow_package_managers: bool


class Packages(msgspec.Struct, kw_only=True):
    """Packages by manager, resolved."""

    type: Literal["packages"] = "packages"
    apt: list[str]
    cargo: list[str]
    gem: list[str]
    go: list[str]
    npm: list[str]
    pip: list[str]


class Cloud(msgspec.Struct, tag="cloud", kw_only=True):
    """The resolved configuration of a ``cloud`` environment."""

    networking: Unrestricted | Limited
    packages: Packages


Config = Cloud | SelfHosted


class Environment(msgspec.Struct, tag="environment", kw_only=True):
    """The environment as the API shows it."""

    id: str
    name: str
    description: str | None
    config: Config
    scope: Scope
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


def check_scope(scope: Scope | None) -> None:
    """Refuse the scope ``account``, which needs accounts.

    Raises:
        InvalidRequest: the scope is ``account``.
    """
    if scope == "account":
        raise InvalidRequest('scope: "account" is not supported; use "organization"')


def merge_config(stored: Config | None, params: ConfigParams | None) -> Config:
    """The configuration after a create (``stored`` is None) or an update: absent and null fields stay.

    Raises:
        InvalidRequest: ``invalid_config_type_change``; a host that is no bare host; packages under
            limited networking that does not allow package managers.
    """
    if params is None:
        return stored or _cloud(None, CloudParams())
    match params:
        case SelfHosted():
            if isinstance(stored, Cloud):
                _refuse_change("cloud", "self_hosted")
            return SelfHosted()
        case CloudParams():
            if isinstance(stored, SelfHosted):
                _refuse_change("self_hosted", "cloud")
            return _cloud(stored if isinstance(stored, Cloud) else None, params)


def _refuse_change(old: str, new: str) -> None:
    raise InvalidRequest(
        f'config.type: cannot change from "{old}" to "{new}"; create another environment',
        error_code="invalid_config_type_change",
    )


def _cloud(stored: Cloud | None, params: CloudParams) -> Cloud:
    networking = _networking(stored.networking if stored else Unrestricted(), params.networking)
    packages = _packages(stored.packages if stored else None, params.packages)
    has_packages = any(getattr(packages, manager) for manager in MANAGERS)
    if isinstance(networking, Limited) and has_packages and not networking.allow_package_managers:
        raise InvalidRequest(
            "config.networking.allow_package_managers: must be true when packages are given "
            "under limited networking"
        )
    return Cloud(networking=networking, packages=packages)


def _networking(
    stored: Unrestricted | Limited, params: Unrestricted | LimitedParams | None
) -> Unrestricted | Limited:
    match params:
        case None:
            return stored
        case Unrestricted():
            return Unrestricted()
        case LimitedParams():
            before = (
                stored
                if isinstance(stored, Limited)
                else Limited(allowed_hosts=[], allow_mcp_servers=False, allow_package_managers=False)
            )
            hosts = before.allowed_hosts if params.allowed_hosts is None else params.allowed_hosts
            check_hosts(hosts, "config.networking.allowed_hosts", most=ALLOWED_HOSTS)
            return Limited(
                allowed_hosts=hosts,
                allow_mcp_servers=_kept(params.allow_mcp_servers, before.allow_mcp_servers),
                allow_package_managers=_kept(params.allow_package_managers, before.allow_package_managers),
            )


def _kept(new: bool | None, stored: bool) -> bool:
    return stored if new is None else new


def _packages(stored: Packages | None, params: PackagesParams | None) -> Packages:
    lists: dict[str, Any] = {}
    for manager in MANAGERS:
        new = getattr(params, manager) if params is not None else None
        lists[manager] = new if new is not None else (getattr(stored, manager) if stored is not None else [])
    return Packages(**lists)


def check_hosts(hosts: list[str], path: str, *, most: int) -> None:
    """Check a list of allowed hosts: bare names, IPv4 addresses, ``*.`` wildcards.

    Raises:
        InvalidRequest: there are too many, or one is something else; the message begins with the path.
    """
    if len(hosts) > most:
        raise InvalidRequest(f"{path}: at most {most} hosts")
    for index, host in enumerate(hosts):
        if len(host) > 253 or not _HOST.fullmatch(host):
            raise InvalidRequest(
                f'{path}[{index}]: "{host[:253]}" must be a bare host such as "api.example.com" or '
                '"*.example.com", without scheme, port or path'
            )


def host_allowed(host: str, allowed_hosts: list[str]) -> bool:
    """Whether a list of allowed hosts covers a host: exactly, or as a sub-domain of a ``*.`` entry."""
    wanted = host.lower().rstrip(".")
    for entry in allowed_hosts:
        rule = entry.lower()
        if wanted == rule or (rule.startswith("*.") and wanted.endswith(rule[1:])):
            return True
    return False


def limited_hosts(config: Mapping[str, Any]) -> list[str] | None:
    """The allowed hosts of an environment as it is kept; None where its networking is not ``limited``, or
    where its sandboxes are the client's.
    """
    parsed = msgspec.convert(config, Config)
    if not isinstance(parsed, Cloud) or not isinstance(parsed.networking, Limited):
        return None
    return parsed.networking.allowed_hosts


def check_reach(config: Config, agent: Mapping[str, Any]) -> None:
    """A session's agent must not name hosts that its environment's ``limited`` networking bars.

    ``agent`` is the session's snapshot (contract sections 5.2 and 7.2).

    Raises:
        InvalidRequest: an MCP server's host, or a domain that a web tool is narrowed to, is not allowed.
    """
    if not isinstance(config, Cloud) or not isinstance(config.networking, Limited):
        return
    hosts = config.networking.allowed_hosts
    snapshot = msgspec.convert(agent, SessionAgent)
    if not config.networking.allow_mcp_servers:
        for server in snapshot.mcp_servers:
            if not host_allowed(urlsplit(server.url).hostname or "", hosts):
                raise InvalidRequest(
                    f'agent.mcp_servers: the host of "{server.name}" is not in the environment\'s '
                    "allowed_hosts; add it there, or set allow_mcp_servers"
                )
    for tool in snapshot.tools:
        for entry in tool.configs if isinstance(tool, AgentToolset) else []:
            for domain in given(entry.allowed_domains, []):
                if not host_allowed(domain.partition("/")[0], hosts):
                    raise InvalidRequest(
                        f'agent.tools: "{domain}" in the allowed_domains of {entry.name} is not in the '
                        "environment's allowed_hosts"
                    )
