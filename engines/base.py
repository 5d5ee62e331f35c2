"""The one interface that every kind of engine has, and what engines differ in, as data.

An adapter is pure: it says what to send and reads what came. The connection belongs to `gateway.upstream`. One adapter is made
for each kind, one `Reader` for each attempt.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from gateway.errors import GatewayError
from gateway.request import Constraint, Delta, FinishReason, GenerateRequest, Usage
from gateway.wire.kv import KvReader
from gateway.wire.sse import SseEvent

MAX_COUNT = 1 << 40
"""Tokens. An engine that counts more of them counts wrongly."""
MAX_LOAD_BYTES = 1 << 21
"""What an engine says of itself is not read where it is longer."""

KvEventsWay = Literal["zmq", "poll"]
"""How an engine tells what its cache holds: it publishes it by ZMQ, or is asked."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a kind of engine can do.

    `takes_ids`: it generates from token ids (else the chat request is passed on: `format: engine`). `streams_ids`: the ids of
    every token come in the stream, so that markers are matched by id. `choices`: it can make several answers in one
    request. `constraints`: what its own structured output can enforce. `same_penalties`: the penalties, by their names in
    `Sampling`, for which tokens of the prompt count as those of the answer do. `ranks`: it can be told which data-parallel rank
    of it a request is for. `tells_cached`: each answer says how many tokens of its prompt were cached, though there be none; of
    others 0 may mean that they do not say. `kv_events`: how it tells what its cache
    holds, if it does.
    """

    takes_ids: bool
    streams_ids: bool
    choices: bool
    constraints: frozenset[Literal["json", "calls"]] = frozenset()
    same_penalties: frozenset[str] = frozenset()
    ranks: bool = False
    tells_cached: bool = False
    kv_events: KvEventsWay | None = None


class Work(msgspec.Struct, frozen=True):
    """One attempt's work for an engine. `model` is the name that the engine knows (None: its only one).

    `ids` is the prompt; empty for an engine that templates itself, which is given `request.body` instead. `stop_texts` are the
    stop ids' own texts, `special_ids` the vocabulary's special tokens. `visible` are the texts of those that the answer's format
    needs to see: markers and stop tokens. `choice` numbers the answers of one request
    (`n`, and tries beyond them): an engine that makes one answer at a time is asked `n` times, each with its own seed. `rank` is
    the data-parallel rank that it is for.
    """

    request: GenerateRequest
    ids: Sequence[int] = ()
    stop_ids: frozenset[int] = frozenset()
    stop_texts: Mapping[int, str] = msgspec.field(default_factory=dict)
    special_ids: Collection[int] = ()
    visible: tuple[str, ...] = ()
    constraint: Constraint | None = None
    max_tokens: int | None = None
    model: str | None = None
    choice: int = 0
    rank: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A generated token's log probability, and the likeliest ids in its place with theirs, likeliest first."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One event of an engine's answer.

    `tokens` counts the generated tokens that it carries, visible or not (0 for progress chunks). `ids` are complete or None.
    `stop_id` is set where one of the work's stop ids was generated, or an end of turn that only the engine knows: the turn ends
    before it, its own text is in no chunk, and it is not among `ids`. It may come one event after its token is counted, with
    `finish`, so that the usage and the connection are not lost. `finish` is why the engine stopped: `stop` covers end of turn
    and a grammar that was satisfied. `logprobs`, where the request asks for them, has an entry for each id, `stop_id` last.
    `usage` is what the engine said, though no counts are like that: `Tally` looks at them. `deltas` and `raw` come from engines
    that parse themselves: what the event says, and the event's own data.
    """

    choice: int = 0
    text: str = ""
    tokens: int = 0
    ids: tuple[int, ...] | None = None
    stop_id: int | None = None
    deltas: tuple[Delta, ...] = ()
    raw: bytes | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Reader(Protocol):
    """Reads one attempt's events in order. Raises EngineBroke for an event that is not what the protocol says."""

    def chunk(self, event: SseEvent) -> Chunk | None:
        """What one server-sent event means; None for one that means nothing (comments, keep-alives)."""

    def whole(self, body: bytes) -> Sequence[Chunk]:
        """The answer as one JSON value, which some engines, and what stands before them, give instead of a stream; the reader is
        done then. Raises EngineBroke, and for an error what `chunk` raises."""

    @property
    def done(self) -> bool:
        """Whether the protocol's own end was seen."""

    def ended(self) -> Chunk | None:
        """The connection has closed before that: what was held of an answer that is complete all the same, as it said why it
        ended; None where it is not."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself; None where it says nothing. Its cache finds a prompt again by blocks of `block_tokens`, and
    holds `kv_tokens`. It answers `slots` requests at a time, each out of a cache of its own."""

    version: str | None = None
    model: str | None = None
    context_tokens: int | None = None
    block_tokens: int | None = None
    kv_tokens: int | None = None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of its load: requests that it works on, others that it holds, how full its cache is (0 to 1); and, by
    which it is known again, the tokens of all prompts since it started and when that was (seconds since 1970). None where it says
    nothing, which is not 0."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prompt_tokens: int | None = None
    started_s: float | None = None


class Call(msgspec.Struct, frozen=True):
    """A request to an engine: path below its root, headers beside the standard ones, body."""

    path: str
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class Engine(Protocol):
    """One kind of engine."""

    @property
    def kind(self) -> str:
        """The name in settings: `llamacpp`, `vllm`, …"""

    @property
    def traits(self) -> Traits:
        """What it can do."""

    @property
    def health_path(self) -> str:
        """A GET of it answers 200 when the engine can serve."""

    @property
    def info_paths(self) -> tuple[str, ...]:
        """What to GET, in this order, for `info`. It is asked with every probe, so that it costs an engine little."""

    @property
    def identity_paths(self) -> tuple[str, ...]:
        """What to GET, in this order, for `identity`: once an engine has come, or come back, or is another."""

    @property
    def load_paths(self) -> tuple[str, ...]:
        """What to GET for `load`: the first of these that the engine has."""

    @property
    def usage_path(self) -> str | None:
        """What to GET beside them for `kv_usage`, where they do not say it."""

    @property
    def kv_path(self) -> str | None:
        """What to POST to be told what is new in its cache, where it is asked."""

    def call(self, work: Work) -> Call:
        """The request for one attempt. Always asks for a stream. Raises BadRequest for what the engine cannot do."""

    def reader(self, work: Work) -> Reader:
        """A fresh reader for the answer to `call(work)`."""

    def error(self, status: int, body: bytes) -> GatewayError:
        """An error answer as the client shall see it: ContextTooLong, EngineRefused or another EngineError."""

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """Reads the answers of `info_paths`. Never raises: what cannot be read is None."""

    def identity(self, bodies: Sequence[bytes], info: EngineInfo, rank: int | None) -> EngineInfo:
        """`info`, with what the answers of `identity_paths` say beside it: of this data-parallel rank, or of the whole engine.
        Never raises."""

    def load(self, body: bytes, rank: int | None) -> EngineLoad:
        """Reads the answer of one of `load_paths`, of this data-parallel rank or of the whole engine. Never raises."""

    def kv_usage(self, body: bytes) -> float | None:
        """Reads the answer of `usage_path`: how full its cache is (0 to 1), None where that is not told. Never raises."""

    def kv_reader(self) -> KvReader | None:
        """A fresh reader of what it tells of its cache; None where it tells nothing."""

    def tokenize(self, text: str, model: str | None) -> Call | None:
        """The request for the ids of a text in which special tokens count and to which nothing is added; None where the engine
        has none. `model` as in `Work`."""

    def token_ids(self, body: bytes) -> tuple[int, ...]:
        """Reads the answer to `tokenize`. Raises EngineBroke."""
