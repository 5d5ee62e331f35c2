"""Scrapes without a gateway: what a part of `/metrics` says, in few words."""

from collections.abc import Mapping

from gateway.top.scrape import Scrape, read

ENGINE = 'model="m",engine="e"'
UP: Mapping[str, float] = {
    'interlock_queue_depth{model="m",priority="0"}': 0,
    f"interlock_engine_up{{{ENGINE}}}": 1,
    f"interlock_engine_breaker_state{{{ENGINE}}}": 0,
    f"interlock_inflight_requests{{{ENGINE}}}": 3,
    f'interlock_requests_total{{{ENGINE},dialect="openai_chat",outcome="ok"}}': 0,
    f'interlock_requests_total{{{ENGINE},dialect="openai_chat",outcome="timeout"}}': 0,
    f"interlock_completion_tokens_total{{{ENGINE}}}": 0,
}
"""One model with one engine, which was not asked yet."""


def text_of(samples: Mapping[str, float]) -> bytes:
    """As `/metrics` writes them."""
    return "".join(f"{name} {value}\n" for name, value in samples.items()).encode()


def scrape(at_s: float, samples: Mapping[str, float] | None = None, **changed: float) -> Scrape:
    """`UP`, or other samples, at a moment. `changed` are samples of the one engine: `engine_up=0`."""
    more = {f"interlock_{name}{{{ENGINE}}}": value for name, value in changed.items()}
    return read(text_of({**(UP if samples is None else samples), **more}), at_s)


def ended(outcome: str) -> str:
    """The sample that counts the requests with this outcome."""
    return f'interlock_requests_total{{{ENGINE},dialect="openai_chat",outcome="{outcome}"}}'


def buckets(name: str, **counts: float) -> dict[str, float]:
    """A histogram of the one engine: `_0_1=3` is three at or below 0.1 s, `inf` all."""
    bounds = {each: "+Inf" if each == "inf" else each[1:].replace("_", ".") for each in counts}
    return {f'interlock_{name}_bucket{{{ENGINE},le="{bounds[each]}"}}': count for each, count in counts.items()}
