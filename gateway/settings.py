"""Typed settings: one YAML file plus environment overrides, read once at start and frozen.

Invariant: `load` gives settings in which everything fits together, or raises one `SettingsError` with every problem in them, each
with its key path and the line or variable that it came from. A problem's text never holds a value that may be a secret.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from engines.base import Traits
from gateway.errors import SettingsError, shown
from gateway.settings_fit import (
    AS_TEXT,
    AUTO_FORMAT,
    ENGINE_FORMAT,
    NATIVE,
    ControlTokens,
    Speech,
    ToolMode,
    engine_id,
    misfits,
    source_path,
    speeches,
)
from gateway.settings_tree import PREFIX, KeyPath, Place, Problem, read_tree

KINDS = ("llamacpp", "vllm", "sglang", "trtllm", "openai")
"""Every kind of engine that a settings file may name; a version may lack the adapter of some."""

Inspect = Callable[[Speech], Iterator[tuple[str, str]]]
"""Tries to speak to a model: gives the key and the message of each thing that hinders it."""

_LABEL = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_MADE: Mapping[str, str] = MappingProxyType({"source": "models are not downloaded", "profile": "`interlock onboard` makes one"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Context:
    """What values are checked against. Settings made in code, without one, are checked for their types only."""

    folder: Path | None = None
    environ: Mapping[str, str] | None = None
    kinds: Collection[str] | None = None
    formats: Collection[str] | None = None


def _context(info: ValidationInfo) -> _Context:
    return info.context if isinstance(info.context, _Context) else _Context()


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("settings", "{message}", {"message": message})


def _label(value: Any) -> Any:
    if isinstance(value, str) and not _LABEL.fullmatch(value):
        raise _wrong("must be 1 to 128 letters, digits or any of . _ : / -")
    return value


def _some(value: Any) -> Any:
    if value in ([], ()):
        raise _wrong("must have at least one item")
    return value


def _section(value: Any) -> Any:
    return {} if value is None else value


Label = Annotated[str, BeforeValidator(_label)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Labels = Annotated[tuple[Label, ...], Field(strict=False)]


class _Settings(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)


class ServerSettings(_Settings):
    """Where the gateway listens, and what one request may cost it."""

    host: str = Field("127.0.0.1", min_length=1)
    """Address of the API. Beyond loopback there is no protection yet: this version checks no keys."""

    port: Port = 8080
    """Port of the API; 0 takes a free one, which is logged."""

    admin_host: str = Field("127.0.0.1", min_length=1)
    """Address of `/metrics`, `/health` and `/ready`. Keep it on loopback or a private network."""

    admin_port: Port | None = None
    """Port of the admin address. Unset: 8081, or a free port, which is logged, where 8081 is taken."""

    workers: int = Field(1, ge=1)
    """Worker processes. This version runs exactly one."""

    max_body_bytes: int = Field(32 * 1024 * 1024, ge=1)
    """The largest request body; a larger one is answered with 413."""

    drain_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """How long running answers may go on after SIGTERM; then they are ended with an error."""

    headers_grace_s: float = Field(5.0, ge=0, allow_inf_nan=False)
    """How long the headers of a streamed answer wait for its first token, so that a failure can still be a plain HTTP error."""

    @field_validator("admin_port")
    @classmethod
    def _own_port(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and value == info.data.get("port") and info.data.get("host") == info.data.get("admin_host"):
            raise _wrong("must differ from `port`")
        return value

    @field_validator("workers")
    @classmethod
    def _one_worker(cls, value: int) -> int:
        if value > 1:
            raise _wrong("this version runs one worker only: set 1, or leave it out")
        return value


class EngineSettings(_Settings):
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

    api_key_env: str | None = None
    """The environment variable that holds the engine's API key. The key itself never stands in a settings file."""

    @field_validator("url")
    @classmethod
    def _without_v1(cls, value: str) -> str:
        return _root_url(value)

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, value: str, info: ValidationInfo) -> str:
        kinds = _context(info).kinds
        supported = KINDS if kinds is None else kinds
        if value not in supported:
            what = f"{value} is not supported by this version" if value in KINDS else "unknown kind of engine"
            raise _wrong(f"{what}{_hint(value, supported)}; supported: {', '.join(supported)}")
        return value

    @field_validator("api_key_env")
    @classmethod
    def _set_variable(cls, value: str | None, info: ValidationInfo) -> str | None:
        environ = _context(info).environ
        if value is not None and not _VARIABLE.fullmatch(value):
            raise _wrong("must be the name of an environment variable, not a key")
        if value is not None and environ is not None and not environ.get(value):
            raise _wrong("the environment variable that it names is not set, or is empty")
        return value


class ModelSettings(_Settings):
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

    engines: Annotated[tuple[EngineSettings, ...], Field(strict=False), BeforeValidator(_some)]
    """The engines that serve this model."""

    @property
    def speech(self) -> Speech | None:
        """How the model is spoken to; None where its engine sees to that."""
        if self.source is None or self.format == ENGINE_FORMAT:
            return None
        return Speech(self.source, self.format, self.tools, self.control_tokens, self.profile)

    @field_validator("source", "profile")
    @classmethod
    def _found_source(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        folder = _context(info).folder
        if value is None or folder is None:
            return value
        try:
            source = source_path(folder, value)
            source.stat()
        except FileNotFoundError:
            hint = f"a relative path starts at the settings file; {_MADE[info.field_name or '']}"
            raise _wrong(f"no such file or directory: {source} ({hint})") from None
        except OSError as error:
            raise _wrong(f"cannot be read: {error.strerror or error}: {source}") from None
        except (RuntimeError, ValueError):  # no one's home, or a character that no path has
            raise _wrong(f"{shown(str(value))} is no path") from None
        return source

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str, info: ValidationInfo) -> str:
        formats = _context(info).formats
        if formats is not None and value not in (AUTO_FORMAT, ENGINE_FORMAT) and value not in formats:
            known = {AUTO_FORMAT, ENGINE_FORMAT, *formats}
            raise _wrong(f"unknown format{_hint(value, known)}; known: {', '.join(sorted(known))}")
        return value

    @field_validator("engines")
    @classmethod
    def _named_engines(cls, value: tuple[EngineSettings, ...], info: ValidationInfo) -> tuple[EngineSettings, ...]:
        name = info.data.get("name", "")
        return tuple(each if each.id else each.model_copy(update={"id": engine_id(name, i)}) for i, each in enumerate(value))


class TimeoutSettings(_Settings):
    """How long an engine may be silent in each stage of an answer."""

    connect_s: Seconds = 1.0
    """Until the connection stands."""

    headers_s: Seconds = 600.0
    """From the request's last byte to the engine's answer headers. llama.cpp sends them once a slot takes the request, so
    that this covers its queue; engines that send them at once may have a shorter one."""

    first_token_s: Seconds = 600.0
    """From the answer headers to the first token. Covers a long prompt, and the queue of engines that send headers at once."""

    between_tokens_s: Seconds = 30.0
    """Between two tokens. Keep-alive comments do not count as tokens, and time spent waiting for the client does not count."""

    total_s: Seconds = 3600.0
    """The whole request."""


class LimitSettings(_Settings):
    """What one request may ask, and how many may wait."""

    n: int = Field(8, ge=1)
    """The largest `n`."""

    stop: int = Field(16, ge=0)
    """The most `stop` strings."""

    logprobs: int = Field(20, ge=0)
    """The largest `top_logprobs`."""

    tools: int = Field(256, ge=0)
    """The most tools."""

    messages: int = Field(10_000, ge=1)
    """The most messages."""

    queue_requests: int = Field(256, ge=0)
    """The most requests, over all models, that may wait while their model has no ready engine; the next is answered with 429. A
    ready engine queues requests itself."""

    queue_wait_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """The longest that a request may wait for its model to have a ready engine, and for a process to render its prompt; then it
    is answered with 503."""

    render_workers: int = Field(2, ge=0)
    """Processes that render prompts, but for the quickest. Each holds the models' vocabularies. 0: the gateway renders them
    itself, one prompt of a model after the other in a thread, where a chat template has 2 s of processor time."""

    render_s: Seconds = 10.0
    """The processor time that such a process may take for one prompt. Then it is stopped, and the request is answered with 400.
    One that does not answer within twice that time is started again; where that does not help, the answer is 503."""


class Settings(_Settings):
    """All settings."""

    server: Annotated[ServerSettings, BeforeValidator(_section)] = Field(default_factory=ServerSettings)
    models: Annotated[tuple[ModelSettings, ...], Field(strict=False), BeforeValidator(_some)]
    timeouts: Annotated[TimeoutSettings, BeforeValidator(_section)] = Field(default_factory=TimeoutSettings)
    limits: Annotated[LimitSettings, BeforeValidator(_section)] = Field(default_factory=LimitSettings)
    require_checks: bool = False
    """Serve no model that has not passed `interlock check`: one without a profile, or whose profile was changed since."""


SECTIONS: Mapping[tuple[str, ...], type[_Settings]] = MappingProxyType(
    {
        (): Settings,
        ("server",): ServerSettings,
        ("models",): ModelSettings,
        ("models", "engines"): EngineSettings,
        ("timeouts",): TimeoutSettings,
        ("limits",): LimitSettings,
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
        settings = Settings.model_validate(tree.values, context=_Context(folder, environ, tuple(kinds), frozenset(formats)))
    except ValidationError as error:
        told = {problem.path for problem in tree.problems}
        problems += [
            tree.problem(each["loc"], _message(each)) for each in error.errors(include_url=False) if each["loc"] not in told
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


def _message(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return _unknown_key(error["loc"])
        case "model_type" | "model_attributes_type":
            return "must be a mapping of keys"
        case "tuple_type":
            return "must be a list"
        case "path_type":
            return "must be a path"
        case _:
            return error["msg"].replace("Input should be", "must be").replace("Input should", "must")


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
        raise _wrong("must be the engine's root, as `http://127.0.0.1:8000`")
    if parts.username is not None or parts.password is not None:
        raise _wrong("must hold no user or password: name a variable in `api_key_env`")
    if parts.query or parts.fragment:
        raise _wrong("must have no query and no fragment")
    root = url.rstrip("/")
    if root.endswith("/v1"):
        raise _wrong("leave out `/v1`: the gateway adds it")
    return root
