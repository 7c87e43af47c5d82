"""Compaction: when a conversation nears its model's limit, a summary takes the place of its beginning.

The summary is a model request of its own, made between two steps of the agent, when no call is open. As a
rule it is the next request with an instruction in place of the work, so that the provider's cache serves it;
if that does not fit, it is made from a digest of the conversation, which always does. The log is untouched:
an `agent.thread_context_compacted` event keeps in its private part what the transcript needs, so that every
replay gives the same conversation (contract section 13, docs/context.md).
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from corral.brain import emit
from corral.brain.settled import decoded
from corral.brain.voice import Voice
from corral.inference.provider import ModelRequest, ModelResponse
from corral.session.events import NewEvent
from corral.session.thread_state import COMPACTION, ThreadState
from corral.wire.model_table import ModelCapabilities

PROMPT_VERSION: Final = 1
"""Of `compaction_prompt.md`; in the log with every summary that was made by it."""

_KEPT_PART: Final = 0.1
"""The part of the context that the latest steps may fill, which stay as they are."""
_TOKEN_CHARACTERS: Final = 3
"""Characters that a token is taken for where it must not be too few."""
_DIGEST_PART: Final = 0.5
_DIGEST_BLOCK: Final = 4_000
_LEFT_OUT: Final = "\n\n[... a part of the conversation is left out here ...]\n\n"
_SYSTEM: Final = (
    "You write the notes from which an agent carries on its work. You get a digest of what was said."
)

Block = dict[str, Any]
Message = dict[str, Any]


class Cut(msgspec.Struct, frozen=True):
    """What of a conversation stays beside the summary."""

    kept: int
    """So many of the model's latest answers, each with the results of its calls."""
    said_characters: int | None = None
    """What is shown of the words that wait for an answer, where they alone are too long."""


def cut_for(thread: ThreadState, sizes: Sequence[int], can: ModelCapabilities) -> Cut:
    """Where to cut. `sizes` are the characters of each answer with its results, in order.

    After a request that was too long nothing is spared.
    """
    most = int(can.context * _KEPT_PART) * _TOKEN_CHARACTERS
    if thread.overflowed or thread.compactions:
        return Cut(0, 2 * most)
    kept = 0
    for size in reversed(sizes):
        most -= size
        if most < 0:
            break
        kept += 1
    return Cut(min(kept, max(0, len(sizes) - 1)))


def needs_digest(thread: ThreadState) -> bool:
    """Whether the whole conversation would not fit into the request that sums it up, or has not helped."""
    return thread.overflowed or thread.compactions > 0


def summary_request(request: ModelRequest, can: ModelCapabilities, *, digest: bool) -> ModelRequest:
    """The request for a summary of the conversation that `request` would go on with."""
    asked: Block = {"type": "text", "text": prompt()}
    if digest:
        text = _digest(decoded(request.messages), int(can.context * _DIGEST_PART) * (_TOKEN_CHARACTERS - 1))
        content: list[Block] = [{"type": "text", "text": text}, asked]
        return msgspec.structs.replace(
            request,
            messages=[{"role": "user", "content": content}],
            system=[{"type": "text", "text": _SYSTEM}],
            tools=[],
        )
    *before, last = request.messages
    assert not isinstance(last, msgspec.Raw), "what comes last is never settled"
    if last["role"] != "user":
        return msgspec.structs.replace(
            request, messages=[*request.messages, {"role": "user", "content": [asked]}]
        )
    asking = {"role": "user", "content": [*last["content"], asked]}
    return msgspec.structs.replace(request, messages=[*before, asking])


@cache
def prompt() -> str:
    """What the model is asked for."""
    return files("corral.brain").joinpath("compaction_prompt.md").read_text("utf-8").strip()


def start(voice: Voice) -> NewEvent:
    """The start of the request."""
    return voice.event("span.model_request_start", private={"purpose": COMPACTION})


def finished(voice: Voice, start_id: str, answer: ModelResponse, cut: Cut) -> list[NewEvent]:
    """What the answer writes: the end of the request, and the compaction, unless there is no summary."""
    texts = [str(block["text"]) for block in answer.content if block.get("type") == "text"]
    summary = "\n\n".join(text for text in texts if text.strip())
    end = emit.answered_request(
        voice, start_id, answer, {"outcome": COMPACTION, "stop_reason": answer.stop_reason}
    )
    if not summary or answer.stop_reason == "refusal":
        return [end]
    kept = {
        "summary": summary,
        "kept": cut.kept,
        "said_characters": cut.said_characters,
        "prompt_version": PROMPT_VERSION,
    }
    return [end, voice.event("agent.thread_context_compacted", private=kept)]


def _digest(messages: Sequence[Message], most: int) -> str:
    """The conversation in words, long blocks shortened, and of too many the middle left out."""
    parts = [f"{message['role']}: {_words(block)}" for message in messages for block in message["content"]]
    text = "\n\n".join(parts)
    if len(text) <= most:
        return text
    return text[: most // 3] + _LEFT_OUT + text[-(2 * most // 3) :]


def _words(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return _short(str(block["text"]))
        case "tool_use":
            return _short(f"[calls {block['name']}] {json.dumps(block.get('input'), ensure_ascii=False)}")
        case "tool_result":
            return f"[result] {_short(' '.join(_words(inner) for inner in block['content']))}"
        case kind:
            return f"[{kind}]"


def _short(text: str) -> str:
    if len(text) <= _DIGEST_BLOCK:
        return text
    return f"{text[: _DIGEST_BLOCK // 2]} [...] {text[-_DIGEST_BLOCK // 2 :]}"
