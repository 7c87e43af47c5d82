"""The ``anthropic-beta`` header: ignored by default, judged in strict mode (contract section 2.1)."""

from typing import Final

from starlette.datastructures import Headers

from corral.wire.errors import InvalidRequest, NotFound

REQUIRED: Final = "managed-agents-2026-04-01"
MEMORY: Final = "agent-memory-2026-07-22"
DREAMING: Final = "dreaming-2026-04-21"
KNOWN: Final = frozenset(
    {
        REQUIRED,
        MEMORY,
        DREAMING,
        "mcp-tunnels-2026-06-22",
        "user-profiles-2026-03-24",
        "user-profiles-2026-08-18",
        "user-profiles-2026-09-04",
        "files-api-2025-04-14",
        "skills-2025-10-02",
    }
)


def check_beta(headers: Headers, path: str) -> None:
    """Require the header that the API family needs, and no value that nobody knows.

    Raises:
        NotFound: the required value is missing.
        InvalidRequest: a value is unknown, or two exclude each other.
    """
    sent = [value.strip() for line in headers.getlist("anthropic-beta") for value in line.split(",")]
    for value in sent:
        if value and value not in KNOWN:
            raise InvalidRequest(f"Unexpected value(s) `{value[:100]}` for the `anthropic-beta` header")
    if path.startswith("/v1/memory_stores"):
        # Newer clients send the one, older ones the other.
        if REQUIRED in sent and MEMORY in sent:
            raise InvalidRequest(
                f"The `anthropic-beta` header must not hold both `{REQUIRED}` and `{MEMORY}`"
            )
        if MEMORY in sent:
            return
    if path.startswith(("/v1/files", "/v1/models", "/v1/skills", "/v1/user_profiles")):
        return  # out of beta: clients send nothing, or what they sent before
    if path.startswith("/v1/dreams"):
        if DREAMING not in sent:
            raise NotFound("not found")
        return
    if REQUIRED not in sent:
        raise NotFound("not found")
