"""How a run is recorded whose session was refused (contract section 19.3)."""

from typing import get_args

import pytest

from corral.wire.errors import ApiError, InvalidRequest, NotFound, RateLimited
from corral.wire.run_errors import PassingErrorType, PauseErrorType, pauses, run_error
from corral.wire.session_resources import refused_on_self_hosted


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotFound("not found", error_code="environment_not_found"), "environment_not_found_error"),
        (InvalidRequest("archived", error_code="environment_archived"), "environment_archived_error"),
        (InvalidRequest("Agent agent_1 is archived."), "agent_archived_error"),
        (NotFound("vault_ids[2]: vault v not found"), "vault_not_found_error"),
        (InvalidRequest("vault_ids[0]: vault v is archived"), "vault_archived_error"),
        (NotFound("resources[0].file_id: file f not found"), "file_not_found_error"),
        (InvalidRequest("initial_events[0].content[0].source.file_id: expired"), "file_not_found_error"),
        (NotFound("resources[1].memory_store_id: not found"), "session_resource_not_found_error"),
        (InvalidRequest("resources[1].memory_store_id: is archived"), "memory_store_archived_error"),
        (InvalidRequest("agent.skills[0]: no", error_code="skill_not_found"), "skill_not_found_error"),
        (InvalidRequest("agent.skills: need the read tool"), "session_creation_rejected_error"),
        (InvalidRequest("agent.mcp_servers: the host is not allowed"), "mcp_egress_blocked_error"),
        (refused_on_self_hosted("env_1"), "self_hosted_resources_unsupported_error"),
        (RateLimited("slow down"), "session_rate_limited_error"),
        (InvalidRequest("initial_events[0].content: too long"), "session_creation_rejected_error"),
        (InvalidRequest("a file_id: nobody knows"), "session_creation_rejected_error"),
    ],
)  # fmt: skip
def test_the_field_at_fault_tells_the_type_of_the_error(error: ApiError, expected: str) -> None:
    assert run_error(error, "env_1") == expected


def test_only_what_may_pass_by_itself_leaves_the_schedule_running() -> None:
    assert all(pauses(error) for error in get_args(PauseErrorType))
    assert not any(pauses(error) for error in get_args(PassingErrorType))
