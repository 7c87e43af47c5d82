"""What the model is told of its memory stores (contract section 16.4)."""

from typing import Any

from corral.brain.toolset import system_prompt
from corral.wire.memory_stores import MountedStore

_TOOLS: dict[str, Any] = {
    "type": "agent_toolset_20260401",
    "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
    "configs": list[Any](),
}
AGENT: Any = {"system": "Be brief.", "tools": [_TOOLS]}


def store(**fields: Any) -> MountedStore:
    given: dict[str, Any] = {
        "memory_store_id": "memstore_1",
        "access": "read_write",
        "instructions": None,
        "name": "Notes",
        "description": "",
        "mount_path": "/mnt/memory/notes",
        **fields,
    }
    return MountedStore(**given)


def told(*stores: MountedStore, agent: Any = AGENT) -> str:
    return "\n".join(block["text"] for block in system_prompt(agent, self_hosted=False, memory=stores))


def test_every_store_is_told_of_with_all_that_was_said_about_it() -> None:
    text = told(
        store(description="Per-user.", instructions="Check first."),
        store(name="Rules", mount_path="/mnt/memory/rules", access="read_only"),
    )
    for part in ("/mnt/memory/notes", "'Notes'", "Per-user.", "Check first.", "/mnt/memory/rules", "'Rules'"):
        assert part in text
    notes, _, rules = text.partition("/mnt/memory/rules")
    assert "change its files" in notes
    assert "cannot be changed" in rules


def test_without_stores_or_tools_nothing_is_said_of_memory() -> None:
    assert "/mnt/memory" not in told()
    assert "/mnt/memory" not in told(store(), agent={"system": None, "tools": []})
