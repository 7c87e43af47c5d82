"""The transcript: what the model is shown, as a pure function of the log (DESIGN section 5).

Built event by event, so a brain that stays with a session adds to it and one that comes anew replays into it;
both get the same bytes. What it promises, whatever the log holds (contract, messages-api.md):

- roles alternate, the first message is the user's, no message and no text block is empty;
- every tool use has exactly one result, in the next message, before any other block of it, in the order of
  the calls; a use that the log never answered is answered with an error that says the outcome is unknown;
- the model's own blocks go back as they came, except empty text, thinking without a signature, thinking
  signed for another model, and thinking after which nothing came;
- no more media than one request may hold (`corral.brain.media_limits`);
- media that came in since the last answer stand in no request after one that was refused with them;
- the log is never rewritten: repair happens here, on the way out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from corral.brain.media_limits import within_limits
from corral.brain.settled import Piece, Settled, decoded
from corral.session.calls import TOOL_RESULTS
from corral.session.events import Event

Block = dict[str, Any]
Message = dict[str, Any]

_UNKNOWN_OUTCOME: Final = (
    "The outcome of this call is unknown: it was cut off before a result was recorded. It may or may not "
    "have taken effect; check before you repeat it."
)
_INTERRUPTED: Final = "[The user interrupted you here.]"
_CUT_OFF: Final = "[Your last response was cut off at the output limit. Go on from there, in smaller steps.]"
_NOTHING: Final = "[No output]"
_EMPTY: Final = "[An empty message]"
_GO_ON: Final = "[You paused here. Go on.]"
_OUTCOME: Final = (
    "Work towards this outcome, on your own, until it is reached:\n\n{description}\n\n"
    "It will be judged by this rubric:\n\n{rubric}"
)
_MEDIA: Final = frozenset({"image", "document"})
_REFUSED: Final = "[Left out here: {type}. The model's API refused the request that held it.]"
_MARKS: Final = 2
"""The user messages that are marked for the prompt cache, from the last one on."""
_UNCACHEABLE: Final = frozenset({"thinking", "redacted_thinking"})


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
        self.said = _without_media(self.said)
        for model_id, result in self.results.items():
            self.results[model_id] = {**result, "content": _without_media(result["content"])}

    def user_blocks(self) -> list[Block]:
        """The user's message, each call answered."""
        results = [
            self.results.get(model_id)
            or _result(model_id, [{"type": "text", "text": _UNKNOWN_OUTCOME}], True)
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


class KeptTranscript(msgspec.Struct, frozen=True):
    """A transcript but for its settled pieces, as a snapshot keeps it."""

    model: str
    exchanges: list[Exchange]
    interrupted: bool
    asking: bool
    late: list[Block]
    lost: int
    dropped: int


class Transcript:
    """Feed it the log's events in order; `messages` gives the conversation so far."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._settled = Settled()
        """What lies before the exchanges."""
        self._lost = 0
        """Calls without a result in what is settled."""
        self._exchanges: list[Exchange] = [Exchange(None, {})]
        self._interrupted = False
        self._asking = False
        self._late: list[Block] = []
        """What was said while the model was being asked: it stands behind the answer."""

    @classmethod
    def recalled(cls, kept: KeptTranscript, pieces: Iterable[Piece]) -> Self:
        """The transcript that `kept` was made of, and that had these pieces."""
        transcript = cls(kept.model)
        transcript._settled = Settled(pieces, kept.dropped)
        transcript._lost = kept.lost
        transcript._exchanges = kept.exchanges
        transcript._interrupted = kept.interrupted
        transcript._asking = kept.asking
        transcript._late = kept.late
        return transcript

    def kept(self) -> KeptTranscript:
        """Everything that is not settled; to be encoded at once, since it changes with the next event."""
        return KeptTranscript(
            self._model,
            self._exchanges,
            self._interrupted,
            self._asking,
            self._late,
            self._lost,
            self._settled.dropped,
        )

    @property
    def model(self) -> str:
        """The model that it is for."""
        return self._model

    @property
    def settled(self) -> Settled:
        """The beginning of the conversation, which stays as it is."""
        return self._settled

    def extend(self, events: Iterable[Event]) -> None:
        """Take in several events."""
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Take in one event; those that the model does not see change nothing."""
        last = self._exchanges[-1]
        match event.type:
            case "user.message":
                self._note_interruption()
                last.said.extend(_shown(event.body["content"]) or [{"type": "text", "text": _EMPTY}])
            case "user.define_outcome":
                self._note_interruption()
                (self._late if self._asking else last.said).append(_goal(event.body))
            case "agent.thread_message_received":
                self._note_interruption()
                (self._late if self._asking else last.said).extend(_message(event.body))
            case "span.model_request_start":
                self._asking = True
            case "system.message":
                last.system.extend(_shown(event.body["content"]))
            case "user.interrupt":
                self._interrupted = True
            case "span.model_request_end":
                self._response(dict(event.private or {}))
                self._exchanges[-1].said.extend(self._late)
                self._asking, self._late = False, []
                self._settle()
            case kind if kind in TOOL_RESULTS:
                model_id = last.calls.get(event.body[TOOL_RESULTS[kind]])
                if model_id is not None and model_id not in last.results:
                    is_error = bool(event.body.get("is_error"))
                    last.results[model_id] = _result(
                        model_id, _result_blocks(event.body.get("content") or [], is_error), is_error
                    )
            case _:
                pass

    def unanswered(self) -> int:
        """How many calls the log never answered, and so are answered here: none, if all promises hold."""
        return self._lost + sum(exchange.unanswered() for exchange in self._exchanges)

    def messages(self) -> list[Message]:
        """The conversation so far, with prompt-cache marks where this request and the last one end."""
        return decoded(self.encoded())

    def encoded(self) -> list[Message | msgspec.Raw]:
        """The same as `messages`, for a request: what is settled stands in it as the bytes that it is."""
        latest = [message for exchange in self._exchanges for message in exchange.messages()]
        return _with_cache_marks(within_limits([*self._settled.messages(), *latest]))

    def _settle(self) -> None:
        """Settle what no later event and no prompt-cache mark can reach."""
        for exchange in self._exchanges[: _first_marked(self._exchanges)]:
            self._lost += exchange.unanswered()
            for message in exchange.messages():
                self._settled.add(message)
            del self._exchanges[0]

    @property
    def has_new_media(self) -> bool:
        """Whether media have come in since the last answer: no request that held them has succeeded yet."""
        last = self._exchanges[-1]
        inner = [block for result in last.results.values() for block in result["content"]]
        return any(block["type"] in _MEDIA for block in (*last.said, *inner))

    def _note_interruption(self) -> None:
        if self._interrupted:
            self._exchanges[-1].said.append({"type": "text", "text": _INTERRUPTED})
            self._interrupted = False

    def _response(self, private: dict[str, Any]) -> None:
        if private.get("refused"):
            self._exchanges[-1].leave_out_media()
        if private.get("outcome") != "completed" or private.get("stop_reason") == "refusal":
            return
        self._interrupted = False
        blocks = list(_given_back(private["content"], same_model=private.get("model") == self._model))
        while blocks and blocks[-1]["type"] in _UNCACHEABLE:
            blocks.pop()  # a message may not end in thinking; nothing came of it
        if blocks:
            self._exchanges.append(
                Exchange(blocks, {event: model for model, event in private["calls"].items()})
            )
            for model_id, answer in private.get("answered", {}).items():
                content = [{"type": "text", "text": answer["text"]}]
                self._exchanges[-1].results[model_id] = _result(model_id, content, answer["is_error"])
        if private.get("stop_reason") == "max_tokens" and not private["calls"]:
            self._exchanges[-1].said.append({"type": "text", "text": _CUT_OFF})
        if private.get("stop_reason") == "pause_turn" and blocks and blocks[-1]["type"] == "text":
            # Only a server tool may be under way at the end of a request; anything else is taken for prefill.
            self._exchanges[-1].said.append({"type": "text", "text": _GO_ON})


def _message(received: Mapping[str, Any]) -> list[Block]:
    """A message of another thread, under the name of who sent it."""
    name = received.get("from_agent_name")
    origin = "the coordinator" if name is None else f"{name} ({received['from_session_thread_id']})"
    return [{"type": "text", "text": f"[Message from {origin}]"}, *_shown(received["content"])]


def _goal(outcome: Mapping[str, Any]) -> Block:
    text = _OUTCOME.format(description=outcome["description"], rubric=outcome["rubric"].get("content", ""))
    return {"type": "text", "text": text}


def _given_back(content: Iterable[Block], *, same_model: bool) -> Iterable[Block]:
    for block in content:
        match block.get("type"):
            case "text" if not block.get("text", "").strip():
                continue
            case "thinking" if not block.get("signature") or not same_model:
                continue
            case "redacted_thinking" if not same_model:
                continue
            case _:
                yield block


def _without_media(content: Iterable[Block]) -> list[Block]:
    return [
        {"type": "text", "text": _REFUSED.format(type=block["type"])} if block["type"] in _MEDIA else block
        for block in content
    ]


def _shown(content: Iterable[Block]) -> list[Block]:
    """Content blocks as the model takes them: no nulls, no blank texts."""
    shown: list[Block] = []
    for block in content:
        if block["type"] == "text" and not block["text"].strip():
            continue
        shown.append({name: value for name, value in block.items() if value is not None})
    return shown


def _result_blocks(content: Iterable[Block], is_error: bool) -> list[Block]:
    """A result's content; the model API takes nothing but text in an error."""
    blocks = [
        {"type": "text", "text": f"[{block['type']} left out of an error]"}
        if is_error and block["type"] != "text"
        else block
        for block in _shown(content)
    ]
    return blocks or [{"type": "text", "text": _NOTHING}]


def _result(model_id: str, content: list[Block], is_error: bool) -> Block:
    return {"type": "tool_result", "tool_use_id": model_id, "content": content, "is_error": is_error}


def _first_marked(exchanges: Sequence[Exchange]) -> int:
    """The place of the exchange whose user message is the second but last, which is marked in a request."""
    spoken = 0
    for at in range(len(exchanges) - 1, -1, -1):
        spoken += bool(exchanges[at].user_blocks())
        if spoken == _MARKS:
            return at
    return 0


def _with_cache_marks(messages: list[Message | msgspec.Raw]) -> list[Message | msgspec.Raw]:
    """Mark the last two user messages, so that this request reads what the one before it wrote."""
    marked = 0
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, msgspec.Raw) or marked == _MARKS:
            break
        if message["role"] != "user":
            continue
        content: list[Block] = message["content"]
        if content[-1]["type"] not in _UNCACHEABLE:
            last = {**content[-1], "cache_control": {"type": "ephemeral"}}
            messages[at] = {"role": "user", "content": [*content[:-1], last]}
            marked += 1
    return messages
