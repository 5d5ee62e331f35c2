"""vLLM's `/v1/completions`: token ids in, token ids out.

The ids of its stream are complete, also where a character is made of several tokens, and its text is not: the text of an end of
turn, and that of a cut character, is never sent. So the ids are what is read, and the gateway makes the text. `stop` strings are
never sent, so that an answer that stopped ends with the id that stopped it.

vLLM's own route for ids, `/inference/v1/generate`, is left alone: a server must be started with a flag of its own for it, and it
says nothing that this one does not.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from engines.base import Call, Chunk, EngineInfo, TokenLogprob, Traits, Work
from engines.events import finish, mended, read, token_ids
from engines.gbnf import GrammarCache
from engines.refusal import ErrorObject, failure_in_stream, refusal
from gateway.errors import BadRequest, EngineBroke, GatewayError
from gateway.request import FinishReason, Sampling, Usage
from gateway.wire.jsonio import Decoder, JsonError, encode
from gateway.wire.sse import SseEvent

T = TypeVar("T")

_SEEDS = 2**63  # the seeds of 64-bit numbers that are not negative
_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "repetition": "length",  # it cut an answer that went in circles
}
_MAX_ID = 2**31 - 1
_NAMED = re.compile("token_id:([0-9]{1,10})")


class Vllm:
    """The adapter. It keeps the grammars of the last tool sets, in GBNF: vLLM's xgrammar reads llama.cpp's language."""

    kind = "vllm"
    traits = Traits(takes_ids=True, streams_ids=True, choices=False, constraints=frozenset({"json", "calls"}))
    health_path = "/health"
    info_paths = ("/version", "/v1/models")

    def __init__(self) -> None:
        self._grammars = GrammarCache()

    def call(self, work: Work) -> Call:
        """Raises BadRequest for a constraint that no grammar can hold, and where nothing says how long the answer may be: vLLM
        would cut it after 16 tokens."""
        if work.max_tokens is None:
            raise BadRequest("'max_tokens' is needed: the model's context length is not known.", param="max_tokens")
        request = work.request
        body: dict[str, Any] = {
            "prompt": work.ids,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": work.max_tokens,
            "stop_token_ids": sorted(work.stop_ids),
            **_sampling(request.sampling, work.choice, work.max_tokens),
        }
        if work.model is not None:
            body["model"] = work.model
        if request.logprobs is not None:
            body |= {"logprobs": request.logprobs, "return_tokens_as_token_ids": True}
        if work.constraint is not None:
            body["structured_outputs"] = {"grammar": self._grammars.grammar(work.constraint, request.tools)}
        return Call("/v1/completions", encode(body))

    def reader(self, work: Work) -> "VllmReader":
        """A fresh reader."""
        return VllmReader(work.stop_ids, work.special_ids, alternatives=work.request.logprobs)

    def error(self, status: int, body: bytes) -> GatewayError:
        """Nested under `error`. A stream has begun before vLLM looks at most fields, so that most refusals come in it."""
        return refusal(status, body)

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """From `/version` and `/v1/models`, which lists one model under each of its names, and its adapters."""
        version, models = _said(_VERSION, bodies[:1]), _said(_MODELS, bodies[1:2])
        cards = models.data if models is not None else []
        return EngineInfo(
            version=version.version if version is not None else None,
            model=cards[0].id if len(cards) == 1 else None,
            context_tokens=min((card.max_model_len for card in cards if card.max_model_len), default=None),
        )

    def tokenize(self, text: str, model: str | None) -> Call:
        """Special tokens written in the text count; no BOS is added."""
        named = {} if model is None else {"model": model}
        return Call("/tokenize", encode({**named, "prompt": text, "add_special_tokens": False}))

    def token_ids(self, body: bytes) -> tuple[int, ...]:
        """From `/tokenize`."""
        return token_ids(body)


ENGINE = Vllm


def _sampling(sampling: Sampling, choice: int, max_tokens: int) -> dict[str, Any]:
    """vLLM's names for what the client gave. Each choice has a seed of its own.

    With `ignore_eos` nothing that ends a turn is generated at all, as in llama.cpp: vLLM's own switch would write such tokens
    into the answer.
    """
    all_k = sampling.top_k is not None and sampling.top_k <= 0
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if all_k else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": None if sampling.seed is None else (sampling.seed + choice) % _SEEDS,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "min_tokens": max_tokens if sampling.ignore_eos else sampling.min_tokens,
    }
    return {name: value for name, value in fields.items() if value is not None}


class _Logprobs(msgspec.Struct, gc=False):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


class _Version(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_EVENT = Decoder(_Event)
_VERSION = Decoder(_Version)
_MODELS = Decoder(_Models)


class VllmReader:
    """Reads one stream. Its last tokens are held until the end mark: the usage comes after them, with what was cached, and the
    connection can be used again.

    The id that ended the turn is a stop id, whether the limit was reached with it or not, or a special token that only vLLM knows
    for an end. Any other is part of the answer, whatever vLLM stopped for.
    """

    def __init__(self, stop_ids: frozenset[int], special_ids: Collection[int], *, alternatives: int | None) -> None:
        """`alternatives` as the request's `logprobs`."""
        self._stop_ids = stop_ids
        self._special_ids = special_ids
        self._alternatives = alternatives
        self._last: Chunk | None = None
        self.done = False

    def chunk(self, event: SseEvent) -> Chunk | None:
        """One event; None for the usage, and after the end."""
        if self.done:
            return None
        data = mended(event.data)
        if data == b"[DONE]":
            if self._last is None:
                raise EngineBroke("The engine ended without saying why.")
            self.done = True
            return self._last
        said = read(_EVENT, data)
        if said.error is not None:
            raise failure_in_stream(said.error)
        if said.choices:
            return self._answer(said.choices)
        if said.usage is None:
            raise EngineBroke("The engine sent an event that says nothing.")
        if self._last is not None:
            self._last = msgspec.structs.replace(self._last, usage=_usage(said.usage))
        return None

    def _answer(self, choices: Sequence[_Choice]) -> Chunk | None:
        """The tokens of an event; None for the last, which are held."""
        choice = choices[0]
        if len(choices) > 1 or choice.index != 0 or self._last is not None:
            raise EngineBroke("The engine sent more than the one answer that it was asked for.")
        if choice.token_ids is None:
            raise EngineBroke("The engine streams no token ids: it is no vLLM that knows `return_token_ids`.")
        ids = tuple(choice.token_ids)
        logprobs = () if self._alternatives is None else _logprobs(ids, choice.logprobs, self._alternatives)
        chunk = Chunk(tokens=len(ids), ids=ids, logprobs=logprobs)
        if choice.finish_reason is None:
            return chunk
        self._last = self._ended(chunk, ids, choice.finish_reason)
        return None

    def _ended(self, chunk: Chunk, ids: tuple[int, ...], why: str) -> Chunk:
        """The last tokens, with the end, and without the id that ended the turn."""
        reason = finish(_FINISH, why)
        last = ids[-1] if ids else None
        if last in self._stop_ids or (reason == "stop" and last in self._special_ids):
            return msgspec.structs.replace(chunk, ids=ids[:-1], stop_id=last, finish=reason)
        return msgspec.structs.replace(chunk, finish=reason)


def _usage(usage: _Usage) -> Usage:
    """`prompt_tokens_details` are there where the server was started with `--enable-prompt-tokens-details`."""
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens or 0, (details.cached_tokens or 0) if details is not None else 0)


def _logprobs(ids: Sequence[int], said: _Logprobs | None, alternatives: int) -> tuple[TokenLogprob, ...]:
    """One entry for each id. vLLM names the generated token first among the alternatives, even where it is one too many."""
    if said is None or not len(said.token_logprobs) == len(said.top_logprobs) == len(ids):
        raise EngineBroke("The engine sent tokens without their log probabilities.")
    entries = []
    for token, logprob, names in zip(ids, said.token_logprobs, said.top_logprobs, strict=True):
        likeliest = sorted(names.items(), key=lambda each: -each[1])[:alternatives]
        entries.append(TokenLogprob(token, logprob, tuple([(_named(name), other) for name, other in likeliest])))
    return tuple(entries)


def _named(name: str) -> int:
    """The id in `token_id:57`, which is how an alternative is named where ids are asked for."""
    found = _NAMED.fullmatch(name)
    if found is None or (token := int(found[1])) > _MAX_ID:
        raise EngineBroke("The engine named a token by its text, not by its id.")
    return token


def _said(decoder: Decoder[T], bodies: Sequence[bytes]) -> T | None:
    """What the first of these answers says; None where there is none, or it cannot be read."""
    try:
        return decoder.decode(bodies[0])
    except (JsonError, IndexError):
        return None
