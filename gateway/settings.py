"""Typed settings: one YAML file plus environment overrides, read once at start and frozen.

Invariant: `load` gives settings in which everything fits together, or raises one `SettingsError` with every problem in them, each
with its key path and the line or variable that it came from. A problem's text never holds a value that may be a secret.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from engines.base import Traits
from gateway.errors import SettingsError, shown
from gateway.settings_base import Context, Label, Labels, Section, context_of, section_of, some, wrong
from gateway.settings_fit import (
    AS_TEXT,
    AUTO_FORMAT,
    ENGINE_FORMAT,
    MOST_RANKS,
    NATIVE,
    ControlTokens,
    Speech,
    ToolMode,
    engine_id,
    misfits,
    source_path,
    speeches,
)
from gateway.settings_parts import (
    FailureSettings,
    KvEventsSettings,
    LimitSettings,
    RoutingSettings,
    ServerSettings,
    TimeoutSettings,
    TracingSettings,
)
from gateway.settings_tree import PREFIX, KeyPath, Place, Problem, read_tree

KINDS = ("llamacpp", "vllm", "sglang", "trtllm", "openai")
"""Every kind of engine that a settings file may name; a version may lack the adapter of some."""

Inspect = Callable[[Speech], Iterator[tuple[str, str]]]
"""Tries to speak to a model: gives the key and the message of each thing that hinders it."""

_MADE: Mapping[str, str] = MappingProxyType({"source": "models are not downloaded", "profile": "`interlock onboard` makes one"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _gpu(value: object) -> object:
    """An index is a name too."""
    return str(value) if type(value) is int else value


class EngineSettings(Section):
    """One engine process that serves a model."""

    id: Label = ""
    """The name in metrics and logs, unique over all models. Default: the model's name, a hyphen and the position."""

    url: str
    """The engine's root, as `http://127.0.0.1:8000`, without `/v1`."""

    kind: str
    """What the engine is: `llamacpp`, `vllm`, `sglang`, `trtllm`, or `openai` (any server that speaks OpenAI Chat Completions;
    needs `format: engine`)."""

    model: str | None = Field(None, min_length=1)
    """The name that the engine knows the model by. Unset: its only model."""

    most_running: int | None = Field(None, ge=1)
    """The most requests that the gateway runs on it at a time; more wait in the gateway, where one whose client leaves costs
    nothing. Unset: the engine queues requests itself."""

    weights: str | None = Field(None, min_length=1)
    """A word for the very weights that it serves. An answer that an engine broke off is gone on with on another with the same.
    Unset: engines of one kind that call their model the same have the same."""

    api_key_env: str | None = None
    """The environment variable that holds the engine's API key. The key itself never stands in a settings file."""

    ranks: int | None = Field(None, ge=1, le=MOST_RANKS)
    """How many data-parallel ranks serve at this address. Each is an engine of its own, `ID.0` and on, and is told which one a
    request is for. Unset: the server spreads requests itself."""

    resolve: bool = False
    """Take each address that the URL's host name has (of IPv4, or of IPv6 where it has no other) as an engine of its own,
    `ID@ADDRESS`, and follow changes of them. Only with `http`: a certificate is of a name, not of an address."""

    kv_events: Annotated[KvEventsSettings | None, BeforeValidator(section_of)] = None
    """Where it tells what its cache holds. Unset: nowhere."""

    gpus: Annotated[tuple[Annotated[Label, BeforeValidator(_gpu)], ...], Field(strict=False, max_length=64)] = ()
    """The GPUs that it runs on, by index or UUID, as the exporter of `interlock serve --gpu-metrics URL` names them: what it says
    of them is shown as the engine's (docs/metrics.md). With `ranks` they are each rank's."""

    @field_validator("url")
    @classmethod
    def _without_v1(cls, value: str) -> str:
        return _root_url(value)

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, value: str, info: ValidationInfo) -> str:
        kinds = context_of(info).kinds
        supported = KINDS if kinds is None else kinds
        if value not in supported:
            what = f"{value} is not supported by this version" if value in KINDS else "unknown kind of engine"
            raise wrong(f"{what}{_hint(value, supported)}; supported: {', '.join(supported)}")
        return value

    @field_validator("gpus")
    @classmethod
    def _each_gpu_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((gpu for at, gpu in enumerate(value) if gpu in value[:at]), None)
        if twice is not None:
            raise wrong(f"names {twice} twice")
        return value

    @field_validator("api_key_env")
    @classmethod
    def _set_variable(cls, value: str | None, info: ValidationInfo) -> str | None:
        environ = context_of(info).environ
        if value is not None and not _VARIABLE.fullmatch(value):
            raise wrong("must be the name of an environment variable, not a key")
        if value is not None and environ is not None and not environ.get(value):
            raise wrong("the environment variable that it names is not set, or is empty")
        return value


class ModelSettings(Section):
    """One model: what clients call it, how it is spoken to, and which engines serve it."""

    name: Label
    """The name that clients ask for."""

    aliases: Labels = ()
    """Other names for the same model."""

    source: Annotated[Path, Field(strict=False)] | None = None
    """A GGUF file or a Hugging Face model directory: the template and tokenizer come from it. A relative path starts at the
    settings file. May be absent only with `format: engine`, which does not read it."""

    profile: Annotated[Path, Field(strict=False)] | None = None
    """The model's profile, made by `interlock onboard`: what it says is followed, it must be of these very files, and a model
    whose check failed is not served. A relative path starts at the settings file. Without one, all is told from the files anew
    at each start, and nothing says that it was checked. Not with `format: engine`."""

    format: str = AUTO_FORMAT
    """How the model writes reasoning and tool calls: `auto` (told from its template), a format's name, or `engine` (the engine
    templates and parses; the gateway passes the chat request on, routes and measures)."""

    tools: ToolMode = NATIVE
    """`native`: the model's template states the tools. `constrained`: for a model not trained for tools; the gateway states them
    and the engine is held to a grammar."""

    control_tokens: ControlTokens = AS_TEXT
    """What a control token is that a client's text spells, such as `</s>`. `text`: the characters it is made of, so that no
    message can end its turn or begin another. `special`: the token itself, for clients that send raw markup. Not with
    `format: engine`."""

    unknown_tool: Literal["forward", "refuse"] = "forward"
    """A call of a tool that the request did not offer: pass it on and count it, or end the request with an error."""

    on_parse_failure: Literal["content", "error"] = "content"
    """A tool call, or an answer that shall be JSON, that cannot be read: give its raw text as content and count it, or end the
    request with an error."""

    on_schema_miss: Literal["count", "retry", "refuse"] = "count"
    """Arguments that break the tool's schema, or an answer that breaks that of `response_format`: count it, ask the model again
    (only before the first byte), or end the request with an error."""

    hold_arguments: bool = False
    """Hold a call's deltas back until it is whole, for clients that act on parts of a call. Not with `format: engine`."""

    engines: Annotated[tuple[EngineSettings, ...], Field(strict=False), BeforeValidator(some)] = ()
    """The engines that serve this model. May be absent only with `engines_file`."""

    engines_file: Annotated[Path, Field(strict=False)] | None = None
    """A YAML or JSON file with a list of more of them, each with an `id`, which is read again when it changes. A relative path
    starts at the settings file."""

    @property
    def speech(self) -> Speech | None:
        """How the model is spoken to; None where its engine sees to that."""
        if self.source is None or self.format == ENGINE_FORMAT:
            return None
        return Speech(self.source, self.format, self.tools, self.control_tokens, self.profile)

    @field_validator("source", "profile")
    @classmethod
    def _found_source(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        folder = context_of(info).folder
        if value is None or folder is None:
            return value
        try:
            source = source_path(folder, value)
            source.stat()
        except FileNotFoundError:
            hint = f"a relative path starts at the settings file; {_MADE[info.field_name or '']}"
            raise wrong(f"no such file or directory: {source} ({hint})") from None
        except OSError as error:
            raise wrong(f"cannot be read: {error.strerror or error}: {source}") from None
        except (RuntimeError, ValueError):  # no one's home, or a character that no path has
            raise wrong(f"{shown(str(value))} is no path") from None
        return source

    @field_validator("engines_file")
    @classmethod
    def _placed(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        folder = context_of(info).folder
        try:
            return value if value is None or folder is None else source_path(folder, value)
        except (RuntimeError, ValueError, OSError):  # no one's home, or a character that no path has
            raise wrong(f"{shown(str(value))} is no path") from None

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str, info: ValidationInfo) -> str:
        formats = context_of(info).formats
        if formats is not None and value not in (AUTO_FORMAT, ENGINE_FORMAT) and value not in formats:
            known = {AUTO_FORMAT, ENGINE_FORMAT, *formats}
            raise wrong(f"unknown format{_hint(value, known)}; known: {', '.join(sorted(known))}")
        return value

    @field_validator("engines")
    @classmethod
    def _named_engines(cls, value: tuple[EngineSettings, ...], info: ValidationInfo) -> tuple[EngineSettings, ...]:
        name = info.data.get("name", "")
        return tuple(each if each.id else each.model_copy(update={"id": engine_id(name, i)}) for i, each in enumerate(value))


class Settings(Section):
    """All settings."""

    server: Annotated[ServerSettings, BeforeValidator(section_of)] = Field(default_factory=ServerSettings)
    models: Annotated[tuple[ModelSettings, ...], Field(strict=False), BeforeValidator(some)]
    timeouts: Annotated[TimeoutSettings, BeforeValidator(section_of)] = Field(default_factory=TimeoutSettings)
    limits: Annotated[LimitSettings, BeforeValidator(section_of)] = Field(default_factory=LimitSettings)
    failures: Annotated[FailureSettings, BeforeValidator(section_of)] = Field(default_factory=FailureSettings)
    routing: Annotated[RoutingSettings, BeforeValidator(section_of)] = Field(default_factory=RoutingSettings)
    tracing: Annotated[TracingSettings, BeforeValidator(section_of)] = Field(default_factory=TracingSettings)
    require_checks: bool = False
    """Serve no model that has not passed `interlock check`: one without a profile, or whose profile was changed since."""


SECTIONS: Mapping[tuple[str, ...], type[Section]] = MappingProxyType(
    {
        (): Settings,
        ("server",): ServerSettings,
        ("models",): ModelSettings,
        ("models", "engines"): EngineSettings,
        ("models", "engines", "kv_events"): KvEventsSettings,
        ("timeouts",): TimeoutSettings,
        ("limits",): LimitSettings,
        ("failures",): FailureSettings,
        ("routing",): RoutingSettings,
        ("tracing",): TracingSettings,
    }
)
"""The models by the keys that lead to them, list positions left out."""


def load(
    path: str | os.PathLike[str],
    environ: Mapping[str, str],
    *,
    kinds: Mapping[str, Traits],
    formats: Collection[str],
    inspect: Inspect,
) -> Settings:
    """The settings of one file with the environment's overrides. Raises SettingsError with everything that is wrong.

    `kinds` are the engines that this version has adapters for; `formats` the names and aliases of the formats that it knows.
    `inspect` is asked about each model whose own `source`, `format` and `tools` are right, whatever else is wrong.
    """
    file = Path(path)
    folder = file.absolute().parent
    tree = read_tree(file, environ)
    problems = [*tree.problems, *_unread_variables(environ)]
    problems += [tree.problem(at, message) for at, message in misfits(tree.values, kinds)]
    try:
        settings = Settings.model_validate(tree.values, context=Context(folder, environ, tuple(kinds), frozenset(formats)))
    except ValidationError as error:
        told = {problem.path for problem in tree.problems}
        problems += [
            tree.problem(each["loc"], message_of(each)) for each in error.errors(include_url=False) if each["loc"] not in told
        ]
    wrong = {problem.path for problem in problems}
    for at, speech in speeches(tree.values, folder, wrong):
        problems += [tree.problem((*at, key), message) for key, message in inspect(speech)]
    if problems:
        raise SettingsError(tuple(str(each) for each in sorted(problems, key=lambda each: (each.place.line, each.place.column))))
    return settings


def _unread_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Overrides spelt with one underscore. A URL is not one: Kubernetes sets `INTERLOCK_SERVER_PORT=tcp://…` for a service."""
    for section, model in SECTIONS.items():
        for key in model.model_fields if len(section) == 1 else ():
            name = f"{PREFIX}{section[0]}_{key}".upper()
            if "://" not in environ.get(name, "://"):
                yield Problem(Place(name), (), f"not read: write {PREFIX}{section[0].upper()}__{key.upper()}")


def message_of(error: ErrorDetails, below: KeyPath = ()) -> str:
    """What is wrong with a value, in our words. `below`: what the values that were checked are a part of."""
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return _unknown_key((*below, *error["loc"]))
        case "model_type" | "model_attributes_type":
            return "must be a mapping of keys"
        case "tuple_type":
            return "must be a list"
        case "path_type":
            return "must be a path"
        case "bool_type":
            return "must be `true` or `false`"
        case _:
            null = ", or `null`" if _may_be_null((*below, *error["loc"])) else ""
            return error["msg"].replace("Input should be", "must be").replace("Input should", "must") + null


def _may_be_null(path: KeyPath) -> bool:
    """Whether that says something else there than leaving the key out."""
    *parents, key = (each for each in path if isinstance(each, str))
    section = SECTIONS.get(tuple(parents))
    field = section.model_fields.get(key) if section is not None else None
    return field is not None and field.default is not None and NoneType in get_args(field.annotation)


def _unknown_key(path: KeyPath) -> str:
    *parents, key = (each for each in path if isinstance(each, str))
    keys = SECTIONS[tuple(parents)].model_fields
    if hint := _hint(key, keys):
        return f"unknown key{hint}"
    homes = [".".join(section) or "the top level" for section, model in SECTIONS.items() if key in model.model_fields]
    return f"unknown key; it belongs in {homes[0]}" if homes else f"unknown key; known here: {', '.join(keys)}"


def _hint(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _root_url(url: str) -> str:
    """The URL without a last slash."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(each.isspace() for each in url):
        raise wrong("must be the engine's root, as `http://127.0.0.1:8000`")
    if parts.username is not None or parts.password is not None:
        raise wrong("must hold no user or password: name a variable in `api_key_env`")
    if parts.query or parts.fragment:
        raise wrong("must have no query and no fragment")
    root = url.rstrip("/")
    if root.endswith("/v1"):
        raise wrong("leave out `/v1`: the gateway adds it")
    return root
