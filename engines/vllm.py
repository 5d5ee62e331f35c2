"""vLLM's `/v1/completions`: token ids in, token ids out.

The ids of its stream are complete, also where a character is made of several tokens, and its text is not: the text of an end of
turn, and that of a cut character, is never sent. So the ids are what is read, and the gateway makes the text. `stop` strings are
never sent, so that an answer that stopped ends with the id that stopped it.

vLLM's own route for ids, `/inference/v1/generate`, is left alone: a server must be started with a flag of its own for it, and it
says nothing that this one does not.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engines.base import Call, EngineInfo, EngineLoad, Traits, Work
from engines.completions import CompletionsReader, model_info
from engines.events import token_ids
from engines.exposition import LoadScrape, Sample, Scrape, added, number, of_rank
from engines.gbnf import GrammarCache
from engines.kv_events import ZmqEvents
from engines.refusal import refusal
from gateway.errors import BadRequest, GatewayError
from gateway.request import Sampling
from gateway.wire.jsonio import encode

RANK_HEADER = "X-data-parallel-rank"
_SEEDS = 2**63  # the seeds of 64-bit numbers that are not negative
_RANK = "engine"
_CACHE = Scrape("vllm:cache_config_info")
_LOAD = LoadScrape(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    prompt_tokens="vllm:prompt_tokens_total",
    kv_usage="vllm:kv_cache_usage_perc",
    rank=_RANK,
)


class Vllm:
    """The adapter. It keeps the grammars of the last tool sets, in GBNF: vLLM's xgrammar reads llama.cpp's language."""

    kind = "vllm"
    traits = Traits(
        takes_ids=True,
        streams_ids=True,
        choices=False,
        constraints=frozenset({"json", "calls"}),
        same_penalties=frozenset({"repetition_penalty"}),  # the two others count what was generated only
        ranks=True,
        kv_events="zmq",
    )
    health_path = "/health"
    info_paths = ("/version", "/v1/models")
    identity_paths = ("/metrics",)
    load_paths = ("/metrics",)
    usage_path = None
    kv_path = None

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
        return Call("/v1/completions", encode(body), {} if work.rank is None else {RANK_HEADER: str(work.rank)})

    def reader(self, work: Work) -> CompletionsReader:
        """A fresh reader."""
        return CompletionsReader(work.stop_ids, work.special_ids, alternatives=work.request.logprobs, max_tokens=work.max_tokens)

    def error(self, status: int, body: bytes) -> GatewayError:
        """Nested under `error`. A stream has begun before vLLM looks at most fields, so that most refusals come in it."""
        return refusal(status, body)

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """From `/version` and `/v1/models`."""
        version, models = bodies if len(bodies) == len(self.info_paths) else (b"", b"")
        return model_info(models, version)

    def identity(self, bodies: Sequence[bytes], info: EngineInfo, rank: int | None) -> EngineInfo:
        """Labels of a metric describe its cache, the same for each rank: the tokens of one, and the blocks of all."""
        ranks = _CACHE.samples(b"".join(bodies[:1]))
        told = of_rank(ranks, _RANK, rank)
        if not told:
            return replace(info, block_tokens=None, kv_tokens=None)
        block = _figure(told[0], "block_size")
        tokens = _figure(told[0], "kv_cache_size_tokens")
        if math.isnan(tokens):  # older versions lack it
            tokens = block * _figure(told[0], "num_gpu_blocks") // len(ranks)
        return replace(info, block_tokens=added([block]), kv_tokens=added([tokens * len(told)]))

    def load(self, body: bytes, rank: int | None) -> EngineLoad:
        """From `/metrics`, which names data-parallel ranks `engine`."""
        return _LOAD.load(body, rank)

    def kv_usage(self, _body: bytes) -> None:
        """Its load says it."""

    def kv_reader(self) -> ZmqEvents:
        """A fresh reader."""
        return ZmqEvents()

    def tokenize(self, text: str, model: str | None) -> Call:
        """Special tokens written in the text count; no BOS is added."""
        named = {} if model is None else {"model": model}
        return Call("/tokenize", encode({**named, "prompt": text, "add_special_tokens": False}))

    def token_ids(self, body: bytes) -> tuple[int, ...]:
        """From `/tokenize`."""
        return token_ids(body)


ENGINE = Vllm


def _figure(sample: Sample, label: str) -> float:
    return number(sample.labels.get(label, ""))


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
