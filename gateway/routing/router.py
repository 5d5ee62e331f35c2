"""The router of one model: chooses an engine and charges it in one call, so that a burst cannot choose by one picture.

The caller says when a first token came, and when and how a request ended; from that alone come the load, the speed, the
capacity and what is believed to be cached. Every dispatch enters the index, whatever policy chose the engine.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import inf, log
from typing import NamedTuple

from gateway.routing.choice import Chance, Choice, Query, Tuning
from gateway.routing.cost import Load, Need, kappa, terms
from gateway.routing.ledger import Charge, Ledger
from gateway.routing.policy import Field, Why, eligible
from gateway.routing.prefill import PrefillModel, Work, work
from gateway.routing.prefix import EngineMap, PrefixIndex
from gateway.routing.reuse import ReuseGaps
from gateway.routing.sharing import lent_units, shared_levels
from gateway.routing.slots import Slots
from gateway.routing.view import Belief, EngineView, FleetView, Forecast, Terms

_CAPACITY_TOKENS = 512 * 1024  # of an engine that has not said it: adapted from what it reports
_EQUAL_S = 1e-3  # costs this close are equal: none is known so well
_MOST_FAILING = 0.9  # an engine that always failed is given some requests too, or it would never be seen to serve
_LEAST_TOLD = 2  # keys of a prompt of which an engine must tell something
_SHOWN_COSTS = 16  # of a decision, so many are kept

Costs = tuple[tuple[str, float], ...]


class _Bid(NamedTuple):
    """What a request would find on one engine. An engine makes the last token of a prompt anew, whatever it has."""

    engine: EngineView
    terms: Terms
    matched: int
    cached_tokens: int
    work: Work


class Router:
    """One model's. `chance` breaks ties."""

    def __init__(self, tuning: Tuning, chance: Chance) -> None:
        self._tuning = tuning
        self._chance = chance
        self._index = PrefixIndex(tuning.index_entries)
        self._ledger = Ledger(self._units(_CAPACITY_TOKENS))
        self._speed = PrefillModel()
        self._reuse = ReuseGaps()
        self._slots: dict[str, Slots] = {}  # of engines that share nothing between requests
        self._last_turn = ""
        self._engines: tuple[str, ...] = ()
        self._disputed: set[str] = set()

    @property
    def entries(self) -> int:
        """Keys in the index."""
        return len(self._index)

    @property
    def open(self) -> int:
        """Requests that are charged and not over."""
        return len(self._ledger)

    @property
    def idle(self) -> bool:
        """Whether nothing at all is charged, pinned or expected anywhere."""
        return not self.open and self._ledger.idle and self._index.idle

    def pending_s(self, engine: str) -> float:
        """Prefill sent there and not yet answered by a first token, in seconds; exactly 0 where there is none."""
        return self._ledger.account(engine).pending_ns * 1e-9

    def snapshot(self, engine: str) -> Belief:
        """What is believed of an engine now."""
        held, account, chunk_tokens = self._index.get(engine), self._ledger.account(engine), self._tuning.chunk_tokens
        slowness = self._speed.factor(engine)
        return Belief(
            index_entries=len(held) if held is not None else 0,
            pinned_entries=held.pinned if held is not None else 0,
            capacity_tokens=account.capacity_units * chunk_tokens,
            pending_prefill_s=self.pending_s(engine),
            prefill_tokens_per_s=1.0 / (self._speed.token_s * slowness),
            slowness=slowness,
        )

    def capacity(self, engine: str, tokens: int) -> None:
        """How many tokens of KV memory an engine says it has."""
        account = self._ledger.account(engine)
        account.tell_capacity(self._units(tokens))
        self._map(engine).capacity = account.capacity_units

    def choose(self, query: Query, view: FleetView, now_s: float) -> Choice:
        """The engine, charged with the request, or none: none can serve (`wait_s`), or it had better wait here (`hold`)."""
        self.cancelled(query.request, now_s)
        self._meet(view)
        field = eligible(view, avoid=query.avoid, weights=query.weights)
        if not field.engines:
            return Choice(None, "none", view.engines, field.wait_s, field.returns, field.full)
        bid, why, costs = self._pick(query, view, field, now_s)
        found = bid.terms
        ttft_s = found.wait_s + found.memory_s + found.prefill_s
        unit_tokens = query.unit_tokens or self._tuning.chunk_tokens
        forecast = Forecast(query.tokens, bid.cached_tokens, ttft_s, found, unit_tokens, costs)
        if why == "cheapest" and query.patient and self._had_better_wait(bid):
            return Choice(None, "hold", view.engines, awaits=bid.engine.id, forecast=forecast)
        self._charge(query, bid, now_s)
        return Choice(bid.engine.id, field.why(bid.engine, why), view.engines, forecast=forecast)

    def first_token(self, request: str, now_s: float, cached_tokens: int | None = None) -> None:
        """The engine has made the prompt of a request: its speed is learned."""
        charge = self._ledger.get(request)
        if charge is None:
            return
        if cached_tokens is not None:
            charge.cached_tokens = cached_tokens
        if charge.first_s is None:
            charge.first_s = now_s
            account = self._ledger.account(charge.engine)
            took_s = account.first_token(charge, now_s)
            if charge.prompt:
                self._speed.observe(charge.engine, charge.work, took_s, idle=account.idle)
            else:
                self._speed.pass_over(charge.engine)

    def finished(
        self,
        request: str,
        now_s: float,
        output_tokens: int,
        cached_tokens: int | None = None,
        keys: tuple[int, ...] | None = None,
    ) -> None:
        """A request was answered whole. `cached_tokens`: what the engine says it had of the prompt. `keys` are those of the
        prompt with its answer, which the next turn begins with; None: not known."""
        charge = self._ledger.close(request, now_s)
        if charge is None:
            return
        held = self._release(charge)
        self._ledger.answered(charge, now_s, output_tokens)
        account = self._ledger.account(charge.engine)
        reported = charge.cached_tokens if cached_tokens is None else cached_tokens
        lost = account.compare(charge, reported, len(held))
        if lost is not None:
            self._dispute(charge.engine, held)
            held.forget(lost)
        held.capacity = account.capacity_units
        keys = charge.keys if keys is None else keys
        held.touch(keys, stamp := self._index.stamp(now_s))
        self._over(charge.engine, keys, now_s, whole=True)
        self._index.trim(held)
        if (slots := self._slots.get(charge.engine)) is not None:
            if lost is not None:
                slots.forget(lost)
            slots.ends(request, keys, stamp)
        if charge.engine not in self._engines:
            self._forget_gone()

    def cancelled(self, request: str, now_s: float) -> None:
        """A request is over without its end: cancelled, or failed. Without a first token, nothing of it is believed cached."""
        charge = self._ledger.close(request, now_s)
        if charge is None:
            return
        held = self._release(charge)
        if charge.first_s is None:
            held.drop_unproved(charge.keys, charge.held, charge.stamp)
            self._ledger.unserved(charge)
        keys = charge.keys[: held.match(charge.keys)]
        held.touch(keys, stamp := self._index.stamp(now_s))
        self._over(charge.engine, keys, now_s, whole=False)
        self._index.trim(held)
        if (slots := self._slots.get(charge.engine)) is not None:
            slots.ends(request, keys, stamp)
        if charge.engine not in self._engines:
            self._forget_gone()

    def engine_lost(self, engine: str) -> None:
        """It was restarted, or is gone: it holds nothing but what it has told since. Its requests end by themselves."""
        if not self.told(engine):
            self._map(engine).clear()
        self._slots.pop(engine, None)
        self._ledger.account(engine).restarted()
        self._map(engine).capacity = self._ledger.account(engine).capacity_units
        self._speed.forget(engine)

    # What engines tell of their caches (docs/kv-events.md)

    def trust(self, engine: str, live: bool, block_tokens: int = 0) -> None:
        """Whether the engine tells from now on what it holds. Begin with all that it holds, then with what changes. Prompts
        shorter than a block are not told of. What it told stays when it tells no more, as far as there is room."""
        held = self._map(engine)
        if live:
            self._disputed.discard(engine)
            held.tells(max(_LEAST_TOLD, -(-block_tokens // self._tuning.chunk_tokens)))
        else:
            held.silent()
            self._index.trim(held)

    def stored(self, engine: str, after: int | None, keys: Sequence[int], now_s: float) -> None:
        """The engine tells that it holds these keys, which go on from each other, and from `after`, which it told before; None:
        they are a prompt's first."""
        held = self._map(engine)
        held.stored(after, keys, self._index.stamp(now_s))
        self._check(engine, held, now_s)
        self._index.trim(held)

    def removed(self, engine: str, keys: Sequence[int]) -> None:
        """The engine tells that it holds these keys no more. What a running request of ours has of them stays."""
        self._map(engine).removed(keys)

    def cleared(self, engine: str) -> None:
        """The engine tells that it holds nothing."""
        self._map(engine).clear()

    def told(self, engine: str) -> bool:
        """Whether it is the engine's own word what it holds."""
        return self._map(engine).told

    def agrees(self, engine: str) -> bool:
        """False: of three prompts in a row that it answered it told nothing, or of two it reported nothing of what it had told.
        It is not believed until it is trusted anew."""
        return engine not in self._disputed

    def _over(self, engine: str, keys: Sequence[int], now_s: float, *, whole: bool) -> None:
        held = self._map(engine)
        held.over(keys, now_s, whole=whole)
        self._check(engine, held, now_s)

    def _check(self, engine: str, held: EngineMap, now_s: float) -> None:
        if held.disputed(now_s):
            self._dispute(engine, held)

    def _dispute(self, engine: str, held: EngineMap) -> None:
        if held.told:
            self._disputed.add(engine)
            held.silent()

    def _meet(self, view: FleetView) -> None:
        """Forgets what was known of engines that are others now, or gone."""
        for engine in view.engines:
            account = self._ledger.account(engine.id)
            if account.life != engine.life:
                if account.life is not None:
                    self.engine_lost(engine.id)
                account.life = engine.life
        engines = tuple(engine.id for engine in view.engines)
        if engines != self._engines:
            self._engines = engines
            self._forget_gone()

    def _forget_gone(self) -> None:
        """Nothing is kept of engines that are no more, once their last request is over."""
        for gone in self._ledger.forget(self._engines):
            self._index.forget(gone)
            self._slots.pop(gone, None)
            self._speed.forget(gone)
            self._disputed.discard(gone)

    def _pick(self, query: Query, view: FleetView, field: Field, now_s: float) -> tuple[_Bid, Why, Costs]:
        policy = self._tuning.policy
        if policy == "round_robin":
            return self._bids(query, [self._next(field.engines)], 1.0, now_s)[0], "turn", ()
        if policy == "least_outstanding":
            loads = _weighed(field.engines, [float(self._outstanding(engine)) for engine in field.engines], 1.0)
            return self._bids(query, [self._tie(query, field.engines, loads)], 1.0, now_s)[0], "least_busy", ()
        if policy == "session" and query.affinity is not None:
            return self._bids(query, [_rendezvous(query.affinity, field.engines)], 1.0, now_s)[0], "session", ()
        usable = [engine for engine in view.engines if engine.usable]
        work_s = sum(self._ledger.account(engine.id).work_s(now_s) for engine in usable)
        weight = kappa(work_s, len(usable), self._tuning.kappa_max)
        bids = self._bids(query, field.engines, weight, now_s)
        costs = _weighed(field.engines, [bid.terms.total_s for bid in bids], 0.0)
        best = self._tie(query, field.engines, costs)
        return bids[field.engines.index(best)], "cheapest", _shown(field.engines, costs, best)

    def _bids(self, query: Query, engines: Sequence[EngineView], weight: float, now_s: float) -> list[_Bid]:
        """What it would find on each. The loop is most of a decision's time in a large fleet."""
        keys, tokens, ends = query.keys, query.tokens, query.ends
        chunk_tokens = self._tuning.chunk_tokens
        unit_tokens = tokens / len(keys) if ends else chunk_tokens  # on average
        units, unit_s, answer_units = len(keys), self._speed.token_s * unit_tokens, self._units(self._ledger.answer_tokens)
        fleet = [(engine, self._map(engine.id), self._ledger.account(engine.id)) for engine in engines]
        levels = shared_levels(keys, [held.pins for _, held, _ in fleet]) if len(fleet) > 1 else ()
        bids = []
        for engine, held, account in fleet:
            matched, capacity = held.match(keys), held.capacity
            if matched and engine.slots is not None and (slots := self._slots.get(engine.id)) is not None:
                matched = min(matched, slots.finds(keys))
            cached_tokens = min(ends[matched - 1] if ends else matched * chunk_tokens, tokens - 1) if matched else 0
            todo = work(tokens - cached_tokens, cached_tokens)
            free, taken = capacity - len(held), held.pinned + held.expected
            crowded = matched and taken + units + answer_units > capacity
            pinned = held.match_pinned(keys, matched) if crowded else 0
            tail_chance = self._reuse.chance_after(now_s - held.oldest) if units - matched > free else 0.0
            lent = lent_units(levels, matched) * unit_tokens / (tokens - cached_tokens) if levels else 0.0
            prefill_s = self._speed.seconds(engine.id, todo)
            need = Need(units, matched, pinned, answer_units, prefill_s, unit_s, min(lent, 1.0))
            load = Load(
                account.wait_s(now_s),
                account.work_s(now_s),
                taken,
                capacity,
                free,
                tail_chance,
                account.hold_s,
                self._outstanding(engine) if engine.slots is not None else 0,
                engine.slots,
            )
            bids.append(_Bid(engine, terms(load, need, weight), matched, cached_tokens, todo))
        return bids

    def _had_better_wait(self, bid: _Bid) -> bool:
        """Only where something of ours runs, whose end will wake it, and those too that it would pass."""
        hold_s = self._tuning.hold_s
        if hold_s is None or not self._ledger.account(bid.engine.id).running:
            return False
        return bid.engine.claimed or bid.terms.memory_s > 0.0 or bid.terms.wait_s > hold_s

    def _charge(self, query: Query, bid: _Bid, now_s: float) -> None:
        held, used, proved = self._map(bid.engine.id), -inf, False
        before = self._ledger.sent_before(query.request)
        already = bid.matched if bid.engine.id not in self._slots else held.match(query.keys)
        if bid.matched:
            used = held.last_use(query.keys[bid.matched - 1])
            if before is None:
                self._reuse.seen(max(0.0, now_s - used))
            elif before[0] == bid.engine.id:  # that was its own use
                used = before[1]
            proved = held.match_pinned(query.keys, bid.matched) < bid.matched
        answer_units = self._units(self._ledger.answer_tokens)
        stamp = self._index.stamp(now_s)
        unit_tokens = query.unit_tokens or float(self._tuning.chunk_tokens)
        charge = Charge(
            query.request,
            bid.engine.id,
            query.keys,
            bid.cached_tokens,
            unit_tokens,
            bid.work,
            bid.terms.prefill_s,
            answer_units,
            stamp,
            bid.terms.memory_s <= 0.0,
            used,
            proved,
            already,
        )
        self._ledger.open(charge, now_s)
        held.expected += answer_units
        held.pin(query.keys, stamp)
        self._index.trim(held)
        if bid.engine.slots is not None:
            if (slots := self._slots.get(bid.engine.id)) is None:
                slots = self._slots[bid.engine.id] = Slots(bid.engine.slots)
            slots.follow(bid.engine.slots)
            slots.begins(query.request, query.keys)

    def _release(self, charge: Charge) -> EngineMap:
        held = self._map(charge.engine)
        held.unpin(charge.keys)
        held.expected -= charge.answer_units
        return held

    def _map(self, engine: str) -> EngineMap:
        found = self._index.get(engine)
        return self._index.of(engine, self._ledger.account(engine).capacity_units) if found is None else found

    def _units(self, tokens: float) -> int:
        return max(1, round(tokens / self._tuning.chunk_tokens))

    def _outstanding(self, engine: EngineView) -> int:
        return max(engine.running, self._ledger.account(engine.id).running)

    def _next(self, engines: Sequence[EngineView]) -> EngineView:
        after = [engine for engine in engines if engine.id > self._last_turn]
        chosen = min(after or engines, key=lambda engine: engine.id)
        self._last_turn = chosen.id
        return chosen

    def _tie(self, query: Query, engines: Sequence[EngineView], costs: Sequence[float]) -> EngineView:
        """The cheapest; of equals one with the fewest requests, of these the one that the hint names."""
        least = min(costs) + _EQUAL_S
        equal = [engine for engine, cost in zip(engines, costs, strict=True) if cost <= least]
        if len(equal) > 1:
            loads = _weighed(equal, [float(self._outstanding(engine)) for engine in equal], 1.0)
            fewest = min(loads)
            equal = [engine for engine, load in zip(equal, loads, strict=True) if load <= fewest]
        if len(equal) > 1 and query.affinity is not None:
            return _rendezvous(query.affinity, equal)
        return equal[int(self._chance.random() * len(equal))]


def _weighed(engines: Sequence[EngineView], costs: Sequence[float], own: float) -> list[float]:
    """What a request, itself a cost of `own`, costs on each for the part that the engine can take. One that fails is not as idle
    as it looks, since its requests are over at once: it counts as if those that failed were as dear as on the dearest."""
    dearest = max(costs)
    return [
        (cost + min(engine.failing, _MOST_FAILING) * dearest + own) / engine.share
        for engine, cost in zip(engines, costs, strict=True)
    ]


def _rendezvous(affinity: str, engines: Sequence[EngineView]) -> EngineView:
    """Of these, the engine that this session has. Each has a part of all sessions, by what it can take and how seldom it fails:
    when one goes, comes, or gets another part, only the sessions move that it loses or gets."""
    key = blake2b(affinity.encode(errors="surrogatepass"), digest_size=16).digest()  # it may be long

    def ranked(engine: EngineView) -> float:
        drawn = int.from_bytes(blake2b(key + b"\0" + engine.id.encode(), digest_size=7).digest(), "big")
        part = engine.share * (1.0 - min(engine.failing, _MOST_FAILING))
        return log((drawn + 0.5) / 2.0**56) / part

    return max(engines, key=ranked)


def _shown(engines: Sequence[EngineView], costs: Sequence[float], best: EngineView) -> Costs:
    """What each would have cost; of many the best and the cheapest."""
    if len(engines) <= _SHOWN_COSTS:
        return tuple([(engine.id, cost) for engine, cost in zip(engines, costs, strict=True)])
    bound = sorted(costs)[_SHOWN_COSTS - 1]
    return tuple([(each.id, cost) for each, cost in zip(engines, costs, strict=True) if cost < bound or each is best])
