"""What a transcript is made of: an answer of the model's, and what the user's side says to it.

Also how a conversation of them is marked for the prompt cache, and from where on it may still change.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

Block = dict[str, Any]
Message = dict[str, Any]

_UNKNOWN_OUTCOME: Final = (
    "The outcome of this call is unknown: it was cut off before a result was recorded. It may or may not "
    "have taken effect; check before you repeat it."
)
MEDIA: Final = frozenset({"image", "document"})
_REFUSED: Final = "[Left out here: {type}. The model's API refused the request that held it.]"
_MARKS: Final = 2
"""The user messages that are marked for the prompt cache, from the last one on."""
UNCACHEABLE: Final = frozenset({"thinking", "redacted_thinking"})
"""Blocks that take no mark, and that may not end an answer."""


class Exchange(msgspec.Struct):
    """An assistant message (absent before the first) and the user's message that follows it."""

    blocks: list[Block] | None
    calls: dict[str, str]
    """Tool use ids of the model by event id, in the order of the calls."""
    results: dict[str, Block] = {}
    said: list[Block] = []
    system: list[Block] = []

    def leave_out_media(self) -> None:
        """Put a text in the place of each image and document of the user's message."""
        self.said = without_media(self.said)
        for model_id, result in self.results.items():
            self.results[model_id] = {**result, "content": without_media(result["content"])}

    def user_blocks(self) -> list[Block]:
        """The user's message, each call answered."""
        results = [
            self.results.get(model_id)
            or result_block(model_id, [{"type": "text", "text": _UNKNOWN_OUTCOME}], True)
            for model_id in self.calls.values()
        ]
        return [*results, *self.said]

    def messages(self) -> list[Message]:
        """What it comes to in a request."""
        messages: list[Message] = []
        if self.blocks is not None:
            messages.append({"role": "assistant", "content": self.blocks})
        if blocks := self.user_blocks():
            messages.append({"role": "user", "content": blocks})
            if self.system:
                messages.append({"role": "system", "content": self.system})
        return messages

    def unanswered(self) -> int:
        """How many of its calls have no result."""
        return sum(model_id not in self.results for model_id in self.calls.values())


def result_block(model_id: str, content: list[Block], is_error: bool) -> Block:
    """What answers a call."""
    return {"type": "tool_result", "tool_use_id": model_id, "content": content, "is_error": is_error}


def without_media(content: Iterable[Block]) -> list[Block]:
    """The blocks, with a text in the place of each image and document."""
    return [
        {"type": "text", "text": _REFUSED.format(type=block["type"])} if block["type"] in MEDIA else block
        for block in content
    ]


def first_marked(exchanges: Sequence[Exchange]) -> int:
    """The place of the exchange whose user message is the second but last, which is marked in a request."""
    spoken = 0
    for at in range(len(exchanges) - 1, -1, -1):
        spoken += bool(exchanges[at].user_blocks())
        if spoken == _MARKS:
            return at
    return 0


def with_cache_marks(messages: list[Message | msgspec.Raw]) -> list[Message | msgspec.Raw]:
    """Mark the last two user messages, so that this request reads what the one before it wrote."""
    marked = 0
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, msgspec.Raw) or marked == _MARKS:
            break
        if message["role"] != "user":
            continue
        content: list[Block] = message["content"]
        if content[-1]["type"] not in UNCACHEABLE:
            last = {**content[-1], "cache_control": {"type": "ephemeral"}}
            messages[at] = {"role": "user", "content": [*content[:-1], last]}
            marked += 1
    return messages
