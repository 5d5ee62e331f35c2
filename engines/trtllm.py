"""TensorRT-LLM's `/v1/completions`, as `trtllm-serve` has it: token ids in, token ids out.

With `detokenize: false` its stream has ids and no text, and nothing that detokenises costs it anything. A field that it does not
know is an error, so that the body has none but those that every version has. `stop` strings are never sent. Stop ids are sent as
stop words, and `include_stop_str_in_output` keeps them in the ids: without it they are cut off, and not counted.

Log probabilities are refused: it names the likeliest tokens by their texts, which are not one to one. So is `min_tokens`: it
forbids only the one end of turn that it knows itself, not the stop ids that it is given.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from engines.base import Call, EngineInfo, EngineLoad, Traits, Work
from engines.completions import CompletionsReader, model_info
from engines.events import token_ids, understood
from engines.exposition import LoadScrape, Scrape, added, fullest, of_rank
from engines.gbnf import GrammarCache
from engines.kv_events import TrtllmEvents
from engines.refusal import refusal
from gateway.errors import BadRequest, GatewayError
from gateway.request import GenerateRequest, Sampling
from gateway.wire.jsonio import Decoder, encode

_SEEDS = 2**63  # the seeds of 64-bit numbers that are not negative
_NEVER = -100.0  # the least bias that it takes
_UNSAID = math.nan
_BLOCKS = ("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks")
_CACHE = Scrape(*_BLOCKS)
_LOAD = LoadScrape(
    running="trtllm_num_requests_running",
    waiting="trtllm_num_requests_waiting",
    prompt_tokens="trtllm_prompt_tokens_total",
    kv_usage="trtllm_kv_cache_utilization",
)


class TrtLlm:
    """The adapter. It keeps the grammars of the last tool sets, in GBNF: TensorRT-LLM's xgrammar reads llama.cpp's language."""

    kind = "trtllm"
    traits = Traits(takes_ids=True, streams_ids=True, choices=False, constraints=frozenset({"json", "calls"}), kv_events="poll")
    health_path = "/health"
    info_paths = ("/version", "/v1/models")
    identity_paths = ("/prometheus/metrics",)
    load_paths = ("/prometheus/metrics", "/metrics")
    usage_path = None
    kv_path = "/kv_cache_events"

    def __init__(self) -> None:
        self._grammars = GrammarCache()

    def call(self, work: Work) -> Call:
        """Raises BadRequest for a constraint that no grammar can hold, for what TensorRT-LLM lacks, and where nothing says how
        long the answer may be: versions differ in what they do then."""
        request = work.request
        _check(request, work.max_tokens)
        body: dict[str, Any] = {
            "model": work.model if work.model is not None else request.model,  # required, though a server has one
            "prompt": work.ids,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": False},
            "detokenize": False,
            "max_tokens": work.max_tokens,
            **_sampling(request.sampling, work.choice),
            **_ends(request.sampling, work.stop_ids),
        }
        if work.constraint is not None:
            body["response_format"] = {"type": "ebnf", "ebnf": self._grammars.grammar(work.constraint, request.tools)}
        return Call("/v1/completions", encode(body))

    def reader(self, work: Work) -> CompletionsReader:
        """A fresh reader."""
        return CompletionsReader(work.stop_ids, work.special_ids, alternatives=None, max_tokens=work.max_tokens)

    def error(self, status: int, body: bytes) -> GatewayError:
        """Flat, or a text under `error` for a body that it does not take."""
        return refusal(status, body)

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """From `/version` and `/v1/models`. It does not say how long a context is."""
        version, models = bodies if len(bodies) == len(self.info_paths) else (b"", b"")
        return model_info(models, version)

    def identity(self, bodies: Sequence[bytes], info: EngineInfo, rank: int | None) -> EngineInfo:
        """The blocks of its cache are metrics, from the first step that it makes."""
        sizes, blocks = (
            [each.value for body in bodies for each in of_rank(_CACHE.samples(body), None, rank) if each.name == name]
            for name in _BLOCKS
        )
        tokens = [size * number for size, number in zip(sizes, blocks, strict=False)]
        return replace(info, block_tokens=added(sizes[:1]), kv_tokens=added(tokens))

    def load(self, body: bytes, rank: int | None) -> EngineLoad:
        """From `/prometheus/metrics`; else from the newest entry of the list that `/metrics` gives, once."""
        if not body.startswith(b"["):
            return _LOAD.load(body, rank)
        steps = understood(_STEPS, body) if rank is None else None
        if not steps:
            return EngineLoad()
        newest, cache = steps[-1], steps[-1].cache
        return EngineLoad(
            running=added([newest.running]),
            waiting=added([newest.waiting]),
            kv_usage=fullest([cache.used / cache.most]) if cache is not None and cache.most else None,
        )

    def kv_usage(self, _body: bytes) -> None:
        """Its load says it."""

    def kv_reader(self) -> TrtllmEvents:
        """A fresh reader."""
        return TrtllmEvents()

    def tokenize(self, _text: str, _model: str | None) -> None:
        """It has no route that could tell: some versions have one, which adds special tokens."""

    def token_ids(self, body: bytes) -> tuple[int, ...]:
        """Of no use here."""
        return token_ids(body)


ENGINE = TrtLlm


class _Cache(msgspec.Struct):
    used: float = msgspec.field(default=_UNSAID, name="usedNumBlocks")
    most: float = msgspec.field(default=_UNSAID, name="maxNumBlocks")


class _Step(msgspec.Struct):
    running: float = msgspec.field(default=_UNSAID, name="numActiveRequests")
    waiting: float = msgspec.field(default=_UNSAID, name="numQueuedRequests")
    cache: _Cache | None = msgspec.field(default=None, name="kvCacheStats")


_STEPS = Decoder(list[_Step])


def _check(request: GenerateRequest, max_tokens: int | None) -> None:
    if max_tokens is None:
        raise BadRequest("'max_tokens' is needed: the model's context length is not known.", param="max_tokens")
    if request.logprobs is not None:
        raise BadRequest("'logprobs' is not supported by this model's engine.", param="logprobs")
    if request.sampling.min_tokens:
        raise BadRequest("'min_tokens' is not supported by this model's engine.", param="min_tokens")


def _sampling(sampling: Sampling, choice: int) -> dict[str, Any]:
    """TensorRT-LLM's names for what the client gave. Each choice has a seed of its own."""
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": None if sampling.top_k is None else max(sampling.top_k, 0),
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": None if sampling.seed is None else (sampling.seed + choice) % _SEEDS,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _ends(sampling: Sampling, stop_ids: frozenset[int]) -> dict[str, Any]:
    """What ends the answer. With `ignore_eos` nothing that ends a turn shall be generated, as in llama.cpp: TensorRT-LLM's own
    switch alone would write such tokens into the answer, so that they are biased away. It may disable stop words too."""
    bias = dict(sampling.logit_bias)
    if sampling.ignore_eos:
        bias |= dict.fromkeys(sorted(stop_ids), _NEVER)
    biased = {"logit_bias": {str(token): value for token, value in bias.items()}} if bias else {}
    if sampling.ignore_eos:
        return {"ignore_eos": True, **biased}
    return {"stop_token_ids": sorted(stop_ids), "include_stop_str_in_output": True, **biased}
