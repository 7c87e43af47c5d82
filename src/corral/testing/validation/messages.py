"""The `messages` and `system` of a request: roles, order and content."""

from __future__ import annotations

from typing import Any

from corral.testing.refusal import Refused
from corral.testing.validation.blocks import (
    ASSISTANT_BLOCKS,
    USER_BLOCKS,
    Shape,
    check_block,
    filled_text,
    text_block,
)
from corral.testing.validation.fields import (
    Check,
    anything,
    as_list,
    as_object,
    check_fields,
    join,
    list_of,
    one_of,
)
from corral.testing.validation.models import takes_prefill, takes_system_turns
from corral.testing.validation.thinking import thinking_is_on
from corral.testing.validation.turns import Turn

MAX_MESSAGES = 100_000
"""Messages in one request."""
_SYSTEM_TURN: dict[str, Check] = {"clear_at": anything, "output_config": anything}


def system_prompt(value: Any, path: str) -> None:
    """A string or text blocks."""
    if not isinstance(value, str):
        list_of(text_block)(value, path)


def check_messages(value: Any, model: str) -> None:
    """Shape, roles and content of each message; the order of roles where it is a rule."""
    messages = as_list(value, "messages")
    if not messages:
        raise Refused("messages", "at least one message is required")
    if len(messages) > MAX_MESSAGES:
        raise Refused("messages", f"at most {MAX_MESSAGES} messages are allowed")
    before = ""
    for index, item in enumerate(messages):
        path = f"messages.{index}"
        message = as_object(item, path)
        role = message.get("role")
        optional = _SYSTEM_TURN if role == "system" else {}
        check_fields(
            message,
            path,
            required={"role": one_of("user", "assistant", "system"), "content": anything},
            optional=optional,
        )
        _check_role(message["role"], before, path, model)
        _check_content(message["content"], join(path, "content"), message["role"])
        before = message["role"]


def check_last(turns: list[Turn], body: dict[str, Any]) -> None:
    """The last turn may be the assistant's only as prefill, on models that take it."""
    last = turns[-1]
    if last.role != "assistant":
        return
    if not takes_prefill(body["model"]):
        raise Refused(
            last.path,
            f"{body['model']} does not support prefill: the conversation must end with a user message",
        )
    if thinking_is_on(body):
        raise Refused(last.path, "prefill cannot be used while thinking is on")
    path, block = last.blocks[-1]
    if block["type"] == "text" and block["text"] != block["text"].rstrip():
        raise Refused(path, "the final assistant content cannot end with trailing white space")


def _check_role(role: str, before: str, path: str, model: str) -> None:
    if role == "system":
        if not takes_system_turns(model):
            raise Refused(join(path, "role"), f"{model} does not support role system inside messages")
        if before != "user":
            raise Refused(join(path, "role"), "a system message must directly follow a user message")
    elif role == "assistant" and not before:
        raise Refused(join(path, "role"), "the first message must use the user role")


def _check_content(content: Any, path: str, role: str) -> None:
    if isinstance(content, str):
        filled_text(content, path)
        return
    blocks = as_list(content, path)
    if not blocks:
        raise Refused(path, "must be a string or a list of at least one content block")
    shapes: dict[str, Shape]
    match role:
        case "user":
            shapes = USER_BLOCKS
        case "assistant":
            shapes = ASSISTANT_BLOCKS
        case _:
            shapes = {"text": USER_BLOCKS["text"]}
    for index, block in enumerate(blocks):
        check_block(block, join(path, index), shapes, f"a {role} message")
