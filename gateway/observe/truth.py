"""Whether the router is right: what it decided and believed, beside what came, as metrics, and an alarm in the log.

Invariant: as for the metrics that this is a part of; one line of the log where the alarm begins, and one where it ends.
"""

from collections.abc import Callable
from typing import get_args

import structlog

from gateway.events import AttemptStarted, CacheTold, Prefilled
from gateway.observe.drift import Compared, Drift, Result
from gateway.observe.group import Group, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter, Gauge, Histogram, Labels, Names
from gateway.routing.policy import Why

_ERRORS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
_RATIOS = (0.1, 0.25, 0.4, 0.64, 0.8, 1, 1.25, 1.5625, 2.5, 4, 10)  # each with its inverse
_LEAST_S = 0.001  # a shorter prediction counts as this
_NO_ENGINE = ("none", "hold")  # no attempt begins with these words
_WHYS = tuple(why for why in get_args(Why) if why not in _NO_ENGINE)
_COMPARED = "of the attempts whose engine says what it had"
_CAUSES = (
    "it makes other tokens of a prompt than the gateway (another chat template or tokenizer, a cache salt, an adapter), "
    "its prefix cache is off or smaller than it says, it stopped telling what it had, it was restarted, "
    "or other clients fill its cache"
)

_log = structlog.get_logger("interlock.routing")


class RoutingTruth(Group):
    """What the router decided and believed, and how right it was of each engine."""

    def __init__(self) -> None:
        self._why = Names(_WHYS)
        self._drifts: dict[Pair, Drift] = {}
        self._decisions = Counter(
            "interlock_route_decisions_total", "Attempts, by why they went to this engine.", (*PAIR, "reason")
        )
        self._predicted = Counter(
            "interlock_predicted_cached_prompt_tokens_total",
            f"Prompt tokens that the router believed in the engine's cache, {_COMPARED}:"
            " to be divided by interlock_compared_cached_prompt_tokens_total.",
            PAIR,
        )
        self._reported = Counter(
            "interlock_compared_cached_prompt_tokens_total",
            f"Prompt tokens that the engine had in its cache, {_COMPARED}: what was predicted is compared with these."
            " interlock_cached_prompt_tokens_total is of every answer, also of those that were gone on with elsewhere.",
            PAIR,
        )
        self._predictions = Counter(
            "interlock_cache_predictions_total",
            "Attempts by what the router believed of the cache: right (within a chunk, or 5% of the prompt), over (it believed in"
            " more than there was), under.",
            (*PAIR, "result"),
        )
        self._error = Histogram(
            "interlock_cache_prediction_error_ratio",
            f"Tokens between what the router believed in the cache and what the engine had, by those of the prompt, {_COMPARED}.",
            PAIR,
            _ERRORS,
        )
        self._ttft = Histogram(
            "interlock_predicted_ttft_ratio",
            "Time of an attempt to the engine's first token, by what the router predicted (1 ms at the least).",
            PAIR,
            _RATIOS,
        )
        told = Gauge(
            "interlock_cache_prediction_drift",
            "1: the engine has much less in its cache than the router believes. None before it tells what it has.",
            PAIR,
            lambda: [(pair, float(drift.alarm)) for pair, drift in self._drifts.items() if drift.told],
        )
        super().__init__(
            "Routing",
            (self._decisions, self._predicted, self._reported, self._predictions, self._error, self._ttft, told),
            {AttemptStarted: self._decided, Prefilled: self._prefilled, CacheTold: self._told},
        )

    def of(self, model: str, engine: str) -> Drift:
        """How right the router was of an engine, as far as it is known."""
        return self._drifts.get((model, engine)) or Drift()

    def starts(self, served: Served, engine: str) -> Starts:
        """Every decision and result."""
        pair = (served.model, engine)
        yield self._predicted, [pair]
        yield self._reported, [pair]
        yield self._predictions, [(*pair, result) for result in get_args(Result)]
        yield self._decisions, [(*pair, why) for why in _WHYS]

    def forget(self, gone: Callable[[Labels], bool]) -> None:
        """What was learned of these engines."""
        self._drifts = {pair: drift for pair, drift in self._drifts.items() if not gone(pair)}

    def _decided(self, pair: Pair, event: AttemptStarted) -> None:
        self._decisions.add((*pair, self._why(event.why)))

    def _prefilled(self, pair: Pair, event: Prefilled) -> None:
        if event.forecast is not None:
            self._ttft.add(pair, event.ttft_s / max(event.forecast.ttft_s, _LEAST_S))

    def _told(self, pair: Pair, event: CacheTold) -> None:
        forecast = event.forecast
        drift = self._drifts.setdefault(pair, Drift())
        compared = drift.take(forecast.prompt_tokens, forecast.cached_tokens, event.cached_tokens, forecast.unit_tokens)
        if compared is None:
            return
        self._predicted.add(pair, compared.predicted)
        self._reported.add(pair, compared.reported)
        self._predictions.add((*pair, compared.result))
        self._error.add(pair, compared.error)
        if compared.turn is not None:
            _tell(pair, drift, compared)


def _tell(pair: Pair, drift: Drift, compared: Compared) -> None:
    model, engine = pair
    about = {
        "model": model,
        "engine": engine,
        "predicted_cached_tokens": round(drift.predicted),
        "reported_cached_tokens": round(drift.reported),
    }
    if compared.turn == "began":
        _log.warning(
            "the engine has much less in its cache than the router believes: requests go there for prefixes that it makes anew",
            **about,
            likely=_CAUSES,
        )
    else:
        _log.info("the engine has in its cache what the router believes again", **about)
