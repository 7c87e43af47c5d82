"""Puts a streamed response together, block by block, so that each can be given back as it came.

Unknown block and delta types are kept, not interpreted (contract, messages-api.md: "Answers to be ready
for"). Servers other than the Claude API speak dialects of the same stream: blocks are known by the index that
they came with, whatever its order; an answer may lack its start or its stop reason, a block its end, a call
its input.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from corral.inference.provider import (
    BlockStarted,
    ModelEvent,
    ModelFailed,
    ModelResponse,
    TextDelta,
    is_overflow,
)

_INCOMPLETE: Final = "incomplete_tool_use"
_CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_LASTING: Final = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "exceed_context_size_error",
    }
)
"""Errors that the same request would meet again. The last is llama.cpp's: the conversation is too long."""
_REFUSED: Final = frozenset({"invalid_request_error", "request_too_large"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_APPENDED: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


class Assembler:
    """Feed it the decoded ``data`` of each server-sent event; it says what to pass on."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._positions: dict[int, int] = {}
        self._inputs: dict[int, list[str]] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._ending = False
        self._stop_reason: str | None = None
        self._stop_details: dict[str, Any] | None = None
        self.response: ModelResponse | None = None
        """The finished response, once ``message_stop`` has come."""

    def feed(self, data: dict[str, Any]) -> ModelEvent | None:
        """Take one event in.

        Raises:
            ModelFailed: the stream holds an error event, or is not a Messages API stream.
        """
        match data.get("type"):
            case "message_start":
                message = data["message"]
                self._model = message.get("model") or ""
                self._count(message.get("usage"))
            case "content_block_start":
                return self._start(data["index"], dict(data["content_block"]))
            case "content_block_delta":
                return self._delta(self._positions[data["index"]], data["delta"])
            case "content_block_stop":
                if (position := self._positions.get(data["index"])) is not None:
                    self._close(position)
            case "message_delta":
                self._ending = True
                self._stop_reason = data["delta"].get("stop_reason") or self._stop_reason
                self._stop_details = data["delta"].get("stop_details") or self._stop_details
                self._count(data.get("usage"))
            case "message_stop":
                self._finish()
                return self.response
            case "error":
                raise _failure(data.get("error") or {})
            case _:
                pass
        return None

    def _count(self, usage: Mapping[str, Any] | None) -> None:
        """Counts are cumulative. Some servers know the input at the start and send 0 or null at the end,
        others the reverse: a count that says nothing replaces none."""
        for name, count in (usage or {}).items():
            if count or self._usage.get(name) is None:
                self._usage[name] = count

    def _start(self, index: int, block: dict[str, Any]) -> ModelEvent | None:
        if index in self._positions:
            return self._start_again(self._blocks[self._positions[index]], block)
        position = self._positions[index] = len(self._blocks)
        self._blocks.append(block)
        if block.get("type") in _CALLS:
            block["input"] = block.get("input") or {}
            self._inputs[position] = []
        if block.get("type") == "text" and block.get("text"):
            return TextDelta(position, block["text"])
        return BlockStarted(position, str(block.get("type")))

    def _start_again(self, known: dict[str, Any], block: dict[str, Any]) -> None:
        """llama.cpp announces a block anew when the last piece of its answer goes on with it."""
        if (known.get("type"), known.get("id")) != (block.get("type"), block.get("id")):
            raise ModelFailed("failed", "two blocks of the answer have the same index", retryable=True)

    def _delta(self, position: int, delta: dict[str, Any]) -> ModelEvent | None:
        block = self._blocks[position]
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs.setdefault(position, []).append(delta["partial_json"])
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        elif kind in _APPENDED:
            field = _APPENDED[kind]
            block[field] = (block.get(field) or "") + delta[field]
            if kind == "text_delta":
                return TextDelta(position, delta["text"])
        return None

    def _close(self, position: int) -> None:
        parts = self._inputs.pop(position, None)
        if not parts or not (text := "".join(parts)):
            return
        try:
            given = decoded(text)
        except msgspec.DecodeError:
            given = None
        if isinstance(given, dict):
            self._blocks[position]["input"] = given
        else:
            # Cut off at the output limit in the middle of the input: the call cannot be made.
            self._blocks[position]["type"] = _INCOMPLETE

    def _implied_stop_reason(self) -> str:
        """For an answer that ends properly but does not say why, as Ollama's may."""
        return "tool_use" if any(block.get("type") == "tool_use" for block in self._blocks) else "end_turn"

    def _finish(self) -> None:
        for position in list(self._inputs):
            self._close(position)
        content = [block for block in self._blocks if block.get("type") != _INCOMPLETE]
        if not self._ending:
            raise ModelFailed("failed", "the model's stream ended without a stop reason", retryable=True)
        stop_reason = self._stop_reason or self._implied_stop_reason()
        if len(content) < len(self._blocks) and stop_reason == "tool_use":
            raise ModelFailed("failed", "the input of a tool call is not a JSON object", retryable=True)
        ids = [block["id"] for block in content if block.get("type") == "tool_use"]
        if len(set(ids)) < len(ids):
            raise ModelFailed("failed", "two tool calls of one answer have the same id", retryable=True)
        self.response = ModelResponse(content, stop_reason, self._usage, self._model, self._stop_details)


def decoded(text: str | bytes) -> Any:
    """What the JSON `text` says. Gateways cut text in the middle of a character: an unpaired surrogate
    becomes U+FFFD.

    Raises:
        msgspec.DecodeError: it is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        try:
            loose = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error
        return msgspec.json.decode(json.dumps(_without_surrogates(loose)))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {_without_surrogates(name): _without_surrogates(item) for name, item in fields.items()}
    return value


def _failure(error: dict[str, Any]) -> ModelFailed:
    kind = error.get("type")
    message = str(error.get("message") or kind or "the model failed")
    if kind == "overloaded_error":
        return ModelFailed("overloaded", message, retryable=True)
    if kind == "rate_limit_error":
        return ModelFailed("rate_limited", message, retryable=True)
    return ModelFailed(
        "failed",
        message,
        retryable=kind not in _LASTING,
        refused=kind in _REFUSED,
        overflow=is_overflow(f"{kind}: {message}"),
    )
