"""Puts a streamed response together, block by block, so that each can be given back as it came.

Unknown block and delta types are kept, not interpreted (contract, messages-api.md: "Answers to be ready
for").
"""

import json
import re
from typing import Any, Final, cast

import msgspec

from corral.inference.provider import BlockStarted, ModelEvent, ModelFailed, ModelResponse, TextDelta

_INCOMPLETE: Final = "incomplete_tool_use"
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
        self._inputs: dict[int, list[str]] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""
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
                self._model = message.get("model", "")
                self._usage.update(message.get("usage") or {})
            case "content_block_start":
                return self._start(data["index"], dict(data["content_block"]))
            case "content_block_delta":
                return self._delta(data["index"], data["delta"])
            case "content_block_stop":
                self._close(data["index"])
            case "message_delta":
                self._stop_reason = data["delta"].get("stop_reason") or self._stop_reason
                self._stop_details = data["delta"].get("stop_details") or self._stop_details
                usage: dict[str, Any] = data.get("usage") or {}
                self._usage.update({name: count for name, count in usage.items() if count is not None})
            case "message_stop":
                self._finish()
                return self.response
            case "error":
                raise _failure(data.get("error") or {})
            case _:
                pass
        return None

    def _start(self, index: int, block: dict[str, Any]) -> ModelEvent:
        if index != len(self._blocks):
            raise ModelFailed("failed", "the model's stream skipped a content block", retryable=True)
        self._blocks.append(block)
        if "input" in block:
            self._inputs[index] = []
        return BlockStarted(index, str(block.get("type")))

    def _delta(self, index: int, delta: dict[str, Any]) -> ModelEvent | None:
        block = self._blocks[index]
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs[index].append(delta["partial_json"])
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        elif kind in _APPENDED:
            field = _APPENDED[kind]
            block[field] = block.get(field, "") + delta[field]
            if kind == "text_delta":
                return TextDelta(index, delta["text"])
        return None

    def _close(self, index: int) -> None:
        parts = self._inputs.pop(index, None)
        if not parts or not (text := "".join(parts)):
            return
        try:
            given = decoded(text)
        except msgspec.DecodeError:
            given = None
        if isinstance(given, dict):
            self._blocks[index]["input"] = given
        else:
            # Cut off at the output limit in the middle of the input: the call cannot be made.
            self._blocks[index]["type"] = _INCOMPLETE

    def _finish(self) -> None:
        content = [block for block in self._blocks if block.get("type") != _INCOMPLETE]
        if self._stop_reason is None:
            raise ModelFailed("failed", "the model's stream ended without a stop reason", retryable=True)
        if len(content) < len(self._blocks) and self._stop_reason == "tool_use":
            raise ModelFailed("failed", "the input of a tool call is not a JSON object", retryable=True)
        ids = [block["id"] for block in content if block.get("type") == "tool_use"]
        if len(set(ids)) < len(ids):
            raise ModelFailed("failed", "two tool calls of one answer have the same id", retryable=True)
        self.response = ModelResponse(
            content, self._stop_reason, self._usage, self._model, self._stop_details
        )


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
    return ModelFailed("failed", message, retryable=kind != "invalid_request_error")
