"""Sessions, their events, threads and resources."""

from typing import Any, Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules
from tests.conformance.sdk.rules.agents import with_mcp_toolsets
from tests.conformance.sdk.workshop import Made, Workshop

# Below what the tests raise it to: a budget can only be raised, and only where there was one (contract 8.6).
_BUDGET: Final[dict[str, Any]] = {"type": "limit", "max_list_cost": {"amount": "1000", "currency": "USD"}}
_REPOSITORY: Final[dict[str, Any]] = {
    "type": "github_repository",
    "url": "https://github.com/octocat/Hello-World",
    "authorization_token": "ghp_first",
}
_RUNS_A_TOOL: Final = "Please run `echo hello` and tell me what it says."


async def create(asked: Asked, at: Workshop) -> None:
    """An agent, an environment, and whatever else the body names."""
    asked.fields["agent"] = (await at.agent())["id"]
    asked.fields["environment_id"] = (await at.environment())["id"]
    await attachments(asked.fields, at)


async def attachments(fields: dict[str, Any], at: Workshop) -> None:
    """The files and vaults that a session's, or a deployment's, body names."""
    resources: list[dict[str, Any]] = fields.get("resources") or []
    for resource in resources:
        if resource["type"] == "file":
            resource["file_id"] = (await at.file())["id"]
    if fields.get("vault_ids"):
        fields["vault_ids"] = [(await at.vault())["id"] for _ in fields["vault_ids"]]


async def existing(asked: Asked, at: Workshop) -> None:
    """An idle session with a finished turn, to look at, to archive or to delete."""
    asked.params["session_id"] = (await at.worked_session())["id"]


async def update(asked: Asked, at: Workshop) -> None:
    """An idle session to change; with a budget if the change raises one."""
    budget = {"budget": _BUDGET} if asked.body and asked.body.get("budget") else {}
    asked.params["session_id"] = (await at.session(**budget))["id"]
    if asked.body:
        # Reserved, and refused whatever it holds (contract 8.5).
        asked.body.pop("vault_ids", None)
        with_mcp_toolsets(asked.body.get("agent") or {})


async def listed(asked: Asked, at: Workshop) -> None:
    """Two sessions to find, by all that the query asks for."""
    fields: dict[str, Any] = {}
    if asked.has("agent_id"):
        fields["agent"] = (await at.agent())["id"]
        asked.put("agent_id", fields["agent"])
    if asked.has("memory_store_id"):
        store = await at.memory_store()
        fields["resources"] = [{"type": "memory_store", "memory_store_id": store["id"]}]
        asked.put("memory_store_id", store["id"])
    if asked.has("deployment_id"):
        asked.put("deployment_id", (await at.deployment())["id"])
    for _ in range(2):
        await at.session(**fields)


async def events(asked: Asked, at: Workshop) -> None:
    """A session whose log has a tool call and its result in it."""
    asked.params["session_id"] = (await at.worked_session(_RUNS_A_TOOL))["id"]


async def untouched(asked: Asked, at: Workshop) -> None:
    """A session to send events to, or to follow."""
    asked.params["session_id"] = (await at.session())["id"]


async def thread(asked: Asked, at: Workshop) -> None:
    """The primary thread of a session with a finished turn."""
    await existing(asked, at)
    await _primary(asked, at)


async def thread_events(asked: Asked, at: Workshop) -> None:
    """As `thread`, with a tool call in it."""
    await events(asked, at)
    await _primary(asked, at)


async def thread_stream(asked: Asked, at: Workshop) -> None:
    """A thread to follow."""
    await untouched(asked, at)
    await _primary(asked, at)


async def child_thread(asked: Asked, at: Workshop) -> None:
    """A thread that can be archived: one that the session's agent has started for another agent."""
    session_id, thread_id = await at.delegated_session()
    asked.params |= {"session_id": session_id, "thread_id": thread_id}


async def _primary(asked: Asked, at: Workshop) -> None:
    asked.params["thread_id"] = await at.primary_thread(asked.params["session_id"])


async def add_resource(asked: Asked, at: Workshop) -> None:
    """A session and a file to add to it."""
    await untouched(asked, at)
    asked.fields["file_id"] = (await at.file())["id"]


async def file_resource(asked: Asked, at: Workshop) -> None:
    """A session with a file, to look at or to take away."""
    session = await _with_files(at, 1)
    _name(asked, session)


async def listed_resources(asked: Asked, at: Workshop) -> None:
    """A session with two files, so that there is a second page."""
    asked.params["session_id"] = (await _with_files(at, 2))["id"]


async def repository_resource(asked: Asked, at: Workshop) -> None:
    """A session with a repository, whose token the request renews."""
    _name(asked, await at.session(resources=[_REPOSITORY]))


async def _with_files(at: Workshop, count: int) -> Made:
    files = [{"type": "file", "file_id": (await at.file())["id"]} for _ in range(count)]
    return await at.session(resources=files)


def _name(asked: Asked, session: Made) -> None:
    asked.params["session_id"] = session["id"]
    asked.params["resource_id"] = session["resources"][0]["id"]


_ONE: Final = "/v1/sessions/{session_id}"
_RESOURCE: Final = _ONE + "/resources/{resource_id}"
_THREAD: Final = _ONE + "/threads/{thread_id}"

RULES: Final[Rules] = {
    "POST /v1/sessions": create,
    "GET /v1/sessions": listed,
    f"GET {_ONE}": existing,
    f"POST {_ONE}": update,
    f"DELETE {_ONE}": existing,
    f"POST {_ONE}/archive": existing,
    f"GET {_ONE}/events": events,
    f"POST {_ONE}/events": untouched,
    f"GET {_ONE}/events/stream": untouched,
    f"GET {_ONE}/threads": existing,
    f"GET {_THREAD}": thread,
    f"POST {_THREAD}/archive": child_thread,
    f"GET {_THREAD}/events": thread_events,
    f"GET {_THREAD}/stream": thread_stream,
    f"GET {_ONE}/resources": listed_resources,
    f"POST {_ONE}/resources": add_resource,
    f"GET {_RESOURCE}": file_resource,
    f"POST {_RESOURCE}": repository_resource,
    f"DELETE {_RESOURCE}": file_resource,
}
