"""The composition root: settings in, a wired gateway out. The only module that knows every part."""

import asyncio
import itertools
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from starlette.types import ASGIApp

from engines.base import EngineInfo
from engines.registry import known, make
from gateway.answer import AnswerRules
from gateway.budget import RetryBudget
from gateway.dialects.openai_chat import ModelCard, OpenAIChat, models_list
from gateway.errors import CLOSED, Draining, SettingsError
from gateway.fleet.discovery import DiscoveryRules, Membership
from gateway.fleet.gpus import Gpus
from gateway.fleet.kv_events import KvEvents
from gateway.fleet.loads import Loads
from gateway.fleet.parity import Parity
from gateway.fleet.probe import Prober
from gateway.fleet.registry import Member, Registry
from gateway.fleet.reload import Troubles, WatchedFile
from gateway.fleet.sources import SettingsFile, Sources
from gateway.formats.registry import load as load_formats
from gateway.job import Services
from gateway.model import Model, by_name, closed_for, valid_check
from gateway.observe.access_log import AccessLog
from gateway.observe.bus import Bus
from gateway.observe.explain import Explain
from gateway.observe.faults import LastFaults
from gateway.observe.group import Known
from gateway.observe.health import Health
from gateway.observe.load import Load
from gateway.observe.metrics import Metrics
from gateway.observe.redact import Redactor
from gateway.observe.shared import Shared
from gateway.observe.truth import RoutingTruth
from gateway.prompt.pool import RenderPool
from gateway.prompt.worker import Spoken
from gateway.rendering import context_of
from gateway.routing.choice import Chance
from gateway.server.admin import Engines, Told, add_admin
from gateway.server.completions import Completions, ServeOptions
from gateway.server.debugging import Debugging
from gateway.server.debugging_routes import add_debugging
from gateway.server.page import Facts, Page, add_page
from gateway.server.profiles import profiles
from gateway.server.routes import Closing, Condition, HotPaths, Numbered, add_models, answer_errors, declare, operations
from gateway.server.site import OwnSite
from gateway.settings import ModelSettings, Settings, load
from gateway.settings_engines import load_engines
from gateway.settings_fit import Speech
from gateway.upstream import Upstream
from gateway.voice import FAULTS, Voice, voice_of
from gateway.wiring import (
    Gate,
    Traces,
    gpus_of,
    is_loopback,
    request_limits,
    retry_rules,
    served,
    stage_limits,
    standing_rules,
    wire_with,
)

_log = structlog.get_logger("interlock.app")

Records = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings, and their models in the same order, each read from its files. `warn_unchecked`: the log names models that are
    served without a check. `file`: where they came from, to be followed while the gateway runs. `hide` is
    told what must not be logged. `chance`: between engines that are equal. `gpu_metrics`: the URL
    of an exporter that tells of GPUs."""

    settings: Settings
    models: tuple[Model, ...]
    warn_unchecked: bool = True
    file: SettingsFile | None = None
    hide: Callable[[str], None] = lambda _: None
    discovery: DiscoveryRules = field(default_factory=DiscoveryRules)
    chance: Chance = field(default_factory=random.Random)
    gpu_metrics: str | None = None


def configure(path: str | os.PathLike[str], environ: Mapping[str, str]) -> Configured:
    """The settings of a file, checked against its models' files and what this version has. Raises SettingsError with everything
    that is wrong."""
    kinds = {kind: make(kind).traits for kind in known()}
    voices = _Voices()
    watched = WatchedFile(Path(path))
    settings = load(path, environ, kinds=kinds, formats=voices.formats, inspect=voices.inspect)
    again = partial(load, path, environ, kinds=kinds, formats=voices.formats, inspect=lambda _: iter(()))
    return Configured(settings, voices.models(settings), file=SettingsFile(watched, again))


def with_models(settings: Settings) -> Configured:
    """Settings made in code, with their models. Raises SettingsError with what is wrong of all models."""
    voices = _Voices()
    speeches = [(f"models[{index}]", model.speech) for index, model in enumerate(settings.models)]
    problems = [f"{at}.{key}: {text}" for at, speech in speeches if speech for key, text in voices.inspect(speech)]
    if problems:
        raise SettingsError(tuple(problems))
    return Configured(settings, voices.models(settings))


class _Voices:
    """Models' files, each read once: to tell what is wrong with them, then to serve them."""

    def __init__(self) -> None:
        self.formats = load_formats()
        self._read: dict[Speech, Voice] = {}

    def inspect(self, speech: Speech) -> Iterator[tuple[str, str]]:
        """The settings key and the message of what is wrong."""
        try:
            if speech not in self._read:
                self._read[speech] = voice_of(speech, self.formats)
        except tuple(FAULTS) as error:
            yield FAULTS[type(error)], str(error)

    def models(self, settings: Settings) -> tuple[Model, ...]:
        """The models of settings in which everything was inspected."""
        created_s = int(time.time())
        return tuple(self._model(model, created_s, required=settings.require_checks) for model in settings.models)

    def _model(self, model: ModelSettings, created_s: int, *, required: bool) -> Model:
        voice = self._read[model.speech] if model.speech else None
        checked = valid_check(voice.profile) if voice is not None else None
        return Model(
            model.name,
            replace(voice.rendered, hold_arguments=model.hold_arguments) if voice is not None else None,
            AnswerRules(model.unknown_tool, model.on_parse_failure, model.on_schema_miss),
            created_s,
            model.aliases,
            checked,
            closed_for(checked, required=required) if voice is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: its two applications, and what a command may want to look at."""

    main: ASGIApp
    admin: ASGIApp
    registry: Registry
    condition: Condition
    models: tuple[Model, ...]
    gate: Gate
    metrics: Metrics
    reload: Callable[[], None] | None


@asynccontextmanager
async def running(configured: Configured, environ: Mapping[str, str], access: Records | None = None) -> AsyncIterator[Gateway]:
    """Wires everything, probes the engines while inside, and closes every connection on the way out. `access` takes the records
    of the access log."""
    settings, models = configured.settings, configured.models
    _warn_of(models, unchecked=configured.warn_unchecked)
    parts = _parts(configured, environ, access)
    async with (
        parts.gate.lag.ticking(),
        parts.traces.sending,
        parts.upstream,
        _rendering_apart(settings, models, environ) as models,
    ):
        main, admin = _applications(parts, models)
        async with _beside(*(each.run for each in _asking(parts, models))):
            yield Gateway(main, admin, parts.registry, parts.condition, models, parts.gate, parts.metrics, parts.sources.reload)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the requests of a gateway share."""

    settings: Settings
    registry: Registry
    condition: Condition
    gate: Gate
    upstream: Upstream
    caches: KvEvents
    traces: Traces
    explain: Explain
    faults: LastFaults
    truth: RoutingTruth
    gpus: Gpus | None
    metrics: Metrics
    membership: Membership
    sources: Sources
    bus: Bus


def _parts(configured: Configured, environ: Mapping[str, str], access: Records | None) -> _Parts:
    """The parts, wired, before anything is asked or served."""
    settings, models = configured.settings, configured.models
    registry, troubles = Registry((), standing_rules(settings.failures)), Troubles()
    clock = asyncio.get_running_loop().time
    gate = Gate(settings, registry, clock, configured.chance)
    upstream = Upstream(gate.lag.stood_s)
    caches = KvEvents(registry, upstream, gate.guides)
    traces, explain, truth = Traces(settings.tracing, registry, clock), Explain(clock), RoutingTruth()
    known = Known(served(settings, models), [OpenAIChat.name])
    checks = {model.name: model.checked.passed for model in models if model.checked is not None}
    health, load = Health(known, registry, checks), Load(known, registry)
    gpus = gpus_of(configured.gpu_metrics, registry, upstream) if configured.gpu_metrics else None
    shown = (gpus.metrics(),) if gpus is not None else ()
    more = (truth, gate.metrics, health, load, *shown, caches.metrics(), troubles.metrics(), traces.metrics)
    metrics = Metrics(known, more)
    faults, hide = _last_faults(configured)
    membership, sources = _naming(replace(configured, hide=hide), environ, registry, metrics, troubles)
    logs = [AccessLog(access, time.time)] if access is not None else []
    bus = Bus([registry.running.apply, gate.admission, metrics, explain, faults, *traces.observers, *logs])
    return _Parts(
        settings,
        registry,
        Condition(troubles.told),
        gate,
        upstream,
        caches,
        traces,
        explain,
        faults,
        truth,
        gpus,
        metrics,
        membership,
        sources,
        bus,
    )


def _applications(parts: _Parts, models: tuple[Model, ...]) -> tuple[ASGIApp, ASGIApp]:
    """What clients are served by, and what operators are."""
    server, condition, registry, gate = parts.settings.server, parts.condition, parts.registry, parts.gate
    dialect, names, new_id = OpenAIChat(), by_name(models), request_ids()
    services = _services(parts)
    limits = request_limits(parts.settings.limits)
    options = ServeOptions(limits, server.max_body_bytes, server.headers_grace_s, server.route_headers)
    chat = Completions(
        dialect,
        names,
        services=services,
        admission=gate.admission,
        options=options,
        unix_time=time.time,
        new_id=new_id,
        is_open=lambda: condition.open,
        trace=parts.traces.begin,
    )
    scrapes = Shared(parts.metrics.copied, "metrics")
    public = operations(registry, models, condition, scrapes if is_loopback(server.host) else None, to_operators=False)
    add_models(public, names, partial(_listing, registry))
    debugging = Debugging(dialect, names, registry, options)
    add_debugging(public, debugging, dialect, options.max_body_bytes, services.watchdog)
    declare(public, [dialect])
    admin = operations(registry, models, condition, scrapes, to_operators=True)
    engines = Engines(registry, Told(gate.guides.believed, parts.truth.of, parts.caches.state))
    site = OwnSite((server.admin_host, *server.admin_names))
    add_admin(admin, engines, parts.explain, site)
    facts = Facts(
        moment=parts.metrics.moment,
        engines=engines.entries,
        decisions=parts.explain.last,
        faults=parts.faults,
        draining=lambda: condition.draining,
        models=profiles(models),
    )
    add_page(admin, Page(facts, asyncio.get_running_loop().time), site)
    for api in (public, admin):
        answer_errors(api, dialect.error)
    refusal = dialect.error(Draining(CLOSED))
    main = HotPaths({dialect.path: chat}, Numbered(Closing(public, condition, refusal), new_id))
    return main, Numbered(admin, new_id)


class _Runs(Protocol):
    """What works beside the requests."""

    async def run(self) -> None:
        """For ever."""


def _asking(parts: _Parts, models: tuple[Model, ...]) -> Iterator[_Runs]:
    """Who asks engines, and what names them."""
    registry, upstream, gate = parts.registry, parts.upstream, parts.gate
    parity = {model.name: Parity(model.rendered.prompter.tokenizer) for model in models if model.rendered is not None}

    def on_info(member: Member, info: EngineInfo) -> None:
        parts.metrics.engine_info(member.id, member.engine.kind, info.version, member.model)
        gate.guides.told(member.model, member.id, info)

    yield Prober(registry, upstream, parity, on_info, stood_s=gate.lag.stood_s)
    yield Loads(registry, upstream, on_info)
    yield from (parts.membership, parts.sources, parts.caches)
    if parts.gpus is not None:
        yield parts.gpus


def _listing(registry: Registry, wanted: tuple[Model, ...]) -> bytes:
    return models_list(ModelCard(each.name, each.created_s, context_of(each, registry)) for each in wanted)


def _last_faults(configured: Configured) -> tuple[LastFaults, Callable[[str], None]]:
    """What keeps the last faults of models' output, and who is told what it and the log may not show."""
    redactor = Redactor()

    def hide(secret: str) -> None:
        redactor.hide(secret)
        configured.hide(secret)

    return LastFaults(redactor, time.time, shows=configured.settings.server.failure_texts), hide


@asynccontextmanager
async def _beside(*parts: Callable[[], Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """What runs for ever, while inside."""
    tasks = [asyncio.create_task(each()) for each in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _naming(
    configured: Configured, environ: Mapping[str, str], registry: Registry, metrics: Metrics, troubles: Troubles
) -> tuple[Membership, Sources]:
    """Who keeps the registry's engines, and what names them."""
    settings, rules = configured.settings, configured.discovery
    membership = Membership(
        registry, wire_with(environ, configured.hide), metrics, troubles, linger_s=settings.timeouts.total_s, rules=rules
    )
    kinds = {kind: make(kind).traits for kind in known()}
    sources = Sources(
        settings,
        membership,
        troubles,
        read_engines=lambda model, path: load_engines(path, model, environ, kinds),
        file=configured.file,
        poll_s=rules.poll_s,
    )
    return membership, sources


def _services(parts: _Parts) -> Services:
    failures, gate, registry = parts.settings.failures, parts.gate, parts.registry
    return Services(
        registry=registry,
        upstream=parts.upstream,
        bus=parts.bus,
        limits=stage_limits(parts.settings.timeouts),
        watchdog=gate.watchdog,
        new_call_id=lambda: f"call_{uuid.uuid4().hex[:24]}",
        retries=RetryBudget(retry_rules(failures), lambda: sum(registry.running.counts.values())),
        guides=gate.guides,
        resume=failures.resume == "exact",
        pressure=gate.pressure,
    )


@asynccontextmanager
async def _rendering_apart(
    settings: Settings, models: tuple[Model, ...], environ: Mapping[str, str]
) -> AsyncIterator[tuple[Model, ...]]:
    """The models, whose long prompts are rendered in other processes while inside, where the settings want any."""
    limits = settings.limits
    speeches = {each.name: each.speech for each in settings.models if each.speech}
    if not (speeches and limits.render_workers):
        yield models
        return
    spoken = {
        each.name: Spoken(str(speeches[each.name].source), speeches[each.name].control_tokens, each.rendered.prompter.digest())
        for each in models
        if each.rendered
    }
    async with RenderPool(
        spoken, workers=limits.render_workers, render_s=limits.render_s, wait_s=limits.queue_wait_s, environ=environ
    ) as pool:
        yield tuple(
            replace(each, rendered=replace(each.rendered, apart=partial(pool.render, each.name))) if each.rendered else each
            for each in models
        )


def _warn_of(models: Iterable[Model], *, unchecked: bool) -> None:
    for model in models:
        _warn(model, unchecked=unchecked)


def _warn(model: Model, *, unchecked: bool) -> None:
    """Tells the operator what is odd about a model's files."""
    if model.rendered is None:
        return
    if model.closed is not None:
        _log.error("the model is not served", model=model.name, why=model.closed)
    elif model.checked is None and unchecked:
        _log.warning("the model is served unchecked: `interlock check` has not passed for it as it is", model=model.name)
    prompter = model.rendered.prompter
    if why := prompter.renderer.tokenised_whole:
        _log.warning("each prompt is tokenised whole: no segment of it can be kept", model=model.name, why=why)
    for warning in prompter.warnings:
        _log.warning("the model's files are at odds", model=model.name, why=warning)


def request_ids() -> Callable[[], str]:
    """Ids that no other process makes and that this one makes once: a random half and a count. They are no secret."""
    prefix, numbers = uuid.uuid4().hex[:16], itertools.count(1)
    return lambda: f"{prefix}{next(numbers):016x}"
