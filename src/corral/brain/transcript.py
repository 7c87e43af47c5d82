"""The transcript: what the model is shown, as a pure function of the log (DESIGN section 5).

Built event by event, so a brain that stays with a session adds to it and one that comes anew replays into it;
both get the same bytes. What it promises, whatever the log holds (contract, messages-api.md):

- roles alternate, the first message is the user's, no message and no text block is empty;
- every tool use has exactly one result, in the next message, before any other block of it, in the order of
  the calls; a use that the log never answered is answered with an error that says the outcome is unknown;
- the model's own blocks go back as they came, except empty text, thinking without a signature, thinking
  signed for another model, and thinking after which nothing came;
- after a compaction the summary and the latest exchanges stand for all of it; a cut is between exchanges, so
  it splits no pair;
- a result that is too long is shown in part, with the tool that reads the rest;
- no more media than one request may hold (`corral.brain.media_limits`);
- media that came in since the last answer stand in no request after one that was refused with them;
- the log is never rewritten: repair happens here, on the way out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec

from corral.brain.exchanges import (
    MEDIA,
    UNCACHEABLE,
    Block,
    Exchange,
    Message,
    first_marked,
    result_block,
    with_cache_marks,
)
from corral.brain.media_limits import DEFAULT_LIMITS, MediaLimits, within_limits
from corral.brain.settled import Piece, Settled, decoded
from corral.brain.sizes import size_of
from corral.brain.spilled import READ, WHOLE, preview
from corral.session.calls import TOOL_RESULTS
from corral.session.events import Event

_INTERRUPTED: Final = "[The user interrupted you here.]"
_CUT_OFF: Final = "[Your last response was cut off at the output limit. Go on from there, in smaller steps.]"
_NOTHING: Final = "[No output]"
_EMPTY: Final = "[An empty message]"
_GO_ON: Final = "[You paused here. Go on.]"
_OUTCOME: Final = (
    "Work towards this outcome, on your own, until it is reached:\n\n{description}\n\n"
    "It will be judged by this rubric:\n\n{rubric}"
)
_REVISE: Final = (
    "[The work has been judged by the rubric, and is not there yet. This was evaluation {number}.]\n\n"
    "{explanation}\n\nRevise the work, then end your turn: it will be judged again."
)
_UNMET: Final = (
    "[The work has been judged by the rubric for the last time, and is not there. No evaluation follows.]\n\n"
    "{explanation}\n\nSay in a few words what has been reached and what has not, and end your turn."
)
_SUMMED_UP: Final = (
    "[The conversation so far has outgrown what you can be shown, and is summed up in these notes of yours. "
    f"All of it is still in your log: look up with {READ} what they do not tell.]\n\n"
)
_WAITING: Final = "[What follows was said before, and you have yet to answer it.]"
_SHORTENED: Final = f"[Too long for you to be shown; {READ} has the rest.]"
_CUT_SHORT: Final = frozenset({"max_tokens", "model_context_window_exceeded"})


class KeptTranscript(msgspec.Struct, frozen=True):
    """A transcript but for its settled pieces, as a snapshot keeps it."""

    model: str
    exchanges: list[Exchange]
    interrupted: bool
    asking: bool
    late: list[Block]
    lost: int
    dropped: int
    looks_back: bool
    settled_exchanges: int
    unshown: dict[int, list[Block]]


class Transcript:
    """Feed it the log's events in order; `messages` gives the conversation so far."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._settled = Settled()
        """What lies before the exchanges."""
        self._lost = 0
        """Calls without a result in what is settled."""
        self._settled_exchanges = 0
        self._unshown: dict[int, list[Block]] = {}
        """What the system said in settled exchanges where no message could carry it, by their numbers."""
        self._exchanges: list[Exchange] = [Exchange(None, {})]
        self._interrupted = False
        self._asking = False
        self.looks_back = False
        """Whether the log holds something for the model that it is not shown."""
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
        transcript.looks_back = kept.looks_back
        transcript._settled_exchanges = kept.settled_exchanges
        transcript._unshown = kept.unshown
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
            self.looks_back,
            self._settled_exchanges,
            self._unshown,
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
            case "span.outcome_evaluation_end":
                last.said.extend(_verdict(event.body))
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
            case "agent.thread_context_compacted" if event.private is not None:
                self._compact(event.private)
            case kind if kind in TOOL_RESULTS:
                model_id = last.calls.get(event.body[TOOL_RESULTS[kind]])
                if model_id is not None and model_id not in last.results:
                    is_error = bool(event.body.get("is_error"))
                    blocks = _result_blocks(self._previewed(event), is_error)
                    last.results[model_id] = result_block(model_id, blocks, is_error)
            case _:
                pass

    def unanswered(self) -> int:
        """How many calls the log never answered, and so are answered here: none, if all promises hold."""
        return self._lost + sum(exchange.unanswered() for exchange in self._exchanges)

    def sizes(self) -> list[int]:
        """About how many characters each answer of the model has, together with the results of its calls."""
        return [
            size_of(exchange.blocks) + size_of(exchange.user_blocks())
            for exchange in self._all_exchanges()
            if exchange.blocks is not None
        ]

    def messages(self, media: MediaLimits = DEFAULT_LIMITS, *, marked: bool = True) -> list[Message]:
        """The conversation so far, with prompt-cache marks where this request and the last one end."""
        return decoded(self.encoded(media, marked=marked))

    def encoded(
        self, media: MediaLimits = DEFAULT_LIMITS, *, marked: bool = True
    ) -> list[Message | msgspec.Raw]:
        """The same as `messages`, for a request: what is settled stands in it as the bytes that it is."""
        latest = [message for exchange in self._exchanges for message in exchange.messages()]
        messages = within_limits([*self._settled.messages(), *latest], media)
        return with_cache_marks(messages) if marked else messages

    def _settle(self) -> None:
        """Settle what no later event and no prompt-cache mark can reach."""
        for exchange in self._exchanges[: first_marked(self._exchanges)]:
            self._lost += exchange.unanswered()
            if exchange.system and not exchange.user_blocks():
                self._unshown[self._settled_exchanges] = exchange.system
            self._settled_exchanges += 1
            for message in exchange.messages():
                self._settled.add(message)
            del self._exchanges[0]

    def _all_exchanges(self) -> list[Exchange]:
        """The whole conversation; of what is settled, calls and results are told apart no more."""
        found = [Exchange(None, {})]
        for message in decoded(self._settled.messages()):
            match message["role"]:
                case "assistant":
                    found.append(Exchange(message["content"], {}))
                case "user":
                    found[-1].said = message["content"]
                case _:
                    found[-1].system = message["content"]
        for number, system in self._unshown.items():
            found[number].system = system
        return [*found, *self._exchanges] if self._settled_exchanges else self._exchanges

    @property
    def has_new_media(self) -> bool:
        """Whether media have come in since the last answer: no request that held them has succeeded yet."""
        last = self._exchanges[-1]
        inner = [block for result in last.results.values() for block in result["content"]]
        return any(block["type"] in MEDIA for block in (*last.said, *inner))

    def _note_interruption(self) -> None:
        if self._interrupted:
            self._exchanges[-1].said.append({"type": "text", "text": _INTERRUPTED})
            self._interrupted = False

    def _previewed(self, event: Event) -> list[Block]:
        content: list[Block] = event.body.get("content") or []
        shown = preview(content, event.id)
        if shown is not None or WHOLE in (event.private or {}):
            self.looks_back = True
        return content if shown is None else shown

    def _compact(self, private: Mapping[str, Any]) -> None:
        """Put the summary in the place of what it sums up."""
        self.looks_back = True
        exchanges = self._all_exchanges()
        before = len(exchanges)
        cut = max(1, before - private["kept"]) if private["kept"] else before
        first = Exchange(None, {})
        first.said = [{"type": "text", "text": f"{_SUMMED_UP}{private['summary']}"}]
        first.system = [block for exchange in exchanges[:cut] for block in exchange.system]
        if cut == before and (waiting := exchanges[-1].said):
            most = private.get("said_characters")
            first.said += [{"type": "text", "text": _WAITING}, *_fitted(waiting, most)]
        self._exchanges = [first, *exchanges[cut:]]
        self._settled.drop()
        self._lost = self._settled_exchanges = 0
        self._unshown = {}

    def _response(self, private: dict[str, Any]) -> None:
        if private.get("refused"):
            self._exchanges[-1].leave_out_media()
        if private.get("outcome") != "completed" or private.get("stop_reason") == "refusal":
            return
        self._interrupted = False
        blocks = list(given_back(private["content"], same_model=private.get("model") == self._model))
        while blocks and blocks[-1]["type"] in UNCACHEABLE:
            blocks.pop()  # a message may not end in thinking; nothing came of it
        if blocks:
            self._exchanges.append(
                Exchange(blocks, {event: model for model, event in private["calls"].items()})
            )
            for model_id, answer in private.get("answered", {}).items():
                content = [{"type": "text", "text": answer["text"]}]
                self._exchanges[-1].results[model_id] = result_block(model_id, content, answer["is_error"])
        if private.get("stop_reason") in _CUT_SHORT and not private["calls"]:
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


def _verdict(ended: Mapping[str, Any]) -> list[Block]:
    """What the agent is told of an evaluation; of those that leave it nothing to do, nothing."""
    match ended["result"]:
        case "needs_revision":
            told = _REVISE
        case "max_iterations_reached":
            told = _UNMET
        case _:
            return []
    text = told.format(number=ended["iteration"] + 1, explanation=ended["explanation"])
    return [{"type": "text", "text": text}]


def given_back(content: Iterable[Block], *, same_model: bool) -> Iterable[Block]:
    """The blocks of a model's answer as it takes them back."""
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


def _fitted(content: Iterable[Block], most: int | None) -> list[Block]:
    """The blocks, with only so many characters of their texts. Media stay: too many are left out anyway."""
    if most is None:
        return list(content)
    fitted: list[Block] = []
    for block in content:
        if block["type"] != "text" or len(block["text"]) <= most:
            fitted.append(block)
            most -= len(block.get("text") or "")
        elif most > 0:
            fitted += [{**block, "text": block["text"][:most]}, {"type": "text", "text": _SHORTENED}]
            most = 0
    return [block for block in fitted if block["type"] != "text" or block["text"].strip()]


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
