"""What sessions and deployments show of what the server keeps as JSON (contract sections 8, 9, 19).

Like `corral.wire.shown_events`, these describe and nothing is built from them.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.agents import ExecutionIdentity, McpServer, ModelConfig
from corral.wire.session_resources import BranchCheckout, CommitCheckout
from corral.wire.sessions import CacheCreation, Money, ServerToolUse
from corral.wire.tools import Tool


class ShownFileResource(msgspec.Struct, tag="file", kw_only=True):
    """A file that a session finds mounted."""

    id: str
    file_id: str
    mount_path: str
    created_at: str
    updated_at: str


class ShownRepository(msgspec.Struct, tag="github_repository", kw_only=True):
    """A repository that a session finds cloned. Its token is never shown."""

    id: str
    url: str
    mount_path: str
    checkout: BranchCheckout | CommitCheckout | UnsetType | None = UNSET
    created_at: str
    updated_at: str


class ShownMemoryStore(msgspec.Struct, tag="memory_store", kw_only=True):
    """A memory store that a session finds mounted; name and description are those of its beginning."""

    memory_store_id: str
    access: Literal["read_write", "read_only"]
    instructions: str | None
    name: str
    description: str
    mount_path: str


ShownResource: TypeAlias = ShownFileResource | ShownRepository | ShownMemoryStore


class KeptFileResource(msgspec.Struct, tag="file", kw_only=True):
    """A file that a deployment's sessions will find mounted."""

    file_id: str
    mount_path: str | None


class KeptRepository(msgspec.Struct, tag="github_repository", kw_only=True):
    """A repository that a deployment's sessions will find cloned."""

    url: str
    mount_path: str | None
    checkout: BranchCheckout | CommitCheckout | None


class KeptMemoryStore(msgspec.Struct, tag="memory_store", kw_only=True):
    """A memory store that a deployment's sessions will find mounted."""

    memory_store_id: str
    access: Literal["read_write", "read_only"] | None
    instructions: str | None


KeptResource: TypeAlias = KeptFileResource | KeptRepository | KeptMemoryStore


class ThreadAgent(msgspec.Struct, tag="agent", kw_only=True):
    """The resolved agent of a thread."""

    id: str
    version: int
    name: str
    description: str | None
    model: ModelConfig
    system: str | None
    tools: list[Tool]
    mcp_servers: list[McpServer]
    skills: list[dict[str, Any]]
    execution_identity: ExecutionIdentity


class InlineThreadAgent(msgspec.Struct, tag="inline", kw_only=True):
    """The agent of a thread that was defined by the one that started it, and is not saved."""

    name: str
    description: str | None
    model: ModelConfig
    system: str | None
    tools: list[Tool]
    mcp_servers: list[McpServer]
    skills: list[dict[str, Any]]
    execution_identity: ExecutionIdentity


class ThreadUsage(msgspec.Struct, kw_only=True):
    """What a thread has consumed. ``input_tokens`` are the uncached ones."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation | None
    active_seconds: float
    list_cost: Money
    server_tool_use: ServerToolUse | UnsetType = UNSET
