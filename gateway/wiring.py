"""Values of the settings as the parts take them."""

from collections.abc import Mapping
from ipaddress import ip_address

from yarl import URL

from engines.base import Engine
from engines.registry import known, make
from gateway.dialects.base import Limits
from gateway.fleet.registry import Member
from gateway.fleet.standing import StandingRules
from gateway.model import Model
from gateway.observe.metrics import Served
from gateway.routing.breaker import BreakerRules
from gateway.routing.retry import RetryRules
from gateway.settings import Settings
from gateway.settings_parts import FailureSettings, LimitSettings, TimeoutSettings
from gateway.timer import StageLimits


def members(settings: Settings, environ: Mapping[str, str]) -> list[Member]:
    """Every engine of the settings, wired."""
    engines: Mapping[str, Engine] = {kind: make(kind) for kind in known()}
    return [
        Member(
            id=engine.id,
            model=model.name,
            engine=engines[engine.kind],
            root=URL(engine.url),
            engine_model=engine.model,
            api_key=environ[engine.api_key_env] if engine.api_key_env else None,
            weights=engine.weights,
            most_running=engine.most_running,
        )
        for model in settings.models
        for engine in model.engines
    ]


def secrets(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """The values that must never be logged."""
    return [environ[e.api_key_env] for m in settings.models for e in m.engines if e.api_key_env]


def served(settings: Settings, models: tuple[Model, ...]) -> list[Served]:
    """What the metrics name."""
    return [
        Served(wired.name, tuple(engine.id for engine in model.engines), wired.format_names(), wired.rendered is not None)
        for model, wired in zip(settings.models, models, strict=True)
    ]


def stage_limits(timeouts: TimeoutSettings) -> StageLimits:
    """Seconds of each stage."""
    return StageLimits(
        connect_s=timeouts.connect_s,
        headers_s=timeouts.headers_s,
        first_token_s=timeouts.first_token_s,
        between_tokens_s=timeouts.between_tokens_s,
        total_s=timeouts.total_s,
    )


def retry_rules(failures: FailureSettings) -> RetryRules:
    """How often an answer is tried."""
    return RetryRules(failures.attempts, failures.retries, failures.retry_share)


def standing_rules(failures: FailureSettings) -> StandingRules:
    """When traffic takes an engine out."""
    breaker = BreakerRules(failures=failures.eject_failures, failing=failures.eject_share, open_s=failures.eject_s)
    return StandingRules(breaker, failures.slow_start_s)


def request_limits(limits: LimitSettings) -> Limits:
    """What one request may ask."""
    return Limits(n=limits.n, stop=limits.stop, logprobs=limits.logprobs, tools=limits.tools, messages=limits.messages)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
