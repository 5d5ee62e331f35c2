"""SGLang's own `/generate`: token ids in, token ids out.

Each event has all ids since the beginning, or, with `--incremental-streaming-output`, those since the last one. Both count the
tokens so far, so that each event tells which it is. The ids are complete, the one that ended the turn among them, and the text
is never read: what SGLang leaves out of it (`skip_special_tokens`, `no_stop_trim`) does not matter. `stop` strings are never
sent, so that an answer that stopped ends with the id that stopped it.

A stream has begun before SGLang looks at the request, so that most refusals come in it: as an error, or as an answer that was
aborted.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from engines.base import Call, Chunk, EngineInfo, EngineLoad, TokenLogprob, Traits, Work
from engines.completions import TokenId, may_end, model_info, together, without_end
from engines.events import finish, mended, read, token_ids, understood
from engines.exposition import LoadScrape, added, fullest
from engines.gbnf import GrammarCache
from engines.kv_events import ZmqEvents
from engines.refusal import ErrorObject, failure_in_stream, refusal
from gateway.errors import BadRequest, ContextTooLong, EngineBroke, GatewayError
from gateway.request import FinishReason, Sampling, Usage
from gateway.wire.jsonio import Decoder, encode
from gateway.wire.sse import SseEvent

_SEEDS = 2**63  # the seeds of 64-bit numbers that are not negative
_MAX_REPETITION = 2
_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}
_UNSAID = math.nan
_NO_LOGPROB = -9999.0  # what OpenAI says of a token that is not among the likeliest
_TOO_LONG = re.compile(r"input \((\d+) tokens\) is longer than the model's context length \((\d+) tokens\)")


class Sglang:
    """The adapter. It keeps the grammars of the last tool sets, in GBNF: SGLang's xgrammar reads llama.cpp's language."""

    kind = "sglang"
    traits = Traits(
        takes_ids=True,
        streams_ids=True,
        choices=False,
        constraints=frozenset({"json", "calls"}),
        ranks=True,
        tells_cached=True,
        kv_events="zmq",
    )
    health_path = "/health"
    info_paths = ("/v1/models",)
    identity_paths = ("/server_info",)
    load_paths = ("/metrics", "/v1/loads?include=core")
    usage_path = None
    kv_path = None

    def __init__(self) -> None:
        self._grammars = GrammarCache()

    def call(self, work: Work) -> Call:
        """Raises BadRequest for a constraint that no grammar can hold, and for settings that SGLang does not take. The name of
        the model is not sent: a server has one, and `/generate` no field for it."""
        request = work.request
        sampling: dict[str, Any] = {
            "max_new_tokens": work.max_tokens,  # null: to the end of the context; without it 128
            "stop_token_ids": sorted(work.stop_ids),
            **_sampling(request.sampling, work.choice, work.max_tokens),
        }
        if work.constraint is not None:
            sampling["ebnf"] = self._grammars.grammar(work.constraint, request.tools)
        body: dict[str, Any] = {"input_ids": work.ids, "stream": True, "sampling_params": sampling}
        if request.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": request.logprobs}
        if work.rank is not None:
            body["routed_dp_rank"] = work.rank
        return Call("/generate", encode(body))

    def reader(self, work: Work) -> "SglangReader":
        """A fresh reader."""
        return SglangReader(work.stop_ids, work.special_ids, alternatives=work.request.logprobs, max_tokens=work.max_tokens)

    def error(self, status: int, body: bytes) -> GatewayError:
        """A text under `error` from `/generate` itself, and flat from what stands before it."""
        return refusal(status, body)

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """From `/v1/models`, which lists LoRA adapters too."""
        return model_info(bodies[0]) if bodies else EngineInfo()

    def identity(self, bodies: Sequence[bytes], info: EngineInfo, rank: int | None) -> EngineInfo:
        """From `/server_info`, which asks every scheduler. Its count of tokens is that of one data-parallel rank."""
        told = (understood(_SERVER, bodies[0]) if bodies else None) or _Server()
        ranks = told.dp_size if rank is None else 1
        return replace(
            info, version=told.version, block_tokens=added([told.page_size]), kv_tokens=added([told.max_total_num_tokens * ranks])
        )

    def load(self, body: bytes, rank: int | None) -> EngineLoad:
        """From `/metrics`, where the server was started with `--enable-metrics`, else from `/v1/loads`."""
        if not body.startswith(b"{"):
            return _LOAD.load(body, rank)
        told = understood(_LOADS, body)
        loads = [each for each in told.loads if rank in (None, each.dp_rank)] if told is not None else []
        return EngineLoad(
            running=added(each.num_running_reqs for each in loads),
            waiting=added(each.num_waiting_reqs for each in loads),
            kv_usage=fullest(each.token_usage for each in loads),
        )

    def kv_usage(self, _body: bytes) -> None:
        """Its load says it."""

    def kv_reader(self) -> ZmqEvents:
        """A fresh reader."""
        return ZmqEvents()

    def tokenize(self, text: str, _model: str | None) -> Call:
        """Special tokens written in the text count; no BOS is added."""
        return Call("/tokenize", encode({"prompt": text, "add_special_tokens": False}))

    def token_ids(self, body: bytes) -> tuple[int, ...]:
        """From `/tokenize`."""
        return token_ids(body)


ENGINE = Sglang


def _sampling(sampling: Sampling, choice: int, max_tokens: int | None) -> dict[str, Any]:
    """SGLang's names for what the client gave. Each choice has a seed of its own.

    With `ignore_eos` nothing that ends a turn is generated at all, as in llama.cpp: SGLang's own switch would write such tokens
    into the answer.
    """
    if sampling.repetition_penalty is not None and sampling.repetition_penalty > _MAX_REPETITION:
        raise BadRequest("'repetition_penalty' is at most 2 for this model's engine.", param="repetition_penalty")
    if sampling.ignore_eos and max_tokens is None:
        raise BadRequest("'max_tokens' is needed with 'ignore_eos': the context length is not known.", param="max_tokens")
    all_k = sampling.top_k is not None and sampling.top_k <= 0
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if all_k else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "sampling_seed": None if sampling.seed is None else (sampling.seed + choice) % _SEEDS,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "min_new_tokens": max_tokens if sampling.ignore_eos else sampling.min_tokens,
    }
    return {name: value for name, value in fields.items() if value is not None}


class _Entry(msgspec.Struct, array_like=True, gc=False):
    logprob: float | None
    id: TokenId


class _Finish(msgspec.Struct, gc=False):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct, gc=False):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: _Finish | None = None
    output_token_logprobs: list[_Entry] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None


class _Event(msgspec.Struct, gc=False):
    output_ids: list[TokenId] | None = None
    meta_info: _Meta | None = None
    error: ErrorObject | str | None = None


class _Server(msgspec.Struct):
    version: str | None = None
    page_size: float = _UNSAID
    max_total_num_tokens: float = _UNSAID
    dp_size: float = 1


class _Load(msgspec.Struct):
    dp_rank: int = 0
    num_running_reqs: float = _UNSAID
    num_waiting_reqs: float = _UNSAID
    token_usage: float = _UNSAID


class _Loads(msgspec.Struct):
    loads: list[_Load]


_EVENT = Decoder(_Event)
_SERVER = Decoder(_Server)
_LOADS = Decoder(_Loads)
_LOAD = LoadScrape(  # a rank's schedulers may each tell its requests, and tell them again by priority
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    prompt_tokens="sglang:prompt_tokens_total",
    kv_usage="sglang:token_usage",
    rank="dp_rank",
    copies=True,
)


class SglangReader:
    """Reads one stream. Its last tokens are held until the end mark, so that the connection can be used again. Tokens that end
    with a stop id are the last, whether a reason comes with them or not, unless others follow. The first event tells what was
    cached, for an answer that the gateway ends early."""

    def __init__(
        self,
        stop_ids: frozenset[int],
        special_ids: Collection[int],
        *,
        alternatives: int | None,
        max_tokens: int | None = None,
    ) -> None:
        """`alternatives` as the request's `logprobs`. An answer of `max_tokens` tokens needs no reason: the limit was one."""
        self._stop_ids = stop_ids
        self._special_ids = special_ids
        self._alternatives = alternatives
        self._max_tokens = max_tokens
        self._seen = 0
        self._newest: int | None = None
        self._last: Chunk | None = None
        self._held: Chunk | None = None  # without a reason, and a stop id at its end
        self.done = False

    def ended(self) -> Chunk | None:
        """The last tokens, where the reason was seen, or must be the end of the turn or the limit."""
        if self._last is None and self._held is not None:
            return without_end(self._held, "stop", self._stop_ids, self._special_ids)
        return Chunk(finish="length") if self._last is None and self._seen == self._max_tokens else self._last

    def chunk(self, event: SseEvent) -> Chunk | None:
        """One event; None for tokens that are held, the last and those that may be, and after the end."""
        if self.done:
            return None
        data = mended(event.data)
        return self._end() if data == b"[DONE]" else self._event(data)

    def whole(self, body: bytes) -> tuple[Chunk, ...]:
        """Written as an event that has everything."""
        first, last = self._event(mended(body)), self._end()
        return (last,) if first is None else (first, last)

    def _end(self) -> Chunk:
        if (last := self.ended()) is None:
            raise EngineBroke("The engine ended without saying why.")
        self.done = True
        return last

    def _event(self, data: bytes) -> Chunk | None:
        said = read(_EVENT, data)
        if said.error is not None:
            raise _failure(said.error)
        if self._last is not None:
            raise EngineBroke("The engine went on after the end of its answer.")
        if said.output_ids is None or said.meta_info is None:
            raise EngineBroke("The engine sent an event without token ids: it is no SGLang whose `/generate` streams them.")
        return self._tokens(said.output_ids, said.meta_info)

    def _tokens(self, ids: Sequence[int], meta: _Meta) -> Chunk | None:
        if (end := meta.finish_reason) is not None:
            _check_end(end)
        first = self._seen == 0
        skip = self._known(ids, meta.completion_tokens)
        new = tuple(ids[skip:])
        logprobs = () if self._alternatives is None else _logprobs(new, meta, skip, self._alternatives)
        usage = Usage(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
        self._seen = meta.completion_tokens
        self._newest = ids[-1] if ids else self._newest
        chunk = Chunk(tokens=len(new), ids=new, usage=usage if first or end is not None else None, logprobs=logprobs)
        if self._held is not None:
            chunk, self._held = together(self._held, chunk), None
        if end is None and may_end(chunk, self._stop_ids):
            self._held = msgspec.structs.replace(chunk, usage=usage)
            return None
        if end is None:
            return chunk
        self._last = without_end(chunk, finish(_FINISH, end.type), self._stop_ids, self._special_ids)
        return None

    def _known(self, ids: Sequence[int], count: int) -> int:
        """How many of the ids of an event came before, when there are `count` in all: all that were seen, or none."""
        seen = self._seen
        if seen + len(ids) == count:
            return 0
        if len(ids) != count or count < seen:
            raise EngineBroke("The engine's count of tokens is not that of the ids that it sent.")
        if ids[seen - 1] != self._newest:
            raise EngineBroke("The engine changed tokens that it had sent.")
        return seen


def _check_end(end: _Finish) -> None:
    """Raises for an answer that SGLang gave up. It ends with a text only where a number that is none was generated: we send no
    stop strings."""
    if end.type == "abort":
        raise _failure(ErrorObject(message=end.message, code=end.status_code))
    if isinstance(end.matched, str):
        raise EngineBroke("The engine generated a token that is none, and ended the answer.")


def _failure(error: ErrorObject | str) -> GatewayError:
    """The failure for an error in the stream; a prompt that is too long has a sentence of its own."""
    message = error if isinstance(error, str) else error.message or ""
    if sizes := _TOO_LONG.search(message):
        return ContextTooLong(int(sizes[1]), int(sizes[2]))
    return failure_in_stream(error)


def _logprobs(ids: Sequence[int], meta: _Meta, skip: int, alternatives: int) -> tuple[TokenLogprob, ...]:
    """One entry for each of the new ids: lists are as the ids are, all of them or the new ones."""
    told = (meta.output_token_logprobs or [])[skip:]
    likeliest = (meta.output_top_logprobs or [])[skip:] if alternatives else [None] * len(ids)
    if [entry.id for entry in told] != list(ids) or len(likeliest) != len(ids):
        raise EngineBroke("The engine sent tokens without their log probabilities.")
    entries = []
    for entry, others in zip(told, likeliest, strict=True):
        known = [(other.id, other.logprob) for other in others or () if other.logprob is not None][:alternatives]
        entries.append(TokenLogprob(entry.id, _NO_LOGPROB if entry.logprob is None else entry.logprob, tuple(known)))
    return tuple(entries)
