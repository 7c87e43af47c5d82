"""Parts of requests to the Messages API, for tests of what the scripted model takes."""

from typing import Any

from corral.testing.signing import sign

TEXT = {"type": "text", "text": "hello"}
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
TOOL: dict[str, Any] = {"name": "bash", "input_schema": {"type": "object", "properties": {}}}
MODEL = "claude-opus-5-5"
OLD = "claude-haiku-4-5"


def use(call: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "bash", "input": {}, **fields}


def result(call: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": "done", **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": list(messages) or [user(TEXT)], **fields}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in body().items() if key != name}


def thinking(text: str = "hm", model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": sign("thinking", model, text), **fields}


def loop(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return body(user(TEXT), assistant(*blocks), user(result()), **fields)


ENABLED = {"type": "enabled", "budget_tokens": 1024}
ASKED = user(TEXT)
