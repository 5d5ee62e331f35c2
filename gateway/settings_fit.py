"""How settings fit together: what is wrong between values that may each be right.

Works on plain values as they were written, so that it tells even where others are wrong, and never raises.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from engines.base import KvEventsWay, Traits
from gateway.events import NO_ENGINE, NO_MODEL
from gateway.settings_tree import KeyPath, shown_path

AUTO_FORMAT = "auto"
ENGINE_FORMAT = "engine"

MOST_RANKS = 256

ToolMode = Literal["native", "constrained"]
NATIVE: ToolMode = "native"
ControlTokens = Literal["text", "special"]
AS_TEXT: ControlTokens = "text"


class Speech(NamedTuple):
    """What decides how a model is spoken to, each under its settings key."""

    source: Path
    format: str
    tools: ToolMode
    control_tokens: ControlTokens = AS_TEXT
    profile: Path | None = None


def speeches(values: Mapping[str, Any], folder: Path, wrong: Collection[KeyPath]) -> Iterator[tuple[KeyPath, Speech]]:
    """How each model is spoken to, but for those whose keys for it are `wrong`. Relative sources start at `folder`."""
    for at, model in _rows(values.get("models"), ("models",)):
        form = model.get("format", AUTO_FORMAT)
        if form != ENGINE_FORMAT and not any((*at, key) in wrong for key in Speech._fields):
            source, profile = source_path(folder, model["source"]), model.get("profile")
            yield (
                at,
                Speech(
                    source,
                    form,
                    model.get("tools", NATIVE),
                    model.get("control_tokens", AS_TEXT),
                    source_path(folder, profile) if profile is not None else None,
                ),
            )


def source_path(folder: Path, source: str | Path) -> Path:
    """Where a model's source is, without `..`, since messages name it."""
    path = folder / Path(source).expanduser()
    return path.parent.resolve() / path.name if ".." in path.parts else path


def engine_id(model: str, position: int) -> str:
    """The id of an engine that was given none."""
    return f"{model}-{position}"


def misfits(values: Mapping[str, Any], kinds: Mapping[str, Traits]) -> Iterator[tuple[KeyPath, str]]:
    """Each misfit with its key path. `kinds` are the engines that this version has adapters for."""
    models = list(_rows(values.get("models"), ("models",)))
    yield from _clashes("model", _names(models), NO_MODEL)
    yield from _clashes("engine", _engine_ids(models), NO_ENGINE)
    for at, model in models:
        yield from _model_misfits(at, model, kinds)
    yield from _routing_misfits(values.get("routing"))


def _routing_misfits(routing: Any) -> Iterator[tuple[KeyPath, str]]:
    policy = routing.get("policy") if isinstance(routing, dict) else None
    if policy in ("round_robin", "least_outstanding"):  # `session` goes by cost where a client names none
        for key in ("hold_s", "kappa_max"):
            if key in routing:
                yield ("routing", key), f"has no effect with `policy: {policy}`"


def _rows(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    for index, row in enumerate(value if isinstance(value, list) else ()):
        if isinstance(row, dict):
            yield (*path, index), row


def _names(models: Iterable[tuple[KeyPath, dict[str, Any]]]) -> Iterator[tuple[KeyPath, Any]]:
    for at, model in models:
        yield (*at, "name"), model.get("name")
        aliases = model.get("aliases")
        for index, alias in enumerate(aliases if isinstance(aliases, list) else ()):
            yield (*at, "aliases", index), alias


def _engine_ids(models: Iterable[tuple[KeyPath, dict[str, Any]]]) -> Iterator[tuple[KeyPath, Any]]:
    for at, model in models:
        for place, engine in _rows(model.get("engines"), (*at, "engines")):
            name = engine.get("id", engine_id(str(model.get("name")), int(place[-1])))
            for each in rank_ids(name, engine.get("ranks")):
                yield (*place, "id"), each


def rank_ids(engine: Any, ranks: Any) -> list[Any]:
    """The ids of an engine's ranks; its own where it has none."""
    if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        return [engine]
    return [f"{engine}.{rank}" for rank in range(ranks)]


def _clashes(what: str, names: Iterable[tuple[KeyPath, Any]], reserved: str) -> Iterator[tuple[KeyPath, str]]:
    first: dict[str, KeyPath] = {}
    for at, name in names:
        if name == reserved:
            yield at, f"`{reserved}` is what metrics say where there is no {what}: take another name"
        elif isinstance(name, str) and first.setdefault(name, at) != at:
            yield at, f"`{name}` is taken by {shown_path(first[name])}"


def _model_misfits(at: KeyPath, model: Mapping[str, Any], kinds: Mapping[str, Traits]) -> Iterator[tuple[KeyPath, str]]:
    by_engine = model.get("format") == ENGINE_FORMAT
    constrained = model.get("tools") == "constrained"
    if "engines" not in model and model.get("engines_file") is None:
        yield (*at, "engines"), "is missing: list the engines, or name an `engines_file`"
    if model.get("source") is None and not by_engine:
        yield (*at, "source"), "is missing: give a GGUF file or a model directory, or set `format: engine`"
    if constrained and by_engine:
        yield (*at, "tools"), "`constrained` needs a `source` and a format other than `engine`"
    if model.get("profile") is not None and by_engine:
        yield (*at, "profile"), "has no effect with `format: engine`: the engine templates and parses"
    if model.get("hold_arguments") is True and by_engine:
        yield (*at, "hold_arguments"), "has no effect with `format: engine`: the engine's events pass as they come"
    if model.get("control_tokens") is not None and by_engine:
        yield (*at, "control_tokens"), "has no effect with `format: engine`: the engine tokenises the text"
    form, tools = str(model.get("format", AUTO_FORMAT)), str(model.get("tools", NATIVE))
    yield from engine_misfits(model.get("engines"), (*at, "engines"), form, tools, kinds)


def engine_misfits(rows: Any, at: KeyPath, form: str, tools: str, kinds: Mapping[str, Traits]) -> Iterator[tuple[KeyPath, str]]:
    """What does not fit in a list of engines of a model with this `format` and `tools`."""
    by_engine, constrained = form == ENGINE_FORMAT, tools == "constrained"
    for place, engine in _rows(rows, at):
        if engine.get("resolve") is True and str(engine.get("url")).lower().startswith("https:"):
            yield (*place, "resolve"), "needs an `http` URL: a certificate is of a name, not of an address"
        kind = engine.get("kind")
        traits = kinds.get(kind) if isinstance(kind, str) else None
        if traits is None:
            continue
        if by_engine and traits.takes_ids:
            yield (*place, "kind"), f"{kind} is sent token ids, so it cannot serve a model with `format: engine`"
        if not by_engine and not traits.takes_ids:
            yield (*place, "kind"), f"{kind} templates and parses by itself: the model needs `format: engine`"
        if constrained and traits.takes_ids and "calls" not in traits.constraints:
            yield (*place, "kind"), f"{kind} cannot enforce tool calls, which `tools: constrained` needs"
        if engine.get("ranks") is not None and not traits.ranks:
            yield (*place, "ranks"), f"{kind} cannot be told which rank a request is for"
        if "kv_events" in engine:
            yield from _kv_misfits((*place, "kv_events"), engine, str(kind), traits.kv_events, by_engine=by_engine)


def _kv_misfits(
    at: KeyPath, engine: Mapping[str, Any], kind: str, way: KvEventsWay | None, *, by_engine: bool
) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with where an engine tells what its cache holds."""
    given = engine["kv_events"]
    told: Mapping[str, Any] = given if isinstance(given, dict) else {}
    if by_engine:
        yield at, "has no effect with `format: engine`: the gateway does not know the prompt's tokens, which the events are of"
    elif way is None:
        yield at, f"{kind} does not tell what its cache holds"
    elif way == "poll":
        for key in ("endpoint", "replay_endpoint", "topic", "bind"):
            if key in told:
                yield (*at, key), f"has no effect: {kind} is asked, at its `url`"
    else:
        if told.get("endpoint") is None:
            yield (*at, "endpoint"), f"is missing: {kind} publishes what its cache holds"
        if "poll_s" in told:
            yield (*at, "poll_s"), f"has no effect: {kind} is not asked"
        yield from _many_misfits(at, engine, told)


def _many_misfits(at: KeyPath, engine: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Of an entry that may stand for several engines, which cannot have one address."""
    for key in ("endpoint", "replay_endpoint"):
        address = told.get(key)
        if not isinstance(address, str):
            continue
        if engine.get("ranks") is not None and address.startswith("ipc:"):
            yield (*at, key), "must be `tcp` with `ranks`: each rank has a port of its own"
        if engine.get("resolve") is True and (told.get("bind") is True or not address.startswith("tcp://*:")):
            yield (*at, key), "must be `tcp://*:PORT` with `resolve`, and not bound: each address has events of its own"
