"""What the engines that speak OpenAI Completions with token ids have in common: vLLM, and TensorRT-LLM as `trtllm-serve` has it.

Invariant: the ids are the truth, and their text is never read. The id that ended the turn is none of the answer's.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import msgspec

from engines.base import Chunk, EngineInfo, TokenLogprob
from engines.events import finish, mended, read, understood
from engines.refusal import ErrorObject, failure_in_stream
from gateway.errors import EngineBroke
from gateway.request import FinishReason, Usage
from gateway.wire.jsonio import Decoder
from gateway.wire.sse import SseEvent

MAX_ID = 2**31 - 1
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "repetition": "length",  # vLLM cut an answer that went in circles
}
_NAMED = re.compile("token_id:([0-9]{1,10})")


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Logprobs(msgspec.Struct, gc=False):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


_EVENT = Decoder(_Event)
_MODELS = Decoder(_Models)
_VERSION = Decoder(_Version)


class CompletionsReader:
    """Reads one stream. Its last tokens are held until the end mark: the usage comes after them, with what was cached, and the
    connection can be used again. Tokens that end with a stop id are the last, whether a reason comes with them or not, unless
    others follow.
    """

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
        self._left = max_tokens
        self._last: Chunk | None = None
        self._held: Chunk | None = None  # without a reason, and a stop id at its end
        self.done = False

    def chunk(self, event: SseEvent) -> Chunk | None:
        """One event; None for the usage, and after the end."""
        if self.done:
            return None
        data = mended(event.data)
        if data == b"[DONE]":
            if (last := self.ended()) is None:
                raise EngineBroke("The engine ended without saying why.")
            self.done = True
            return last
        said = read(_EVENT, data)
        if said.error is not None:
            raise failure_in_stream(said.error)
        if said.choices:
            return self._answer(said.choices)
        if said.usage is not None and self._last is not None:
            self._last = msgspec.structs.replace(self._last, usage=_usage(said.usage))
        elif said.usage is not None and self._held is not None:
            self._held = msgspec.structs.replace(self._held, usage=_usage(said.usage))
        return None

    def whole(self, body: bytes) -> tuple[Chunk, ...]:
        """Written as an event that has everything."""
        said = read(_EVENT, mended(body))
        if said.error is not None:
            raise failure_in_stream(said.error)
        first = self._answer(said.choices) if said.choices else None
        if (last := self.ended()) is None:
            raise EngineBroke("The engine ended without saying why.")
        self.done = True
        if said.usage is not None:
            last = msgspec.structs.replace(last, usage=_usage(said.usage))
        return (last,) if first is None else (first, last)

    def ended(self) -> Chunk | None:
        """The last tokens, where the reason was seen, or must be the end of the turn or the limit."""
        if self._last is None and self._held is not None:
            return without_end(self._held, "stop", self._stop_ids, self._special_ids)
        return Chunk(finish="length") if self._last is None and self._left == 0 else self._last

    def _answer(self, choices: Sequence[_Choice]) -> Chunk | None:
        """The tokens of an event; None for those that are held: the last, and those that may be."""
        choice = choices[0]
        if len(choices) > 1 or choice.index != 0 or self._last is not None:
            raise EngineBroke("The engine sent more than the one answer that it was asked for.")
        if choice.token_ids is None:
            raise EngineBroke("The engine streams no token ids: see that its `kind` is right, and its version new enough.")
        ids = tuple(choice.token_ids)
        logprobs = () if self._alternatives is None else _logprobs(ids, choice.logprobs, self._alternatives)
        chunk = Chunk(tokens=len(ids), ids=ids, logprobs=logprobs)
        self._left = None if self._left is None else self._left - len(ids)
        if self._held is not None:
            chunk, self._held = together(self._held, chunk), None
        if choice.finish_reason is None:
            if not may_end(chunk, self._stop_ids):
                return chunk
            self._held = chunk
            return None
        self._last = without_end(chunk, finish(_FINISH, choice.finish_reason), self._stop_ids, self._special_ids)
        return None


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
    if found is None or (token := int(found[1])) > MAX_ID:
        raise EngineBroke("The engine named a token by its text, not by its id.")
    return token


def _usage(usage: _Usage) -> Usage:
    """vLLM says what was cached where it was started with `--enable-prompt-tokens-details`."""
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens or 0, (details.cached_tokens or 0) if details is not None else 0)


def without_end(chunk: Chunk, reason: FinishReason, stop_ids: frozenset[int], special_ids: Collection[int]) -> Chunk:
    """The last tokens of an engine that streams every id, with the end, and without the id that ended the turn.

    That is a stop id, whether the limit was reached with it or not, or a special token that only the engine knows for an end. Any
    other is part of the answer, whatever the engine stopped for.
    """
    ids = chunk.ids or ()
    last = ids[-1] if ids else None
    if last in stop_ids or (reason == "stop" and last in special_ids):
        return msgspec.structs.replace(chunk, ids=ids[:-1], stop_id=last, finish=reason)
    return msgspec.structs.replace(chunk, finish=reason)


def may_end(chunk: Chunk, stop_ids: frozenset[int]) -> bool:
    """Whether these tokens, to which no reason was said, are the last all the same where none follow: they end with a stop id."""
    return not stop_ids.isdisjoint((chunk.ids or ())[-1:])


def together(held: Chunk, more: Chunk) -> Chunk:
    """Tokens that were held, and those that follow them."""
    return msgspec.structs.replace(
        more,
        tokens=held.tokens + more.tokens,
        ids=(*(held.ids or ()), *(more.ids or ())),
        logprobs=(*held.logprobs, *more.logprobs),
        usage=held.usage if more.usage is None else more.usage,
    )


def model_info(models: bytes, version: bytes = b"") -> EngineInfo:
    """What `/v1/models`, which lists one model under each of its names, and its adapters, and `/version` say."""
    listed = understood(_MODELS, models)
    told = understood(_VERSION, version)
    cards = listed.data if listed is not None else []
    return EngineInfo(
        version=told.version if told is not None else None,
        model=cards[0].id if len(cards) == 1 else None,
        context_tokens=min((card.max_model_len for card in cards if card.max_model_len), default=None),
    )
