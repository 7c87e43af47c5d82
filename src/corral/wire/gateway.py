"""What servers and the gateway say to each other: not part of the public contract.

Every request carries a grant (`corral.vault.grants`) as bearer token; the session or credential that it is
about follows from the grant alone.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec

TOOLS_PATH: Final = "/corral/gateway/v1/mcp/tools"
CALL_PATH: Final = "/corral/gateway/v1/mcp/call"
CANCEL_PATH: Final = "/corral/gateway/v1/mcp/cancel"
VALIDATE_PATH: Final = "/corral/gateway/v1/validate"
HEALTH_PATH: Final = "/healthz"

FailureType: TypeAlias = Literal["mcp_authentication_failed_error", "mcp_connection_failed_error"]
"""The session errors that a failure becomes (contract section 5.3)."""


class GatewayUnavailable(Exception):
    """The gateway does not answer, or not as it should; the message says how."""


class NotGranted(GatewayUnavailable):
    """The gateway does not accept the grant: it has run out, or the session is another brain's."""


class Failure(msgspec.Struct, frozen=True):
    """An MCP server could not be used; the message says why and holds no secret."""

    type: FailureType
    message: str


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its MCP server describes it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    repeatable: bool = False
    """The server says that a second call changes nothing: it reads only, or is idempotent."""


class ToolsRequest(msgspec.Struct, kw_only=True):
    """Asks for the tools of a server of the session's agent, or of that of a child thread."""

    server_name: str
    thread_id: str | None = None


def listing_key(server_name: str, url: str, *, child: bool) -> str:
    """The name under which a server's tools are kept for a session.

    Agents of child threads may know other servers by the names that the session's agent has for its own.
    """
    return f"{server_name}@{url}" if child else server_name


class ToolsAnswer(msgspec.Struct, kw_only=True):
    """The tools, or why there are none."""

    tools: list[Tool] = []
    failure: Failure | None = None


class CallRequest(msgspec.Struct, kw_only=True):
    """Asks for the call that a tool use of the session is about, of an MCP tool or of a web tool: the log
    says which.

    The same event again gives the same outcome, and no second call.
    """

    event_id: str


class CallOutcome(msgspec.Struct, kw_only=True):
    """What came of a call: the content of a result event, and the failure if the server could not be used.

    usage: what it adds to the session's, by the names of its counts.
    """

    content: list[dict[str, Any]]
    is_error: bool
    failure: Failure | None = None
    usage: dict[str, int] = {}


class CancelRequest(msgspec.Struct, kw_only=True):
    """The call is no longer wanted."""

    event_id: str


class HttpResponse(msgspec.Struct, kw_only=True):
    """An answer that a validation has met (contract section 15.4)."""

    status_code: int
    content_type: str
    body: str
    body_truncated: bool


class Probe(msgspec.Struct, kw_only=True):
    """The step of a validation that failed."""

    method: str
    http_response: HttpResponse | None


class Refreshed(msgspec.Struct, kw_only=True):
    """What came of a refresh; the answer only where the token endpoint refused."""

    status: Literal["succeeded", "failed", "connect_error", "no_refresh_token"]
    http_response: HttpResponse | None = None


class Validation(msgspec.Struct, tag="vault_credential_validation", kw_only=True):
    """The answer of ``mcp_oauth_validate`` (contract section 15.4)."""

    credential_id: str
    vault_id: str
    validated_at: str
    has_refresh_token: bool
    status: Literal["valid", "invalid", "unknown"]
    mcp_probe: Probe | None
    refresh: Refreshed | None
