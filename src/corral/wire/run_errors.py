"""Why a run of a deployment made no session, in the words of the API (contract section 19.3)."""

from typing import Final, Literal, TypeGuard, get_args

from corral.wire.errors import ApiError, InvalidRequest, NotFound, RateLimited
from corral.wire.session_resources import refused_on_self_hosted

PauseErrorType = Literal[
    "environment_archived_error",
    "agent_archived_error",
    "environment_not_found_error",
    "vault_not_found_error",
    "vault_archived_error",
    "file_not_found_error",
    "memory_store_archived_error",
    "skill_not_found_error",
    "session_resource_not_found_error",
    "workspace_archived_error",
    "organization_disabled_error",
    "self_hosted_resources_unsupported_error",
    "mcp_egress_blocked_error",
    "unknown_error",
]
# The next run may fare better after these, so the schedule goes on.
PassingErrorType = Literal["session_rate_limited_error", "session_creation_rejected_error"]
RunErrorType = PauseErrorType | PassingErrorType

_PAUSING: Final[frozenset[str]] = frozenset(get_args(PauseErrorType))

# Every refusal names the field at fault, so the field says what was wrong: by the words that its path holds,
# the first that fits. Of the two types the first is for what does not exist, the second for any other fault.
_BY_FIELD: Final[tuple[tuple[str, RunErrorType, RunErrorType], ...]] = (
    ("vault_ids", "vault_not_found_error", "vault_archived_error"),
    ("memory_store_id", "session_resource_not_found_error", "memory_store_archived_error"),
    ("file_id", "file_not_found_error", "file_not_found_error"),
    ("skill", "skill_not_found_error", "session_creation_rejected_error"),
    ("agent.mcp_servers", "session_creation_rejected_error", "mcp_egress_blocked_error"),
    ("resources", "session_resource_not_found_error", "session_creation_rejected_error"),
)
_BY_CODE: Final[dict[str, RunErrorType]] = {
    "environment_not_found": "environment_not_found_error",
    "environment_archived": "environment_archived_error",
    "skill_not_found": "skill_not_found_error",
}


def run_error(error: ApiError, environment_id: str) -> RunErrorType:
    """The type that the run is recorded with whose session was refused with `error`."""
    if isinstance(error, RateLimited):
        return "session_rate_limited_error"
    known = _BY_CODE.get(str(error.details.get("error_code")))
    if known is not None:
        return known
    if error.message == refused_on_self_hosted(environment_id).message:
        return "self_hosted_resources_unsupported_error"
    if error.message.startswith("Agent ") and error.message.endswith(" is archived."):
        return "agent_archived_error"
    field = error.message.partition(": ")[0]
    if isinstance(error, InvalidRequest | NotFound) and " " not in field:
        for word, missing, unfit in _BY_FIELD:
            if word in field:
                return missing if isinstance(error, NotFound) else unfit
    return "session_creation_rejected_error"


def pauses(error: RunErrorType) -> TypeGuard[PauseErrorType]:
    """Whether the schedule stops after a run that failed so."""
    return error in _PAUSING
