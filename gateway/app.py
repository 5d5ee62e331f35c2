"""The composition root: settings in, a wired gateway out. The only module that knows every part."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from starlette.types import ASGIApp
from yarl import URL

from engines.base import Engine, EngineInfo
from engines.registry import known, make
from gateway.admission import Admission
from gateway.answer import AnswerRules
from gateway.dialects.base import Limits
from gateway.dialects.openai_chat import ModelCard, OpenAIChat, models_list
from gateway.errors import ModelFileError, SettingsError
from gateway.fleet.probe import Prober
from gateway.fleet.registry import Member, Registry
from gateway.formats.base import Format
from gateway.formats.registry import load as load_formats
from gateway.job import Services
from gateway.model import Model, Rendered, by_name
from gateway.observe.access_log import AccessLog
from gateway.observe.bus import Bus
from gateway.observe.metrics import Metrics, Served
from gateway.prompt.detect import FormatUnknown, detect_format
from gateway.prompt.prompter import Prompter
from gateway.prompt.source import DEFAULT, read_model
from gateway.server.completions import Completions, ServeOptions
from gateway.server.routes import Condition, HotPaths, add_models, answer_errors, declare, operations
from gateway.settings import AUTO_FORMAT, LimitSettings, ModelSettings, Settings, TimeoutSettings, load
from gateway.settings_fit import ENGINE_FORMAT
from gateway.timer import StageLimits, Watchdog
from gateway.upstream import Upstream

Records = Callable[[Mapping[str, object]], None]

CONSTRAINED_FORMAT = "hermes"  # the call syntax that is stated and enforced for a model not trained for tools


def load_settings(path: str | os.PathLike[str], environ: Mapping[str, str]) -> Settings:
    """The settings of a file, checked against the engines and formats of this version. Raises SettingsError."""
    kinds = {kind: make(kind).traits for kind in known()}
    return load(path, environ, kinds=kinds, formats=load_formats())


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: its two applications, and what a command may want to look at."""

    main: ASGIApp
    admin: ASGIApp
    registry: Registry
    condition: Condition
    models: tuple[Model, ...]


@asynccontextmanager
async def running(settings: Settings, environ: Mapping[str, str], access: Records | None = None) -> AsyncIterator[Gateway]:
    """Wires everything, probes the engines while inside, and closes every connection on the way out. `access` takes the records
    of the access log.

    Raises SettingsError or ModelFileError, naming the model, where a model cannot be served.
    """
    models = served_models(settings)
    registry = Registry(_members(settings, environ))
    dialect = OpenAIChat()
    metrics = Metrics(_served(settings, models), [dialect.name])
    logs = [AccessLog(access, time.time)] if access is not None else []
    bus = Bus([registry.apply, metrics, *logs])
    condition = Condition()
    async with Upstream() as upstream:
        services = Services(
            registry=registry,
            upstream=upstream,
            bus=bus,
            limits=_stage_limits(settings.timeouts),
            watchdog=Watchdog(),
            new_call_id=lambda: f"call_{uuid.uuid4().hex[:24]}",
        )
        limits = settings.limits
        admission = Admission(registry, queue_requests=limits.queue_requests, queue_wait_s=limits.queue_wait_s)
        options = ServeOptions(_limits(limits), settings.server.max_body_bytes, settings.server.headers_grace_s)
        names = by_name(models)
        chat = Completions(dialect, names, services=services, admission=admission, options=options, unix_time=time.time)

        public = operations(registry, models, condition, metrics.expose if is_loopback(settings.server.host) else None)

        def listing(wanted: tuple[Model, ...]) -> bytes:
            return models_list(ModelCard(each.name, each.created_s, registry.context_tokens(each.name)) for each in wanted)

        add_models(public, names, listing)
        declare(public, [dialect])
        admin = operations(registry, models, condition, metrics.expose)
        for api in (public, admin):
            answer_errors(api, dialect.error)

        def on_info(member: Member, info: EngineInfo) -> None:
            metrics.engine_info(member.id, member.engine.kind, info.version, member.model)

        probing = asyncio.create_task(Prober(registry, upstream, on_info).run())
        try:
            yield Gateway(HotPaths({dialect.path: chat}, public), admin, registry, condition, models)
        finally:
            probing.cancel()
            await asyncio.wait([probing])


def served_models(settings: Settings) -> tuple[Model, ...]:
    """Every model of the settings, its files read. Raises SettingsError with what is wrong of all of them."""
    formats = load_formats()
    models: list[Model] = []
    problems: list[str] = []
    for index, model in enumerate(settings.models):
        try:
            models.append(_model(model, formats))
        except ModelFileError as error:
            problems.append(f"models[{index}].source: {error}")
        except FormatUnknown as error:
            problems.append(f"models[{index}].format: {error}")
    if problems:
        raise SettingsError(tuple(problems))
    return tuple(models)


def _model(model: ModelSettings, formats: Mapping[str, Format]) -> Model:
    rules = AnswerRules(model.unknown_tool, model.on_parse_failure, model.on_schema_miss)
    source = None if model.format == ENGINE_FORMAT else model.source
    rendered = None if source is None else _rendered(model, source, formats)
    return Model(model.name, rendered, rules, created_s=int(time.time()), aliases=model.aliases)


def _rendered(model: ModelSettings, source: Path, formats: Mapping[str, Format]) -> Rendered:
    files = read_model(source)
    native = Prompter(files, tools="native", syntax=None, clock=_now)
    own = formats[model.format] if model.format != AUTO_FORMAT else detect_format(native, files.templates[DEFAULT], formats)
    call_format = own
    if model.tools == "constrained" and own.call_syntax is None:
        call_format = formats[CONSTRAINED_FORMAT]
    prompter = Prompter(files, tools=model.tools, syntax=call_format.call_syntax, clock=_now)
    return Rendered(prompter, own, call_format, model.hold_arguments)


def tools_for(model: Path) -> Literal["native", "constrained"]:
    """`constrained` where the model's template ignores tools. Raises ModelFileError."""
    return (
        "native"
        if Prompter(read_model(model), tools="native", syntax=None, clock=_now).capabilities.tools == "yes"
        else "constrained"
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _members(settings: Settings, environ: Mapping[str, str]) -> list[Member]:
    engines: Mapping[str, Engine] = {kind: make(kind) for kind in known()}
    return [
        Member(
            id=engine.id,
            model=model.name,
            engine=engines[engine.kind],
            root=URL(engine.url),
            engine_model=engine.model,
            api_key=environ[engine.api_key_env] if engine.api_key_env else None,
        )
        for model in settings.models
        for engine in model.engines
    ]


def secrets(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """The values that must never be logged."""
    return [environ[e.api_key_env] for m in settings.models for e in m.engines if e.api_key_env]


def _served(settings: Settings, models: tuple[Model, ...]) -> list[Served]:
    return [
        Served(wired.name, tuple(engine.id for engine in model.engines), wired.format_names())
        for model, wired in zip(settings.models, models, strict=True)
    ]


def _stage_limits(timeouts: TimeoutSettings) -> StageLimits:
    return StageLimits(
        connect_s=timeouts.connect_s,
        headers_s=timeouts.headers_s,
        first_token_s=timeouts.first_token_s,
        between_tokens_s=timeouts.between_tokens_s,
        total_s=timeouts.total_s,
    )


def _limits(limits: LimitSettings) -> Limits:
    return Limits(n=limits.n, stop=limits.stop, logprobs=limits.logprobs, tools=limits.tools, messages=limits.messages)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
