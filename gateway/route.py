"""Where answers go: a router for each model, and what each answer was charged for and has to give back.

Invariant: an engine is chosen and charged in one step, without a wait between; and a route that is closed has nothing charged,
however its answer ended.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from engines.base import EngineInfo
from gateway.request import GenerateRequest, Prompt
from gateway.routing.chain import ChainCache, packed, root_key, text_chain
from gateway.routing.choice import Chance, Choice, Query, Tuning
from gateway.routing.router import Router
from gateway.routing.view import Belief, FleetView, Forecast
from gateway.wire.jsonio import encode

_TEXT_CHUNK_BYTES = 512
_TOKEN_BYTES = 4.0  # of a text, until an engine has counted some
_NEWEST_SHARE = 0.05  # of the last prompt in the mean


class Asked(msgspec.Struct, frozen=True):
    """What of a request decides where it goes. `data` are the prompt's packed ids, empty where an engine makes the prompt: then
    `tokens` are estimated, up to the end of each key too, and `text_bytes` is what they are estimated from. `unit_tokens`: a key
    stands for no more. `affinity`: whose session it says it is of."""

    keys: tuple[int, ...]
    tokens: int
    data: bytes = b""
    text_bytes: int = 0
    ends: tuple[int, ...] = ()
    unit_tokens: float | None = None
    affinity: str | None = None


class Guide:
    """One model's router, and how its prompts become keys. `clock` is the loop's."""

    def __init__(self, model: str, tuning: Tuning, clock: Callable[[], float], chance: Chance) -> None:
        self.model = model
        self.router = Router(tuning, chance)
        self.clock = clock
        self.root = root_key(model)
        self.chunk_tokens = tuning.chunk_tokens
        self._chains = ChainCache(tuning.chunk_tokens)
        self._token_bytes = _TOKEN_BYTES

    def asked(self, request: GenerateRequest, prompt: Prompt | None, affinity: str | None) -> Asked:
        """The keys are those of the prompt's ids, or of the text that an engine makes its prompt from."""
        if prompt is not None:
            data = packed(prompt.ids)
            return Asked(self._chains.chain(data, self.root), len(prompt.ids), data, affinity=affinity)
        parts = [encode(each) for each in (request.tools, request.template_kwargs, *request.messages)]
        keys, ends = text_chain(parts, _TEXT_CHUNK_BYTES, self.root)
        each = self._token_bytes
        told = tuple([int(end / each) for end in ends])
        return Asked(keys, max(1, told[-1]), b"", ends[-1], told, _TEXT_CHUNK_BYTES / each, affinity)

    def after(self, asked: Asked, answer: Sequence[int], output_tokens: int | None = None) -> tuple[int, ...] | None:
        """The keys of the prompt with its answer: what the next turn begins with. None: they are not known. The last of the
        `output_tokens` is left out, as no engine has worked on it: where a stop id is counted, that is no part of `answer`."""
        made = len(answer) if output_tokens is None else output_tokens
        done = answer[: max(0, made - 1)]
        if not asked.data or not done:
            return None
        return self._chains.chain(asked.data + packed(done), self.root)

    def counted(self, asked: Asked, prompt_tokens: int, cached_tokens: int | None) -> int | None:
        """How many tokens an engine made of a prompt: how long they are is learned. What it had of them is given back in tokens
        as the prompt was taken for: the same part of it."""
        if not asked.text_bytes or prompt_tokens <= 0:
            return cached_tokens
        self._token_bytes += _NEWEST_SHARE * (asked.text_bytes / prompt_tokens - self._token_bytes)
        return None if cached_tokens is None else round(cached_tokens * asked.tokens / prompt_tokens)


class Guides:
    """Those of all models. What engines tell of their caches ends here too: see `gateway.fleet.kv_events.KvIndex`."""

    def __init__(self, models: Iterable[str], tuning: Tuning, clock: Callable[[], float], chance: Chance) -> None:
        self.chunk_tokens = tuning.chunk_tokens
        self._guides: Mapping[str, Guide] = {model: Guide(model, tuning, clock, chance) for model in models}

    def of(self, model: str) -> Guide:
        """The model's. Raises KeyError."""
        return self._guides[model]

    def told(self, model: str, engine: str, info: EngineInfo) -> None:
        """What an engine says of itself: how much it can hold."""
        if info.kv_tokens is not None and (guide := self._guides.get(model)) is not None:
            guide.router.capacity(engine, info.kv_tokens)

    def believed(self, model: str, engine: str) -> Belief:
        """What the model's router believes of an engine."""
        return self._guides[model].router.snapshot(engine)

    def root(self, model: str) -> int:
        """Of a model's keys."""
        return self._guides[model].root

    def trust(self, model: str, engine: str, live: bool, block_tokens: int) -> None:
        """Whether the engine's word counts from now on: what follows is all that it holds."""
        self._guides[model].router.trust(engine, live, block_tokens)

    def stored(self, model: str, engine: str, after: int | None, keys: tuple[int, ...]) -> None:
        """It holds these, which go on from each other, and from `after`; None: from the root."""
        guide = self._guides[model]
        guide.router.stored(engine, after, keys, guide.clock())

    def removed(self, model: str, engine: str, keys: tuple[int, ...]) -> None:
        """It holds none of these."""
        self._guides[model].router.removed(engine, keys)

    def cleared(self, model: str, engine: str) -> None:
        """It holds nothing."""
        self._guides[model].router.cleared(engine)

    def agrees(self, model: str, engine: str) -> bool:
        """False: it told of nothing in prompts that it answered."""
        return self._guides[model].router.agrees(engine)


class Route:
    """One answer's way through the fleet: one attempt after the other, each on the engine that is chosen here."""

    def __init__(self, guide: Guide, asked: Asked, request: str) -> None:
        self._guide = guide
        self._asked = asked
        self._request = request
        self._open = False
        self.forecast: Forecast | None = None

    def enters(self, view: FleetView) -> Choice:
        """Where the answer goes, which may wait for a better place."""
        return self._choose(view, patient=True)

    def first(self, view: FleetView) -> Choice:
        """Where it goes now."""
        return self._choose(view)

    def next(self, view: FleetView, avoid: Collection[str], weights: str | None = None) -> Choice:
        """Where it goes after a failure; the arguments as for `gateway.routing.policy.eligible`."""
        return self._choose(view, avoid=avoid, weights=weights)

    def prefilled(self) -> None:
        """The attempt's first token came."""
        self._guide.router.first_token(self._request, self._guide.clock())

    def served(self, prompt_tokens: int, output_tokens: int, cached_tokens: int | None, answer: Sequence[int]) -> None:
        """The attempt gave the whole answer. `answer` are its ids, as far as they are known; `cached_tokens` None: not told."""
        guide, now_s = self._guide, self._guide.clock()
        had = guide.counted(self._asked, prompt_tokens, cached_tokens)
        guide.router.finished(self._request, now_s, output_tokens, had, guide.after(self._asked, answer, output_tokens))
        self._open = False

    def close(self) -> None:
        """The attempt is over, or none comes: nothing stays charged. Nothing where that is so already."""
        if self._open:
            self._guide.router.cancelled(self._request, self._guide.clock())
            self._open = False

    def _choose(
        self, view: FleetView, *, patient: bool = False, avoid: Collection[str] = (), weights: str | None = None
    ) -> Choice:
        asked = self._asked
        known = (asked.keys, asked.tokens, asked.ends, asked.unit_tokens, asked.affinity)
        query = Query(self._request, *known, avoid, weights, patient=patient)
        choice = self._guide.router.choose(query, view, self._guide.clock())
        self._open, self.forecast = choice.engine is not None, choice.forecast
        return choice
