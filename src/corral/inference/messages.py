"""The Messages API through the official client: its authentication and transport, our decoding.

The client is imported when the first request is made or `warm` is called: importing it costs seconds of CPU,
which a server spends while its database starts, and nobody else pays.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from corral.inference.assemble import Assembler, decoded
from corral.inference.context_editing import CONTEXT_MANAGEMENT_BETA, context_management
from corral.inference.provider import FailureKind, ModelEvent, ModelFailed, ModelRequest
from corral.wire.model_table import PACKAGED, PROVIDERS, CapabilityTable, ProviderCapabilities

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_RETRYABLE_STATUS: Final = frozenset({408, 409, 425, 429})
_REFUSED_STATUS: Final = frozenset({400, 413, 422})
_EFFORT_DEFAULT: Final = "high"
_DONE: Final = b"[DONE]"
_MODELS_A_PAGE: Final = 1000
_MODEL_PAGES: Final = 20


def import_client() -> None:
    """Import the official client: seconds of CPU. Blocking; call it in a thread, as early as can be."""
    importlib.import_module("anthropic")


class MessagesProvider:
    """Any endpoint that speaks the Messages API: the Claude API itself, or a gateway.

    ``models`` translates Claude API ids into the endpoint's own; ids that it lacks go out as they are.
    ``offers`` and ``capabilities`` say what may be asked of it and of each model; ``context_editing`` has it
    leave old tool results out of long requests where that is offered.
    ``timeout`` bounds the silence between two bytes, in seconds, not the whole answer.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str,
        models: Mapping[str, str],
        max_tokens: int,
        timeout: float,
        offers: ProviderCapabilities = PROVIDERS["gateway"],
        capabilities: CapabilityTable = PACKAGED,
        context_editing: bool = False,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._models = dict(models)
        self._max_tokens = max_tokens
        self._timeout = timeout
        self._offers = offers
        self._capabilities = capabilities
        self._context_editing = context_editing
        self._client: AsyncAnthropic | None = None
        self._importing = asyncio.Lock()

    async def warm(self) -> None:
        """Import the client in a thread, so that the first model request does not wait for it."""
        await self._connected()

    async def close(self) -> None:
        """Close the connections to the provider."""
        if self._client is not None:
            await self._client.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `InferenceProvider.stream`."""
        client = await self._connected()
        import anthropic
        import httpx2

        assembler = Assembler()
        try:
            # The client's own door for any path: its transport and authentication, none of its models.
            answer = await client.post(
                "/v1/messages",
                cast_to=object,
                # Encoded here: what the request shares with those before it is encoded already.
                content=msgspec.json.encode(self._body(request)),
                options={"headers": self._headers(request)},
                stream=True,
                stream_cls=anthropic.AsyncStream[object],
            )
            async with answer:
                async for data in _events(answer.response.aiter_bytes()):
                    event = assembler.feed(data)
                    if event is not None:
                        yield event
        except anthropic.APIStatusError as error:
            raise _status_failure(error.status_code, error.message, error.response.headers) from error
        except (anthropic.APIConnectionError, anthropic.APITimeoutError) as error:
            raise ModelFailed(
                "failed", f"the model provider cannot be reached: {_cause(error)}", retryable=True
            ) from error
        except (KeyError, IndexError, TypeError, AttributeError, msgspec.DecodeError) as error:
            raise ModelFailed("failed", "the answer is not a Messages API stream", retryable=True) from error
        except (OSError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise ModelFailed("failed", f"the stream was cut: {_cause(error)}", retryable=True) from error
        if assembler.response is None:
            raise ModelFailed("failed", "the stream ended before the answer did", retryable=True)

    async def list_models(self) -> list[dict[str, Any]]:
        """The models that the endpoint offers, as it describes them; see `corral.inference.model_list`."""
        client = await self._connected()
        import anthropic
        import httpx2

        found: list[dict[str, Any]] = []
        params: dict[str, object] = {"limit": _MODELS_A_PAGE}
        try:
            for _ in range(_MODEL_PAGES):
                page = await client.get("/v1/models", cast_to=object, options={"params": params})
                entries, last = _models_of(page)
                found += entries
                if last is None:
                    return found
                params["after_id"] = last
        except (anthropic.APIError, OSError, httpx2.HTTPError) as error:
            raise ModelFailed("failed", f"no list of models: {_cause(error)}", retryable=True) from error
        return found

    async def _connected(self) -> "AsyncAnthropic":
        async with self._importing:
            if self._client is None:
                await asyncio.to_thread(import_client)
                import anthropic

                self._client = anthropic.AsyncAnthropic(
                    # Both always given: the environment's ANTHROPIC_* may well point at this very server.
                    api_key=self._api_key,
                    base_url=self._base_url,
                    default_headers={"x-api-key": self._api_key} if self._offers.plain_key_header else None,
                    # Retries are the brain's: each is in the session's log.
                    max_retries=0,
                    timeout=self._timeout,
                )
        assert self._client is not None
        return self._client

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        can = self._capabilities.of(request.model)
        body: dict[str, Any] = {
            "model": self._models.get(request.model, request.model),
            "max_tokens": min(
                self._max_tokens, request.max_tokens or self._max_tokens, can.max_output or self._max_tokens
            ),
            "messages": request.messages,
            "stream": True,
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = request.tools
        if request.tool_choice is not None and can.tool_choice:
            body["tool_choice"] = request.tool_choice
        if self._offers.effort and can.effort and request.effort != _EFFORT_DEFAULT:
            body["output_config"] = {"effort": request.effort}
        if self._edits(request):
            body["context_management"] = context_management(can)
        return body

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._offers.session_header and request.session_id:
            headers["anthropic-managed-agents-session-id"] = request.session_id
        if self._edits(request):
            headers["anthropic-beta"] = CONTEXT_MANAGEMENT_BETA
        return headers

    def _edits(self, request: ModelRequest) -> bool:
        """Whether the provider is asked to leave old tool results out, where there may be any."""
        can = self._capabilities.of(request.model)
        offered = self._offers.context_editing and can.context_editing
        return self._context_editing and offered and bool(request.tools)


def _models_of(page: object) -> tuple[list[dict[str, Any]], str | None]:
    """The models of a page, and the last one's id if there is another page behind it.

    Gateways that list as the OpenAI API does are understood too: it is the ids that count.
    """
    content = cast("dict[str, Any]", page) if isinstance(page, dict) else {}
    data: Any = content.get("data")
    if not isinstance(data, list):
        raise ModelFailed("failed", "what the provider gives at /v1/models is no list", retryable=False)
    models: list[dict[str, Any]] = []
    for entry in cast("list[Any]", data):
        if isinstance(entry, dict) and isinstance(cast("dict[str, Any]", entry).get("id"), str):
            models.append(cast("dict[str, Any]", entry))
    return models, models[-1]["id"] if models and content.get("has_more") is True else None


async def _events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """The JSON payloads of a server-sent event stream.

    An event's name counts where the payload has no type of its own, and where it says that this is an error:
    llama.cpp sends the bare error. vLLM ends with a payload that is no JSON.
    """
    name = b""
    data: list[bytes] = []
    async for line in _lines(chunks):
        if line.startswith(b"event:"):
            name = line[6:].strip()
        elif line.startswith(b"data:"):
            data.append(line[5:])
        elif not line:
            payload = b"\n".join(data)
            if data and payload.strip() != _DONE:
                yield _named(name.decode("utf-8", "replace"), decoded(payload))
            name = b""
            data.clear()


def _named(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    if payload.get("type") == "error" or (name != "error" and "type" in payload):
        return payload
    if name == "error" or "error" in payload:
        error = payload.get("error") or payload
        return {"type": "error", "error": {"message": error} if isinstance(error, str) else error}
    return {**payload, "type": name}


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Lines as server-sent events know them: text may hold what Unicode calls a line separator."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")


def _status_failure(status: int, message: str, headers: Mapping[str, str]) -> ModelFailed:
    kinds: dict[int, FailureKind] = {429: "rate_limited", 529: "overloaded", 402: "billing"}
    return ModelFailed(
        kinds.get(status, "failed"),
        f"the model provider answered {status}: {message}",
        retryable=status in _RETRYABLE_STATUS or status >= 500,
        retry_after=_retry_after(headers),
        refused=status in _REFUSED_STATUS,
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    return None


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
