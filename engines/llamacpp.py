"""llama.cpp's own `/completion`: token ids in, text out.

Its stream drops ids where a character is made of several tokens, so that the text is the truth and ids are given only for chunks
that are complete. An id that ends the turn is never among the dropped: it completes its own chunk. llama.cpp cannot stop at an id
that it is told, and the gateway never sends `stop` strings, since those are matched on rendered text only.

Log probabilities are those of the whole vocabulary before any sampling setting or grammar. They come for the ids that come: where
a character took several tokens for the last of them, the one that ends the turn among them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from engines.base import MAX_COUNT, Call, Chunk, EngineInfo, EngineLoad, TokenLogprob, Traits, Work
from engines.events import finish, mended, read, token_ids
from engines.exposition import LoadScrape, added, count, fullest
from engines.gbnf import GrammarCache
from engines.refusal import ErrorObject, failure_in_stream, refusal
from gateway.errors import BadRequest, EngineBroke, GatewayError
from gateway.request import FinishReason, Sampling, Usage
from gateway.wire.jsonio import Decoder, JsonError, encode
from gateway.wire.sse import SseEvent

_SEEDS = 2**32 - 1  # the largest 32-bit number means "random" to llama.cpp
_FINISH: Mapping[str, FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}


class LlamaCpp:
    """The adapter. It keeps the grammars of the last tool sets."""

    kind = "llamacpp"
    traits = Traits(
        takes_ids=True,
        streams_ids=False,
        choices=False,
        constraints=frozenset({"json", "calls"}),
        # Its samplers are shown the prompt's last tokens before they are asked for one.
        same_penalties=frozenset({"presence_penalty", "frequency_penalty", "repetition_penalty"}),
        tells_cached=True,
    )
    health_path = "/health"
    info_paths = ("/props",)
    identity_paths = ()
    load_paths = ("/metrics",)
    usage_path = "/slots"
    kv_path = None

    def __init__(self) -> None:
        self._grammars = GrammarCache()

    def call(self, work: Work) -> Call:
        """Raises BadRequest for a constraint that no grammar can hold, and for what llama.cpp lacks: `min_tokens` and a stream of
        all ids."""
        if work.request.return_token_ids:
            raise BadRequest(
                "'return_token_ids' is not supported by this model's engine: llama.cpp's stream loses the ids of tokens that are "
                "part of a character.",
                param="return_token_ids",
            )
        body: dict[str, Any] = {
            "prompt": work.ids,
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "cache_prompt": True,
            "preserved_tokens": work.visible,
            **_sampling(work.request.sampling, work.choice),
        }
        if work.max_tokens is not None:
            body["n_predict"] = work.max_tokens
        if work.request.logprobs is not None:
            body["n_probs"] = max(1, work.request.logprobs)  # 0 is none at all
        if work.model is not None:
            body["model"] = work.model
        if work.constraint is not None:
            body["grammar"] = self._grammars.grammar(work.constraint, work.request.tools)
        return Call("/completion", encode(body))

    def reader(self, work: Work) -> "LlamaCppReader":
        """A fresh reader."""
        stops = {token: work.stop_texts.get(token, "") for token in work.stop_ids}
        return LlamaCppReader(stops, top_logprobs=work.request.logprobs or 0, max_tokens=work.max_tokens)

    def error(self, status: int, body: bytes) -> GatewayError:
        """503 while the model loads; `exceed_context_size_error` with both sizes."""
        return refusal(status, body)

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """From `/props`. The context is that of one slot; its cache is that of all slots, by single tokens."""
        try:
            props = _PROPS.decode(bodies[0])
        except (JsonError, IndexError):
            return EngineInfo()
        name = props.model_alias or props.model_path
        settings = props.default_generation_settings
        return EngineInfo(
            version=props.build_info or None,
            model=name.replace("\\", "/").rpartition("/")[2] or None,
            context_tokens=(settings.n_ctx or None) if settings else None,
            block_tokens=1 if settings else None,
            kv_tokens=(count(settings.n_ctx * props.total_slots) or None) if settings else None,
            slots=props.total_slots if 0 < props.total_slots <= MAX_COUNT else None,
        )

    def identity(self, _bodies: Sequence[bytes], info: EngineInfo, _rank: int | None) -> EngineInfo:
        """`/props` says all."""
        return info

    def load(self, body: bytes, rank: int | None) -> EngineLoad:
        """From `/metrics`, where the server was started with `--metrics`."""
        return _LOAD.load(body, rank)

    def kv_usage(self, body: bytes) -> float | None:
        """From `/slots`, which idle slots are in with what they still hold. One that has had no task holds nothing."""
        try:
            slots = _SLOTS.decode(body)
        except JsonError:
            return None
        if not slots or any(slot.id_task is not None and slot.n_prompt_tokens is None for slot in slots):  # of an older version
            return None
        held, room = added(slot.n_prompt_tokens or 0 for slot in slots), added(slot.n_ctx for slot in slots)
        return fullest([min(held / room, 1.0)]) if held is not None and room else None

    def kv_reader(self) -> None:
        """It tells nothing of its cache."""

    def tokenize(self, text: str, _model: str | None) -> Call:
        """Special tokens written in the text count; no BOS is added."""
        return Call("/tokenize", encode({"content": text, "add_special": False, "parse_special": True}))

    def token_ids(self, body: bytes) -> tuple[int, ...]:
        """From `/tokenize`."""
        return token_ids(body)


ENGINE = LlamaCpp


def _sampling(sampling: Sampling, choice: int) -> dict[str, Any]:
    """llama.cpp's names for what the client gave. Each choice has a seed of its own."""
    if sampling.min_tokens:
        raise BadRequest("'min_tokens' is not supported by this model's engine.", param="min_tokens")
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": None if sampling.seed is None else (sampling.seed + choice) % _SEEDS,
        "logit_bias": sampling.logit_bias or None,
        "ignore_eos": sampling.ignore_eos or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


class _Timings(msgspec.Struct, gc=False):
    cache_n: int = 0


class _Progress(msgspec.Struct, gc=False):
    total: int = 0
    cache: int = 0


class _Likely(msgspec.Struct, gc=False):
    id: int
    logprob: float


class _Probability(_Likely, gc=False):
    top_logprobs: list[_Likely] = []


class _Step(msgspec.Struct, gc=False):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    tokens_predicted: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0
    tokens_evaluated: int = 0
    stop_type: str = ""
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_Probability] | None = None
    error: ErrorObject | str | None = None


class _Settings(msgspec.Struct):
    n_ctx: int = 0


class _Props(msgspec.Struct):
    build_info: str = ""
    model_alias: str = ""
    model_path: str = ""
    default_generation_settings: _Settings | None = None
    total_slots: int = 0


_STEP = Decoder(_Step)


class _Slot(msgspec.Struct):
    n_ctx: int
    id_task: int | None = None
    n_prompt_tokens: int | None = None


_PROPS = Decoder(_Props)
_SLOTS = Decoder(list[_Slot])
_LOAD = LoadScrape(
    running="llamacpp:requests_processing", waiting="llamacpp:requests_deferred", prompt_tokens="llamacpp:prompt_tokens_total"
)


class LlamaCppReader:
    """Reads one stream. The tokens of its chunks add up to the engine's own count. What was cached is told with the progress,
    for an answer that the gateway ends early.

    A stop id is reported one event later than it is seen: where llama.cpp knows it as an end of turn too, that event is the end,
    with the engine's own usage, and the connection can be used again; elsewhere it is the next token, which is dropped. Its text
    is in the stream where the call made it visible, or all special tokens are (`--special`).
    """

    def __init__(self, stops: Mapping[int, str], *, top_logprobs: int = 0, max_tokens: int | None = None) -> None:
        """`stops` has the text of each stop id. An answer of `max_tokens` tokens needs no reason: the limit was one."""
        self._stops = stops
        self._top_logprobs = top_logprobs
        self._max_tokens = max_tokens
        self._predicted = 0
        self._cached = 0
        self._stop_id: int | None = None
        self.done = False

    def chunk(self, event: SseEvent) -> Chunk | None:
        """One event; None after the end."""
        if self.done:
            return None
        step = read(_STEP, mended(event.data))
        if step.error is not None:
            raise failure_in_stream(step.error)
        if step.prompt_progress is not None:
            self._cached = step.prompt_progress.cache
            return Chunk(usage=Usage(step.prompt_progress.total, 0, self._cached))
        if step.stop:
            return self._end(step)
        if self._stop_id is not None:
            return Chunk(stop_id=self._stop_id, usage=Usage(step.tokens_evaluated, self._predicted, self._cached))
        return self._token(step)

    def whole(self, body: bytes) -> tuple[Chunk, Chunk]:
        """It has all ids, those that a stream loses too."""
        step = read(_STEP, mended(body))
        if step.error is not None:
            raise failure_in_stream(step.error)
        if not step.stop:
            raise EngineBroke("The engine's answer has no end: it may be cut.")
        return self._token(step), self._end(msgspec.structs.replace(step, content=""))

    def ended(self) -> Chunk | None:
        """Its last event is the end, but where a stop id was one, or the limit must be."""
        if self._stop_id is not None:
            return Chunk(stop_id=self._stop_id)
        return Chunk(finish="length") if self._max_tokens is not None and self._predicted >= self._max_tokens else None

    def _token(self, step: _Step) -> Chunk:
        rise = step.tokens_predicted - self._predicted
        if rise < 0:
            raise EngineBroke("The engine's count of tokens fell.")
        self._predicted = step.tokens_predicted
        text, tokens = step.content, step.tokens
        stops = self._stops
        ids = tuple(tokens) if len(tokens) == rise else None
        if rise and not stops.keys().isdisjoint(tokens):
            self._stop_id = next(token for token in tokens if token in stops)
            text = text.removesuffix(stops[self._stop_id])
            ids = tuple([token for token in ids if token != self._stop_id]) if ids is not None else None
        told = step.completion_probabilities or ()
        if len(told) > rise:
            raise EngineBroke("The engine sent log probabilities of more tokens than it counts.")
        return Chunk(text=text, tokens=rise, ids=ids, logprobs=self._logprobs(told) if told else ())

    def _logprobs(self, told: Sequence[_Probability]) -> tuple[TokenLogprob, ...]:
        top = self._top_logprobs
        return tuple(
            [
                TokenLogprob(token.id, token.logprob, tuple([(other.id, other.logprob) for other in token.top_logprobs[:top]]))
                for token in told
            ]
        )

    def _end(self, step: _Step) -> Chunk:
        reason = finish(_FINISH, step.stop_type)
        self.done = True
        rise = max(step.tokens_predicted - self._predicted, 0)
        cached = step.timings.cache_n if step.timings is not None else self._cached
        return Chunk(
            text=step.content,
            tokens=rise,
            stop_id=self._stop_id,
            finish=reason,
            usage=Usage(step.tokens_evaluated, step.tokens_predicted, cached),
        )
