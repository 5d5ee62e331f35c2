"""Values of the settings as the parts take them."""

import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import metadata
from ipaddress import ip_address

from yarl import URL

from engines.base import Engine, KvEventsWay
from engines.exposition import Scrape
from engines.registry import known, make
from gateway.admission import Admission
from gateway.dialects.base import Limits
from gateway.fleet.discovery import Wire
from gateway.fleet.gpus import NAMES, Gpus
from gateway.fleet.kv_source import KvSource
from gateway.fleet.registry import Member, Registry
from gateway.fleet.standing import StandingRules
from gateway.lag import LoopLag
from gateway.model import Model
from gateway.observe.bus import Observer
from gateway.observe.group import Group, Served
from gateway.observe.overload import Overload
from gateway.observe.sending import Sender, counted
from gateway.observe.spans import Place
from gateway.observe.tracing import Tracing
from gateway.pressure import Pressure
from gateway.route import Guides
from gateway.routing.breaker import BreakerRules
from gateway.routing.choice import Chance, Tuning
from gateway.routing.queue import QueueRules
from gateway.routing.retry import RetryRules
from gateway.settings import EngineSettings, Settings
from gateway.settings_parts import FailureSettings, LimitSettings, RoutingSettings, TimeoutSettings, TracingSettings
from gateway.timer import StageLimits, Watchdog
from gateway.trace import Begin, passed_on
from gateway.upstream import Upstream


def wire_with(environ: Mapping[str, str], hide: Callable[[str], None]) -> Wire:
    """Makes the members of engines' entries, with the keys of this environment. `hide` is told each: none may be logged."""
    engines: Mapping[str, Engine] = {kind: make(kind) for kind in known()}

    def wire(model: str, entry: EngineSettings) -> Member:
        key = environ[entry.api_key_env] if entry.api_key_env else None
        if key is not None:
            hide(key)
        return Member(
            id=entry.id,
            model=model,
            engine=engines[entry.kind],
            root=URL(entry.url),
            engine_model=entry.model,
            api_key=key,
            weights=entry.weights,
            most_running=entry.most_running,
            kv_events=kv_source(entry, engines[entry.kind].traits.kv_events),
            gpus=entry.gpus,
        )

    return wire


def kv_source(entry: EngineSettings, way: KvEventsWay | None) -> KvSource | None:
    """Where an entry's engine tells what its cache holds."""
    told = entry.kv_events
    if told is None or way is None:
        return None
    return KvSource(way, told.endpoint or "", told.replay_endpoint, told.topic, told.bind, told.poll_s)


def gpus_of(url: str, registry: Registry, upstream: Upstream) -> Gpus:
    """What reads the exporter there."""
    return Gpus(URL(url), registry, upstream, Scrape(*NAMES).samples)


def served(settings: Settings, models: tuple[Model, ...]) -> list[Served]:
    """What the metrics name from the start. Engines that names, ranks and files stand for join later."""
    named = {each.name: tuple(e.id for e in each.engines if not e.resolve and e.ranks is None) for each in settings.models}
    return [Served(wired.name, named[wired.name], wired.format_names(), wired.rendered is not None) for wired in models]


def stage_limits(timeouts: TimeoutSettings) -> StageLimits:
    """Seconds of each stage."""
    return StageLimits(
        connect_s=timeouts.connect_s,
        headers_s=timeouts.headers_s,
        first_token_s=timeouts.first_token_s,
        between_tokens_s=timeouts.between_tokens_s,
        client_s=timeouts.client_s,
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


def queue_rules(limits: LimitSettings) -> QueueRules:
    """Who may wait."""
    return QueueRules(limits.queue_requests, limits.queue_wait_s, limits.down_wait_s)


def tuning(routing: RoutingSettings) -> Tuning:
    """How engines are chosen."""
    return Tuning(**routing.model_dump())


class Gate:
    """What stands between clients and engines: who may start and where, how close the gateway is to its limits, and the time
    limits of all. A lasting lateness of the loop of 1 s is a limit too. `clock` is the loop's; `chance` decides between engines
    that are equal."""

    def __init__(self, settings: Settings, registry: Registry, clock: Callable[[], float], chance: Chance) -> None:
        limits, models = settings.limits, [model.name for model in settings.models]
        self.watchdog = watchdog = Watchdog()
        self.admission = admission = Admission(registry, queue_rules(limits), watchdog)
        self.guides = Guides(models, tuning(settings.routing), clock, chance)
        self.pressure = pressure = Pressure(limits.inflight_requests, {"lag": lambda: self.lag.lasting_s})
        self.metrics = Overload(models, admission.depths, lambda: admission.fill, lambda: pressure.level, lambda: self.lag.most_s)
        self.lag = LoopLag(self.metrics.ticked)


class Traces:
    """Who begins the trace of each request, hears what becomes of it, and sends its spans while `sending`. Without a collector in
    the settings nobody does."""

    def __init__(self, settings: TracingSettings, registry: Registry, clock: Callable[[], float]) -> None:
        self.begin: Begin = passed_on
        self.observers: tuple[Observer, ...] = ()
        self.sending: AbstractAsyncContextManager[None] = nullcontext()
        self.metrics: Group = counted()
        if settings.otlp_endpoint is None:
            return
        from gateway.observe.otlp import Otlp  # noqa: PLC0415  # it needs packages that not every installation has

        otlp = Otlp(settings.otlp_endpoint, metadata.version("interlock"), str(uuid.uuid4()))
        sender = Sender(otlp.send, otlp.close)
        tracing = Tracing(
            settings.sample_ratio,
            sender.put,
            place=lambda engine: _place(registry.members.get(engine)),
            clock_s=clock,
            wall_s=time.time,
            bits=secrets.randbits,
        )
        self.begin, self.observers, self.sending, self.metrics = (
            tracing.begin,
            (tracing,),
            sender.sending(),
            counted(sender.counts),
        )


def _place(member: Member | None) -> Place | None:
    return None if member is None else Place(member.engine.kind, member.root.host or "", member.root.port or 0)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
