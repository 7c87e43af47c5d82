"""What the model is shown of a log that has wounds."""

import base64
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from corral.brain.media_limits import MediaLimits
from corral.brain.transcript import Transcript
from corral.session.events import Event
from corral.testing.validation.request import check_request

MODEL = "claude-sonnet-4-5"
Block = dict[str, Any]


class Log:
    """A log written by hand, and the conversation that it makes."""

    def __init__(self) -> None:
        self.transcript = Transcript(MODEL)
        self._seq = 0

    def add(self, kind: str, private: dict[str, Any] | None = None, **body: Any) -> "Log":
        self._seq += 1
        now = datetime.now(UTC)
        self.transcript.add(Event(self._seq, f"sevt_{self._seq}", kind, "sthr_x", body, now, private))
        return self

    def says(self, *texts: str) -> "Log":
        return self.add("user.message", content=[{"type": "text", "text": text} for text in texts])

    def answered(self, *content: Block, stop: str = "end_turn", model: str = MODEL) -> "Log":
        calls = {block["id"]: f"event of {block['id']}" for block in content if block["type"] == "tool_use"}
        private = {
            "outcome": "completed",
            "content": list(content),
            "stop_reason": stop,
            "calls": calls,
            "model": model,
        }
        return self.add("span.model_request_end", private)

    def result(self, call: str, *content: Block, is_error: bool = False) -> "Log":
        return self.add(
            "user.custom_tool_result",
            custom_tool_use_id=f"event of {call}",
            content=content,
            is_error=is_error,
        )

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, which the model takes."""
        messages = self.transcript.messages()
        check_request({"model": MODEL, "max_tokens": 9, "messages": messages})
        return messages


def call(id: str) -> Block:
    return {"type": "tool_use", "id": id, "name": "look_up", "input": {}}


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def test_calls_without_a_result_are_answered_as_unknown_wherever_they_are() -> None:
    log = Log().says("go").answered(call("a"), call("b"), call("c")).result("b", text("fine"))
    log.says("again").answered(text("well")).says("more").answered(call("d")).says("more")
    messages = log.messages()
    first = messages[2]["content"]
    assert [block.get("tool_use_id") for block in first] == ["a", "b", "c", None]
    assert [block.get("is_error") for block in first] == [True, False, True, None]
    for repaired in (first[0], first[2], messages[-1]["content"][0]):
        assert "unknown" in repaired["content"][0]["text"]
        assert "may or may not" in repaired["content"][0]["text"]


def test_results_go_back_in_the_order_of_the_calls_whoever_came_first() -> None:
    log = Log().says("go").answered(call("a"), call("b")).result("b", text("2")).result("a", text("1"))
    content = log.messages()[-1]["content"]
    assert [(block["tool_use_id"], block["content"][0]["text"]) for block in content] == [
        ("a", "1"),
        ("b", "2"),
    ]


def test_a_second_result_and_one_of_nobodys_call_are_left_out() -> None:
    log = Log().says("go").answered(call("a")).result("a", text("1")).result("a", text("2"))
    log.result("z", text("3"))
    [block] = log.messages()[-1]["content"]
    assert block["content"] == [text("1")]


def test_a_result_that_comes_after_the_next_answer_does_not_rewrite_the_past() -> None:
    log = Log().says("go").answered(call("a")).says("and").answered(text("well")).says("now")
    before = log.messages()
    assert log.result("a", text("late")).messages() == before


@pytest.mark.parametrize("stop", ["end_turn", "max_tokens", "pause_turn", "refusal"])
@pytest.mark.parametrize(
    "content",
    [[], [text("")], [text(" \n")], [{"type": "thinking", "thinking": "hm", "signature": ""}]],
    ids=["nothing", "empty text", "blank text", "unsigned thinking"],
)
def test_an_empty_answer_leaves_no_empty_message(content: list[Block], stop: str) -> None:
    log = Log().says("go").answered(*content, stop=stop)
    log.messages()
    roles = [message["role"] for message in log.says("again").messages()]
    assert roles == ["user"]


def test_an_answer_cut_off_or_paused_is_gone_on_from() -> None:
    for stop in ("max_tokens", "pause_turn"):
        messages = Log().says("go").answered(text("so far "), stop=stop).messages()
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]


def test_thinking_signed_for_another_model_stays_behind_and_its_text_does_not() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "for the other"}
    log = Log().says("go").answered(thinking, text("so"), model="claude-opus-4-5").says("on")
    assert log.messages()[1]["content"] == [text("so")]


def test_an_interruption_is_told_with_the_next_message_and_only_once() -> None:
    log = Log().says("go").add("user.interrupt").says("now this").answered(text("ok")).says("more")
    texts = [block["text"] for block in log.messages()[0]["content"]]
    assert len(texts) == 3
    assert "interrupted" in texts[1]
    assert len(log.messages()[2]["content"]) == 1


def test_images_in_an_error_are_named_and_blank_results_are_filled() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    log = Log().says("go").answered(call("a"), call("b"), call("c"))
    log.result("a", image, is_error=True).result("b").result("c", text(" "))
    for block in log.messages()[-1]["content"]:
        assert block["content"][0]["text"].strip()


def test_a_message_without_a_word_still_makes_a_message() -> None:
    assert Log().says(" ").messages()[0]["content"][0]["text"].strip()


def test_consecutive_requests_share_their_prefix_and_the_mark_moves_on() -> None:
    log = Log().says("go").answered(call("a")).result("a", text("1"))
    first = log.messages()
    second = log.answered(call("b")).result("b", text("2")).messages()
    assert second[2] == first[2]
    marked = [
        at
        for at, message in enumerate(second)
        if any("cache_control" in block for block in message["content"])
    ]
    assert marked == [2, 4]


def image(width: int, padding: int = 0) -> Block:
    """A PNG that is `width` pixels wide, with `padding` bytes behind its header."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, 1, 8, 6, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk + bytes(padding)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def shown_images(messages: list[dict[str, Any]]) -> int:
    return str(messages).count("'base64'")


def test_wide_images_are_left_out_once_there_are_many() -> None:
    log = Log().says("go").answered(*(call(f"c{n}") for n in range(21)))
    for n in range(20):
        log.result(f"c{n}", image(3_000 if n % 2 else 2_000))
    assert shown_images(log.messages()) == 20
    log.result("c20", image(100))
    messages = log.messages()
    assert shown_images(messages) == 11
    assert "left out" in messages[-1]["content"][1]["content"][0]["text"]


def test_the_oldest_media_are_left_out_when_there_is_more_than_a_request_takes() -> None:
    log = Log()
    before: list[dict[str, Any]] = []
    changes = 0
    for n in range(16):
        log.add("user.message", content=[image(10, 3_000_000), text(f"picture {n}")]).answered(text("seen"))
        messages = log.says("go on").messages()
        assert len(str(messages)) < 32_000_000
        changes += bool(before) and messages[: len(before) - 3] != before[:-3]
        before = messages
    assert 4 <= shown_images(before) < 7
    assert "picture 0" in str(before[0])
    assert changes <= 5


def pictures(log: Log, limits: MediaLimits) -> int:
    return shown_images(log.transcript.messages(limits))


def test_old_images_are_left_out_in_steps_and_new_ones_never() -> None:
    limits = MediaLimits(images_kept=8)
    log = Log()
    shown: list[int] = []
    changes = 0
    before: list[dict[str, Any]] = []
    for n in range(20):
        log.add("user.message", content=[image(10), text(f"picture {n}")])
        messages = log.transcript.messages(limits, marked=False)
        changes += bool(before) and messages[: len(before) - 1] != before[:-1]
        shown.append(shown_images(messages))
        before = messages
        log.answered(text("seen"))
    assert max(shown) == 8
    assert min(shown[8:]) == 7
    assert "left out" in str(before[0])
    # The prompt's beginning has changed once for every two images that are gone.
    assert changes == 6
    log.add("user.message", content=[image(10) for _ in range(30)])
    assert pictures(log, limits) == 30
    assert pictures(log, MediaLimits(images_kept=8, max_images=20)) == 20


def test_a_model_without_eyes_is_told_what_stood_there() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}}
    words = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    log = Log().add("user.message", content=[image(10), pdf, words])
    content = log.transcript.messages(MediaLimits(images=False, documents=False))[0]["content"]
    assert [block["type"] for block in content] == ["text", "text", "document"]


def test_a_model_without_a_cache_gets_no_marks() -> None:
    assert "cache_control" not in str(Log().says("go").transcript.messages(marked=False))


def test_a_result_that_is_too_long_is_shown_in_part_and_where_the_rest_is() -> None:
    log = Log().says("go").answered(call("a"), call("b"), call("c"))
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "d" * 60_000},
    }
    log.result("a", text("x" * 100_000)).result("b", text("x" * 60_000), document)
    log.result("c", text("[output truncated]\n" + "x" * 102_400))
    first, second, third = log.messages()[-1]["content"]
    assert len(first["content"][0]["text"]) == 100_000
    assert "120,000 characters" in second["content"][0]["text"]
    assert "sevt_4" in second["content"][0]["text"]
    assert len(str(second)) < 11_000
    assert len(third["content"][0]["text"]) > 102_400
    assert log.transcript.looks_back


def test_system_messages_stay_in_force_after_a_compaction() -> None:
    log = Log().says("go").answered(text("yes"))
    log.says("on").add("system.message", content=[text("Speak French.")]).answered(text("oui"))
    log.add("agent.thread_context_compacted", {"summary": "notes", "kept": 0, "said_characters": None})
    log.says("and?")
    messages = log.transcript.messages()
    assert [message["role"] for message in messages] == ["user", "system"]
    assert messages[1]["content"] == [text("Speak French.")]
    check_request({"model": "claude-opus-5", "max_tokens": 9, "messages": messages})
