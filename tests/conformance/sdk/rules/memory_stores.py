"""Memory stores, memories and their versions."""

from typing import Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules, as_it_is
from tests.conformance.sdk.workshop import Made, Workshop


async def store(asked: Asked, at: Workshop) -> None:
    """A store to look at, to change, to archive, to delete, or to write to."""
    asked.params["memory_store_id"] = (await at.memory_store())["id"]


async def listed(asked: Asked, at: Workshop) -> None:
    """Two stores, so that there is a second page."""
    for _ in range(2):
        await at.memory_store()


async def new_memory(asked: Asked, at: Workshop) -> None:
    """A store to write to. Older SDKs' tests name a path that is none."""
    await store(asked, at)
    _root_path(asked)


async def memory(asked: Asked, at: Workshop) -> None:
    """A memory; what the request says about its content becomes true."""
    _root_path(asked)
    made = await _memory(asked, at)
    asked.params["memory_id"] = made["id"]
    if asked.has("expected_content_sha256"):
        asked.put("expected_content_sha256", made["content_sha256"])
    if asked.body and asked.body.get("precondition"):
        asked.body["precondition"]["content_sha256"] = made["content_sha256"]


async def listed_memories(asked: Asked, at: Workshop) -> None:
    """A store with two memories in one folder."""
    await _memory(asked, at)
    await at.memory(asked.params["memory_store_id"], "/notes/second.md")
    if asked.has("path_prefix"):
        asked.put("path_prefix", "/notes/")


async def old_version(asked: Asked, at: Workshop) -> None:
    """The first version of a memory that has a second: the latest cannot be redacted."""
    made = await _changed(asked, at)
    asked.params["memory_version_id"] = made["memory_version_id"]


async def listed_versions(asked: Asked, at: Workshop) -> None:
    """A memory of two versions, asked for by everything that a filter can name."""
    made = await _changed(asked, at)
    if asked.has("memory_id"):
        asked.put("memory_id", made["id"])
    if asked.has("session_id"):
        asked.put("session_id", (await at.session())["id"])
    # Ids of the server's own administration; nothing in the public API makes them.
    asked.drop("api_key_id", "service_account_id")


def _root_path(asked: Asked) -> None:
    if asked.body and asked.body.get("path") == "xx":
        asked.body["path"] = "/xx"


async def _memory(asked: Asked, at: Workshop) -> Made:
    await store(asked, at)
    return await at.memory(asked.params["memory_store_id"])


async def _changed(asked: Asked, at: Workshop) -> Made:
    """The memory as it was before its second version."""
    first = await _memory(asked, at)
    store_id = asked.params["memory_store_id"]
    await at.api.post(f"/v1/memory_stores/{store_id}/memories/{first['id']}", {"content": "Use blanks."})
    return first


_ONE: Final = "/v1/memory_stores/{memory_store_id}"
_MEMORY: Final = _ONE + "/memories/{memory_id}"
_VERSION: Final = _ONE + "/memory_versions/{memory_version_id}"

RULES: Final[Rules] = {
    "POST /v1/memory_stores": as_it_is,
    "GET /v1/memory_stores": listed,
    f"GET {_ONE}": store,
    f"POST {_ONE}": store,
    f"DELETE {_ONE}": store,
    f"POST {_ONE}/archive": store,
    f"POST {_ONE}/memories": new_memory,
    f"GET {_ONE}/memories": listed_memories,
    f"GET {_MEMORY}": memory,
    f"POST {_MEMORY}": memory,
    f"DELETE {_MEMORY}": memory,
    f"GET {_ONE}/memory_versions": listed_versions,
    f"GET {_VERSION}": old_version,
    f"POST {_VERSION}/redact": old_version,
}
