"""What a credential reaches: a foreign environment, work item or session reads as if it did not exist."""

from corral.api.call import Call
from corral.api.principals import ApiKey, EnvironmentKey, PoolKey, WorkToken
from corral.session.shown import Row, not_found
from corral.wire.environments import Cloud, Environment
from corral.wire.errors import NotFound


async def environment_of(call: Call, environment_id: str) -> Environment:
    """An environment that the caller reaches.

    Raises:
        NotFound: there is none, or not for this caller.
    """
    match call.principal:
        case EnvironmentKey(environment_id=own) if own != environment_id:
            raise _foreign(environment_id)
        case WorkToken(claim=claim) if claim.environment_id != environment_id:
            raise _foreign(environment_id)
        case _:
            environment = await call.services.environments.retrieve(environment_id)
    if isinstance(call.principal, PoolKey) and not isinstance(environment.config, Cloud):
        raise _foreign(environment_id)
    return environment


async def work_environment(call: Call) -> str:
    """The environment in a work route's path, checked against the caller.

    Raises:
        NotFound: there is none, or not for this caller.
    """
    environment_id = call.params["environment_id"]
    work_id = call.params.get("work_id")
    match call.principal:
        case ApiKey():
            pass
        case EnvironmentKey(environment_id=own):
            if own != environment_id:
                raise _foreign(environment_id)
        case PoolKey():
            await environment_of(call, environment_id)
        case WorkToken(claim=claim):
            if (claim.environment_id, claim.work_id) != (environment_id, work_id):
                raise NotFound(f"Work item {work_id} not found.")
    return environment_id


async def session_of(call: Call) -> str:
    """The session in the path, checked against the caller; what it is not known by is not looked up.

    Raises:
        NotFound: there is none, or not for this caller.
    """
    session_id = call.params["session_id"]
    match call.principal:
        case ApiKey():
            pass
        case WorkToken(claim=claim):
            if claim.session_id != session_id:
                raise not_found(session_id)
        case EnvironmentKey() | PoolKey():
            await session_row(call)
    return session_id


async def session_row(call: Call) -> Row:
    """The row of the session in the path, checked against the caller.

    Raises:
        NotFound: there is none, or not for this caller.
    """
    session_id = call.params["session_id"]
    row = await call.services.sessions.records.retrieve(session_id)
    match call.principal:
        case ApiKey():
            reached = True
        case WorkToken(claim=claim):
            reached = claim.session_id == session_id
        case EnvironmentKey(environment_id=own):
            reached = row["environment_id"] == own
        case PoolKey():
            environment = await call.services.environments.retrieve(row["environment_id"])
            reached = isinstance(environment.config, Cloud)
    if not reached:
        raise not_found(session_id)
    return row


def _foreign(environment_id: str) -> NotFound:
    return NotFound(f"Environment {environment_id} not found.", error_code="environment_not_found")
