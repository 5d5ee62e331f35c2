"""`interlock check --live`: which engines a model is checked on, and the local one that is started where there is none."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from yarl import URL

from engines.local import LocalEngine
from engines.registry import known, make
from gateway.checks.asking import Target
from gateway.checks.base import Report, Subject
from gateway.checks.live import check_live
from gateway.errors import EngineError
from gateway.settings import EngineSettings, ModelSettings
from gateway.settings_engines import load_engines

_LOCAL = "llamacpp"


class NotLive(Exception):
    """An engine cannot be asked, so that nothing is known of its model; the message names it."""


def targets_of(model: ModelSettings, environ: Mapping[str, str]) -> list[Target]:
    """The engines that serve a model of the settings, those of its file too. Raises SettingsError."""
    filed: tuple[EngineSettings, ...] = ()
    if model.engines_file is not None:
        filed = load_engines(model.engines_file, model, environ, {kind: make(kind).traits for kind in known()})
    return [
        Target(
            id=engine.id,
            engine=make(engine.kind),
            root=URL(engine.url),
            model=engine.model,
            api_key=environ[engine.api_key_env] if engine.api_key_env else None,
        )
        for engine in (*model.engines, *filed)
    ]


def live_reports(subjects: Sequence[Subject], reports: Sequence[Report], targets: Sequence[Sequence[Target]]) -> list[Report]:
    """The reports with what the models' engines came to, one engine after the other. Raises NotLive."""
    return asyncio.run(_all(subjects, reports, targets))


def local_report(subject: Subject, report: Report, model: Path) -> Report:
    """The report with what a local llama.cpp came to, which runs for just this. Raises EngineStartError and NotLive."""
    return asyncio.run(_local(subject, report, model))


async def _all(subjects: Sequence[Subject], reports: Sequence[Report], targets: Sequence[Sequence[Target]]) -> list[Report]:
    together = zip(subjects, reports, targets, strict=True)
    return [await _on(subject, report, engines) for subject, report, engines in together]


async def _local(subject: Subject, report: Report, model: Path) -> Report:
    engine = LocalEngine(model, alias=_LOCAL)
    await engine.start()
    try:
        return await _on(subject, report, [Target("local", make(_LOCAL), URL(engine.url), _LOCAL)])
    finally:
        await engine.stop()


async def _on(subject: Subject, report: Report, targets: Sequence[Target]) -> Report:
    for target in targets:
        try:
            live = await check_live(subject, target)
        except EngineError as error:
            raise NotLive(f"{target.id} ({target.engine.kind}) of {subject.name} cannot be asked: {error.message}") from None
        named = [replace(case, name=f"{target.id}: {case.name}") for case in live.cases]
        said = f"{target.id} ({target.engine.kind})"
        report = replace(
            report,
            engine=said if report.engine is None else f"{report.engine}, {said}",
            cases=(*report.cases, *named),
            figures=(*report.figures, *(replace(each, engine=target.id) for each in live.figures)),
        )
    return report
