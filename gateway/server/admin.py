"""What only operators reach, on the admin port: the engines as they stand, taking one out, and what happened to a request.

Invariant: nothing here shows a key, a client's words, or an address's user and password. docs/admin.md describes the answers;
the page is `page.py`'s.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Annotated

import structlog
from fastapi import Depends, FastAPI, Query
from yarl import URL

from engines.base import EngineInfo
from gateway.errors import BadRequest, RouteNotFound, shown
from gateway.fleet.registry import Member, Registry
from gateway.observe.drift import Drift, State
from gateway.observe.explain import KEPT_REQUESTS, Explain, RequestStory, Rounded
from gateway.observe.redact import Redactor
from gateway.routing.breaker import BreakerState
from gateway.routing.view import Belief, EngineView
from gateway.server.site import OwnSite

_log = structlog.get_logger("interlock.admin")

_TEXT_CHARS = 256  # of what an engine says of itself


@dataclass(frozen=True, slots=True)
class BreakerEntry:
    """Whether traffic takes the engine out, and the share of its last requests that failed."""

    state: BreakerState
    failing: Rounded


@dataclass(frozen=True, slots=True)
class LoadEntry:
    """What the engine last said of its load, `age_s` ago."""

    running: int | None
    waiting: int | None
    kv_usage: Rounded | None
    age_s: Rounded


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """How right the router was of the engine's cache: attempts, and of those of late, faded, the tokens that were predicted and
    that it reported."""

    state: State
    right: int
    over: int
    under: int
    predicted_tokens: int
    reported_tokens: int


@dataclass(frozen=True, slots=True)
class EventsEntry:
    """Whether routing goes by what the engine tells of its cache (`live`), or why not; `off`: its settings name no events."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine as it stands. `draining`: an operator took it out; `leaving`: what names engines does so no more. `router`: what
    the router believes of it, `predictions` how right that was; `kv_events`: whether the engine itself tells it."""

    id: str
    model: str
    kind: str
    url: str
    ready: bool
    problem: str | None
    draining: bool
    leaving: bool
    breaker: BreakerEntry
    rests_s: Rounded
    share: Rounded
    running: int
    most_running: int | None
    load: LoadEntry | None
    info: EngineInfo
    weights: str
    router: Belief
    predictions: CacheEntry
    kv_events: EventsEntry


@dataclass(frozen=True, slots=True)
class Fleet:
    """All engines, in the order of the settings."""

    engines: list[EngineEntry]


@dataclass(frozen=True, slots=True)
class Explanations:
    """Requests, the newest first."""

    requests: list[RequestStory]


class Told:
    """What is known of an engine by its model and id: what the router believes, how right it was, and how the engine's own word
    counts."""

    def __init__(
        self,
        believed: Callable[[str, str], Belief],
        drift: Callable[[str, str], Drift],
        word: Callable[[str, str], tuple[str, str]] = lambda _model, _engine: ("off", ""),
    ) -> None:
        self.believed = believed
        self._drift = drift
        self._word = word

    def events(self, model: str, engine: str) -> EventsEntry:
        """Whose word counts."""
        return EventsEntry(*self._word(model, engine))

    def predictions(self, model: str, engine: str) -> CacheEntry:
        """How right."""
        drift = self._drift(model, engine)
        counts = drift.right, drift.over, drift.under
        return CacheEntry(drift.state, *counts, round(drift.predicted), round(drift.reported))


class Engines:
    """The registry's engines as an operator sees them."""

    def __init__(self, registry: Registry, told: Told) -> None:
        self.registry = registry
        self._told = told

    def entries(self, members: Collection[Member] | None = None) -> list[EngineEntry]:
        """These, or all in the order of the settings."""
        registry = self.registry
        wanted = registry.members.values() if members is None else members
        redact = Redactor(each.api_key for each in registry.members.values() if each.api_key).text
        views = {view.id: view for model in {each.model for each in wanted} for view in registry.view(model).engines}
        return [_entry(registry, member, views[member.id], self._told, redact) for member in wanted]


def add_admin(api: FastAPI, engines: Engines, explain: Explain, site: OwnSite) -> None:
    """`/fleet`, `/fleet/{id}/drain` and `/explain`, for what `site` lets through."""
    asked = [Depends(site.asked)]
    _add_fleet(api, engines, site)

    @api.get("/explain", dependencies=asked, summary="What happened to requests: where each attempt went, why, and how it ended")
    async def explained(
        request_id: Annotated[str | None, Query(description="One request, which may still run: its `x-request-id`")] = None,
        last: Annotated[str | None, Query(description=f"The last so many that are over: 1 to {KEPT_REQUESTS}")] = None,
    ) -> Explanations:
        if (request_id is None) == (last is None):
            raise BadRequest("Give `request_id` or `last`, and not both.", param="request_id" if last is None else "last")
        if last is not None:
            return Explanations(list(explain.last(_count(last))))
        story = explain.story(request_id or "")
        if story is None:
            raise RouteNotFound(
                f"No request {shown(request_id or '')} is known: it never came, or is not among the last {KEPT_REQUESTS}.",
                param="request_id",
                code="request_not_found",
            )
        return Explanations([story])


def _add_fleet(api: FastAPI, engines: Engines, site: OwnSite) -> None:
    path = "/fleet/{engine_id:path}/drain"
    asked, changed, registry = [Depends(site.asked)], [Depends(site.changed)], engines.registry

    def drain(engine_id: str, on: bool) -> EngineEntry:
        member = registry.members.get(engine_id)
        if member is None:
            raise RouteNotFound(f"There is no engine {shown(engine_id)} here.", param="id", code="engine_not_found")
        if registry.standing(engine_id).draining != on:
            registry.drain(engine_id, on)
            _log.info("engine drains: it gets no new requests" if on else "engine drains no more", engine=engine_id)
        return engines.entries([member])[0]

    @api.get("/fleet", dependencies=asked, summary="The engines as they stand")
    async def fleet() -> Fleet:
        return Fleet(engines.entries())

    @api.post(path, dependencies=changed, summary="The engine gets no new requests; those that run on it go on")
    async def begin(engine_id: str) -> EngineEntry:
        return drain(engine_id, True)

    @api.delete(path, dependencies=changed, summary="The engine gets new requests again")
    async def end(engine_id: str) -> EngineEntry:
        return drain(engine_id, False)


def _entry(registry: Registry, member: Member, view: EngineView, told: Told, redact: Callable[[str], str]) -> EngineEntry:
    standing, now_s = registry.standing(member.id), registry.now_s()
    load = standing.load(now_s)

    def cleaned(text: str | None) -> str | None:
        return None if text is None else redact(text)[:_TEXT_CHARS]

    return EngineEntry(
        id=member.id,
        model=member.model,
        kind=member.engine.kind,
        url=redact(_without_secrets(member.root)),
        ready=view.ready,
        problem=registry.problem(member.id),
        draining=standing.draining,
        leaving=standing.leaving,
        breaker=BreakerEntry(standing.breaker.state(now_s), standing.breaker.failing(now_s)),
        rests_s=view.rests_s,
        share=view.share,
        running=view.running,
        most_running=view.most_running,
        load=LoadEntry(load[1].running, load[1].waiting, load[1].kv_usage, load[0]) if load is not None else None,
        info=replace(standing.info, version=cleaned(standing.info.version), model=cleaned(standing.info.model)),
        weights=redact(view.weights),
        router=_rounded(told.believed(member.model, member.id)),
        predictions=told.predictions(member.model, member.id),
        kv_events=told.events(member.model, member.id),
    )


def _rounded(belief: Belief) -> Belief:
    return replace(
        belief,
        pending_prefill_s=round(belief.pending_prefill_s, 6),
        prefill_tokens_per_s=round(belief.prefill_tokens_per_s, 6),
        slowness=round(belief.slowness, 6),
    )


def _without_secrets(url: URL) -> str:
    return str(url.with_user(None).with_query(None).with_fragment(None))


def _count(last: str) -> int:
    if not (last.isascii() and last.isdigit() and len(last) <= len(str(KEPT_REQUESTS)) and 1 <= int(last) <= KEPT_REQUESTS):
        raise BadRequest(f"`last` must be a whole number from 1 to {KEPT_REQUESTS}.", param="last")
    return int(last)
