"""The operator's page: what is wrong, the fleet, the last decisions and faults, and how each model is spoken to, as HTML.

Invariant: whatever names, errors and texts hold, the browser shows them as text and asks nobody else for anything: everything is
escaped, nothing is a script, and the content security policy allows the page's own style alone. The numbers are those of
`/metrics` and `/fleet`, read in the same moment.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, FastAPI, Query
from fastapi.responses import HTMLResponse
from jinja2 import Environment, StrictUndefined
from prometheus_client.core import Metric

from gateway.errors import BadRequest
from gateway.observe.explain import RequestStory
from gateway.observe.faults import FaultStory, LastFaults
from gateway.observe.shared import Shared
from gateway.server.admin import EngineEntry
from gateway.server.profiles import ModelProfile
from gateway.server.site import OwnSite
from gateway.top import wording
from gateway.top.rows import EngineRow
from gateway.top.scrape import FAMILIES, taken
from gateway.top.troubles import Trouble
from gateway.top.view import View, view_of
from gateway.top.window import History

REFRESH_S = 5
_WINDOW_S = 60.0
_SHARED_S = 0.5  # for so long a page is given to whoever asks
_DECISIONS = 12
_MOST_REFRESH_S = 3600
_ASKS_AGAIN, _TURN = "<!-- asks again -->", "<!-- turn -->"  # of the template alone, as all else that is put in is escaped

Moment = Callable[[Collection[str]], Callable[[], Iterable[Metric]]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page is made of: each is asked for what is known now."""

    moment: Moment
    engines: Callable[[], Sequence[EngineEntry]]
    decisions: Callable[[int], Iterable[RequestStory]]
    faults: LastFaults
    draining: Callable[[], bool]
    models: tuple[ModelProfile, ...]


@dataclass(frozen=True, slots=True)
class _Moment:
    """What was read on the loop, for another thread to make a page of."""

    at: datetime
    at_s: float
    metrics: Callable[[], Iterable[Metric]]
    engines: Sequence[EngineEntry]
    decisions: Sequence[RequestStory]
    faults: Sequence[FaultStory]
    draining: bool


class Page:
    """Makes the page, in a thread of its own, one at a time: those who ask within half a second share one, however often each
    has it asked for again. `clock_s` never goes back."""

    def __init__(self, facts: Facts, clock_s: Callable[[], float]) -> None:
        self._facts = facts
        self._clock_s = clock_s
        self._history = History(_WINDOW_S)
        self._shared = Shared(self._copied, "page", old_s=_SHARED_S)
        style = files("gateway.server").joinpath("page.css").read_text("utf-8")
        environment = Environment(
            autoescape=True, finalize=_visible, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters |= _FILTERS
        environment.globals["style"] = style
        self._template = environment.from_string(files("gateway.server").joinpath("page.html").read_text("utf-8"))
        self.headers = _headers(style)

    async def html(self, refresh_s: int) -> str:
        """The page of now, which the browser asks for again after so many seconds; 0: it does not."""
        html = await self._shared(None)
        return html.replace(_ASKS_AGAIN, _asks_again(refresh_s)).replace(_TURN, _turn(refresh_s))

    def _copied(self) -> Callable[[None], str]:
        facts = self._facts
        moment = _Moment(
            datetime.now(UTC),
            self._clock_s(),
            facts.moment(FAMILIES),
            facts.engines(),
            tuple(facts.decisions(_DECISIONS)),
            facts.faults.last(),
            facts.draining(),
        )
        return lambda _: self._render(moment)

    def _render(self, moment: _Moment) -> str:
        view = view_of(self._history.add(taken(moment.metrics(), moment.at_s)))
        measured = {(row.model, row.engine): row for row in view.engines}
        fleet = [(entry, measured.get((entry.model, entry.id))) for entry in moment.engines]
        return self._template.render(
            at=moment.at,
            version=version("interlock"),
            view=replace(view, troubles=_with_reasons(view, moment.engines)),
            fleet=sorted(fleet, key=_badness),
            decisions=moment.decisions,
            faults=_folded(moment.faults),
            draining=moment.draining,
            models=self._facts.models,
            texts=self._facts.faults.shows,
        )


def add_page(api: FastAPI, page: Page, site: OwnSite) -> None:
    """`/`, for what `site` lets through."""

    @api.get("/", dependencies=[Depends(site.asked)], summary="The operator's page", response_class=HTMLResponse)
    async def shown(
        refresh: Annotated[str | None, Query(description="Seconds until the browser asks again; 0: it does not")] = None,
    ) -> HTMLResponse:
        return HTMLResponse(await page.html(_seconds(refresh)), headers=page.headers)


def _asks_again(refresh_s: int) -> str:
    return f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""


def _turn(refresh_s: int) -> str:
    if refresh_s:
        return f'every {refresh_s} s <a href="/?refresh=0">pause</a>'
    return f'paused <a href="/?refresh={REFRESH_S}">go on</a>'


def _seconds(refresh: str | None) -> int:
    if refresh is None:
        return REFRESH_S
    if not (refresh.isascii() and refresh.isdigit() and len(refresh) <= 4 and int(refresh) <= _MOST_REFRESH_S):
        raise BadRequest(f"`refresh` must be a whole number from 0 to {_MOST_REFRESH_S}.", param="refresh")
    return int(refresh)


def _headers(style: str) -> dict[str, str]:
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    return {
        "content-security-policy": (
            f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }


def _with_reasons(view: View, engines: Sequence[EngineEntry]) -> tuple[Trouble, ...]:
    """What is wrong, with what the probes say of engines that are down, which metrics do not tell."""
    problems = {(each.model, each.id): each.problem for each in engines if each.problem}

    def told(trouble: Trouble) -> Trouble:
        problem = problems.get((trouble.model or "", trouble.engine or "")) if trouble.what == "down" else None
        return replace(trouble, what=f"down: {problem}") if problem else trouble

    return tuple(map(told, view.troubles))


def _folded(faults: Sequence[FaultStory]) -> list[tuple[FaultStory, int]]:
    """The newest of those that say the same of the same engine, with how many they are."""
    same: dict[tuple[object, ...], tuple[FaultStory, int]] = {}
    for fault in faults:
        key = (fault.model, fault.engine, fault.format, fault.kind, fault.before, fault.after)
        first, times = same.get(key, (fault, 0))
        same[key] = (first, times + 1)
    return list(same.values())


def _badness(pair: tuple[EngineEntry, EngineRow | None]) -> tuple[bool, bool, float]:
    """The worst first, else in the order of the settings."""
    entry, row = pair
    return entry.ready, entry.breaker.state == "closed", -((row.failed_share if row is not None else None) or 0.0)


def _visible(value: object) -> object:
    """What is shown of any value but a piece of the page itself."""
    return wording.visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


_FILTERS: Mapping[str, Callable[..., str]] = {
    "seconds": wording.seconds,
    "rate": wording.rate,
    "count": wording.count,
    "share": wording.share,
    "words": wording.text,
    "clock": _time,
    "query": partial(quote, safe="", errors="replace"),
}
