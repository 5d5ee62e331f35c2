"""Settings: what loads, what is wrong and how that is told. One table of broken files holds the messages."""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from engines.base import Traits
from gateway.errors import SettingsError
from gateway.settings import SECTIONS, EngineSettings, ModelSettings, Settings, load
from gateway.settings_fit import Speech
from gateway.settings_parts import ServerSettings
from gateway.settings_tree import MAX_FILE_BYTES

ROOT = Path(__file__).parent.parent
KINDS = {
    "llamacpp": Traits(takes_ids=True, streams_ids=False, choices=False, constraints=frozenset({"json", "calls"})),
    "openai": Traits(takes_ids=False, streams_ids=False, choices=True),
}
RANKED = {"vllm": Traits(takes_ids=True, streams_ids=True, choices=False, ranks=True)}
FORMATS = ("plain", "hermes", "qwen25")

MODEL = """
models:
  - name: m
    source: m.gguf
    engines: [{url: "http://127.0.0.1:1", kind: llamacpp}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").touch()
    return tmp_path


def speakable(_: Speech) -> Iterator[tuple[str, str]]:
    """Every model can be spoken to."""
    return iter(())


def read(
    folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None, kinds: Mapping[str, Traits] = KINDS
) -> Settings:
    file = folder / "f.yaml"
    file.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
    return load(file, environ or {}, kinds=kinds, formats=FORMATS, inspect=speakable)


def problems(
    folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None, kinds: Mapping[str, Traits] = KINDS
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(folder, text, environ, kinds)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def test_defaults(folder: Path) -> None:
    found = read(folder, MODEL)
    assert found.server == ServerSettings()
    assert (found.server.host, found.server.port, found.server.admin_host, found.server.admin_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        None,
    )
    assert (found.server.workers, found.server.max_body_bytes, found.server.drain_s) == (1, 33_554_432, 30)
    assert found.server.headers_grace_s == 5
    assert (found.server.drain_grace_s, found.server.route_headers) == (0, False)
    assert tuple(found.timeouts.model_dump().values()) == (1, 600, 600, 30, 60, 3600)
    assert tuple(found.limits.model_dump().values()) == (8, 16, 20, 256, 10_000, 256, 30, 0, 4096, 2, 10)
    (model,) = found.models
    assert (model.format, model.tools, model.unknown_tool, model.on_parse_failure) == ("auto", "native", "forward", "content")
    assert (model.on_schema_miss, model.hold_arguments, model.aliases) == ("count", False, ())
    assert model.source == folder / "m.gguf"
    assert model.engines == (EngineSettings(id="m-0", url="http://127.0.0.1:1", kind="llamacpp"),)


def test_every_key_can_be_set(folder: Path) -> None:
    found = read(
        folder,
        """
        server: {host: "::1", port: 1, admin_host: 10.0.0.1, admin_port: 2, admin_names: [a.test], workers: 1,
                 max_body_bytes: 3, drain_s: 0,
                 drain_grace_s: 0, route_headers: true, headers_grace_s: 0.5, failure_texts: false}
        models:
          - name: org/m:1
            aliases: [a, b.c]
            source: m.gguf
            format: hermes
            tools: constrained
            control_tokens: special
            unknown_tool: refuse
            on_parse_failure: error
            on_schema_miss: retry
            hold_arguments: true
            engines_file: engines.yaml
            engines:
              - {id: e, url: "https://e.test:8/pre/", kind: llamacpp, model: big, api_key_env: KEY, most_running: 9, weights: w,
                 gpus: [0, GPU-1]}
        timeouts: {connect_s: 1, headers_s: 2, first_token_s: 3, between_tokens_s: 4, client_s: 6, total_s: 5}
        limits: {n: 1, stop: 2, logprobs: 3, tools: 4, messages: 5, queue_requests: 6, queue_wait_s: 7, render_workers: 0,
          render_s: 8, down_wait_s: 9, inflight_requests: 10}
        failures: {attempts: 1, retries: 2, retry_share: 0.5, resume: "off", eject_failures: 3, eject_share: 0.3, eject_s: 4,
          slow_start_s: 5}
        """,
        {"KEY": "sk-secret"},
    )
    assert found.server.model_fields_set == set(ServerSettings.model_fields)
    assert found.models[0].model_fields_set == set(ModelSettings.model_fields) - {"profile"}
    (engine,) = found.models[0].engines
    assert engine.model_dump() == {
        "id": "e",
        "url": "https://e.test:8/pre",
        "kind": "llamacpp",
        "model": "big",
        "most_running": 9,
        "weights": "w",
        "api_key_env": "KEY",
        "ranks": None,
        "resolve": False,
        "kv_events": None,
        "gpus": ("0", "GPU-1"),
    }
    assert found.models[0].engines_file == folder / "engines.yaml"
    assert found.timeouts.model_fields_set == set(type(found.timeouts).model_fields)
    assert found.limits.model_fields_set == set(type(found.limits).model_fields)
    assert found.failures.model_fields_set == set(type(found.failures).model_fields)
    assert "sk-secret" not in repr(found)


def test_an_engine_of_several_ranks_or_addresses(folder: Path) -> None:
    engine = "{id: e, url: 'http://e.test:8', kind: vllm, ranks: 4, resolve: true}"
    (model,) = read(folder, MODEL.replace('{url: "http://127.0.0.1:1", kind: llamacpp}', engine), kinds=RANKED).models
    assert (model.engines[0].ranks, model.engines[0].resolve) == (4, True)


TELLING = {
    "vllm": Traits(takes_ids=True, streams_ids=True, choices=False, ranks=True, kv_events="zmq"),
    "trtllm": Traits(takes_ids=True, streams_ids=True, choices=False, kv_events="poll"),
    **KINDS,
}


@pytest.mark.parametrize(
    ("kind", "told", "expected"),
    [
        ("vllm", "{endpoint: 'tcp://*:5557'}", {"endpoint": "tcp://*:5557"}),
        (
            "vllm",
            "{endpoint: 'ipc:///run/kv', replay_endpoint: 'tcp://[::1]:1', topic: kv@, bind: true}",
            {"endpoint": "ipc:///run/kv", "replay_endpoint": "tcp://[::1]:1", "topic": "kv@", "bind": True},
        ),
        ("trtllm", "", {}),
        ("trtllm", "{poll_s: 2}", {"poll_s": 2.0}),
    ],
)
def test_where_an_engine_tells_what_its_cache_holds(folder: Path, kind: str, told: str, expected: dict[str, object]) -> None:
    (model,) = read(folder, engine_with(kind=kind, kv_events=told), kinds=TELLING).models
    defaults = {"endpoint": None, "replay_endpoint": None, "topic": "", "bind": False, "poll_s": 0.5}
    found = model.engines[0].kv_events
    assert found is not None
    assert found.model_dump() == defaults | expected


NO_ADDRESS = "must be an address of ZMQ, as `tcp://*:5557` or `ipc:///run/vllm/kv`"


@pytest.mark.parametrize(
    ("engine", "wrong"),
    [
        ({"kind": "vllm", "kv_events": ""}, {"kv_events.endpoint: is missing: vllm publishes what its cache holds"}),
        (
            {"kind": "vllm", "kv_events": "{endpoint: 'tcp://h', replay_endpoint: 'tcp://h:70000'}"},
            {f"kv_events.endpoint: {NO_ADDRESS}", f"kv_events.replay_endpoint: {NO_ADDRESS}"},
        ),
        ({"kind": "vllm", "kv_events": "{endpoint: 'ipc:///a b'}"}, {f"kv_events.endpoint: {NO_ADDRESS}"}),
        (
            {"kind": "vllm", "kv_events": "{endpoint: 'tcp://*:1', poll_s: 1}"},
            {"kv_events.poll_s: has no effect: vllm is not asked"},
        ),
        (
            {"kind": "vllm", "kv_events": "{endpoint: 'tcp://*:1', rank: 1}"},
            {"kv_events.rank: unknown key; known here: endpoint, replay_endpoint, topic, bind, poll_s"},
        ),
        (
            {"kind": "trtllm", "kv_events": "{endpoint: 'tcp://*:1', topic: x}"},
            {f"kv_events.{key}: has no effect: trtllm is asked, at its `url`" for key in ("endpoint", "topic")},
        ),
        ({"kind": "llamacpp", "kv_events": "{}"}, {"kv_events: llamacpp does not tell what its cache holds"}),
        (
            {"kind": "vllm", "ranks": "2", "kv_events": "{endpoint: 'ipc:///x'}"},
            {"kv_events.endpoint: must be `tcp` with `ranks`: each rank has a port of its own"},
        ),
        (
            {"kind": "vllm", "resolve": "true", "kv_events": "{endpoint: 'tcp://*:1', replay_endpoint: 'tcp://h:2'}"},
            {
                "kv_events.replay_endpoint: must be `tcp://*:PORT` with `resolve`, and not bound: each address has events of "
                "its own"
            },
        ),
    ],
)
def test_where_it_does_not(folder: Path, engine: dict[str, str], wrong: set[str]) -> None:
    told = problems(folder, engine_with(**engine), kinds=TELLING)
    assert {each.partition("engines[0].")[2] for each in told} == wrong


def test_events_of_an_engine_that_templates_cannot_be_compared(folder: Path) -> None:
    told = problems(folder, engine_with(kind="openai", kv_events="{}").replace("source: m.gguf", "format: engine"), kinds=TELLING)
    assert told == [
        "f.yaml:7:5: models[0].engines[0].kv_events: has no effect with `format: engine`: the gateway does not know the "
        "prompt's tokens, which the events are of"
    ]


def test_ranks_are_few_and_have_ids_of_their_own(folder: Path) -> None:
    assert problems(folder, engine_with(ranks="257", kind="vllm"), kinds=RANKED) == [
        "f.yaml:7:5: models[0].engines[0].ranks: must be less than or equal to 256"
    ]
    engines = "[{id: e.1, url: 'http://h:1', kind: vllm}, {id: e, url: 'http://h:2', kind: vllm, ranks: 2}]"
    assert problems(folder, f"models: [{{name: m, source: m.gguf, engines: {engines}}}]", kinds=RANKED) == [
        "f.yaml:1:89: models[0].engines[1].id: `e.1` is taken by models[0].engines[0].id"
    ]


def test_a_file_of_engines_stands_for_the_list(folder: Path) -> None:
    (model,) = read(folder, "models: [{name: m, source: m.gguf, engines_file: sub/e.yaml}]").models
    assert (model.engines, model.engines_file) == ((), folder / "sub/e.yaml")


def test_settings_are_frozen_and_can_be_made_in_code() -> None:
    made = Settings(models=(ModelSettings(name="m", engines=(EngineSettings(url="http://h:1", kind="llamacpp"),)),))
    assert made.models[0].engines[0].id == "m-0"
    assert ModelSettings(name="m", source=Path("m.gguf"), engines=made.models[0].engines).source == Path("m.gguf")
    with pytest.raises(ValueError, match="frozen"):
        made.server.port = 1  # type: ignore[misc]


def model_with(line: str, source: str = "source: m.gguf") -> str:
    return f"models:\n- name: m\n  {source}\n  {line}\n  engines: [{{url: 'http://h:1', kind: llamacpp}}]\n"


def engine_with(**keys: str) -> str:
    engine = {"url": "http://h:1", "kind": "llamacpp"} | keys
    rows = "".join(f"\n    {key}: {value}" for key, value in engine.items())
    return f"models:\n- name: m\n  source: m.gguf\n  engines:\n  -{rows[4:]}\n"


BROKEN: dict[str, tuple[str, list[str]]] = {
    "not a mapping": ("- 1", ["f.yaml: the settings must be a mapping of keys, as `models: …`"]),
    "empty": ("", ["f.yaml:1:1: models: is missing"]),
    "no models": ("models: []", ["f.yaml:1:1: models: must have at least one item"]),
    "models of nothing": ("models:", ["f.yaml:1:1: models: must be a list"]),
    "not YAML": ("a: b: c", ["f.yaml:1:5: not valid YAML: mapping values are not allowed here"]),
    "two documents": ("--- 1\n--- 2", ["f.yaml:2:1: not valid YAML: but found another document"]),
    "control character": ("a: \x07", ["f.yaml: not valid YAML: character U+0007 is not allowed"]),
    "unknown section": (MODEL + "timeout: {}", ["f.yaml:6:1: timeout: unknown key; did you mean `timeouts`?"]),
    "in the wrong section": (MODEL + "drain_s: 1", ["f.yaml:6:1: drain_s: unknown key; it belongs in server"]),
    "section inside another": (
        MODEL + "server:\n  limits: {}",
        ["f.yaml:7:3: server.limits: unknown key; it belongs in the top level"],
    ),
    "unknown key": (
        MODEL + "limits:\n  xyzzy: 1",
        [
            "f.yaml:7:3: limits.xyzzy: unknown key; known here: n, stop, logprobs, tools, messages, queue_requests, "
            "queue_wait_s, down_wait_s, inflight_requests, render_workers, render_s"
        ],
    ),
    "a key that is a number": (MODEL + "limits: {1: 2}", ["f.yaml:6:10: limits: a key must be text"]),
    "a key that is a list": (MODEL + "limits: {[a]: 2}", ["f.yaml:6:10: limits: a key must be text"]),
    "a key written twice": (
        MODEL + "limits:\n  n: 1\n  stop: 1\n  n: 2",
        ["f.yaml:9:3: limits.n: written twice; first on line 7"],
    ),
    "a section that is text": (MODEL + "server: here", ["f.yaml:6:1: server: must be a mapping of keys"]),
    "a port that is a boolean": (MODEL + "server: {port: true}", ["f.yaml:6:10: server.port: must be a valid integer"]),
    "a port that is text": (MODEL + "server: {port: '1'}", ["f.yaml:6:10: server.port: must be a valid integer"]),
    "a port too high": (MODEL + "server: {port: 65536}", ["f.yaml:6:10: server.port: must be less than or equal to 65535"]),
    "a negative port": (
        MODEL + "server: {admin_port: -1}",
        ["f.yaml:6:10: server.admin_port: must be greater than or equal to 0"],
    ),
    "one port twice": (MODEL + "server: {port: 9, admin_port: 9}", ["f.yaml:6:19: server.admin_port: must differ from `port`"]),
    "workers": (
        MODEL + "server: {workers: 2}",
        ["f.yaml:6:10: server.workers: this version runs one worker only: set 1, or leave it out"],
    ),
    "no time": (MODEL + "timeouts: {total_s: 0}", ["f.yaml:6:12: timeouts.total_s: must be greater than 0"]),
    "endless time": (MODEL + "timeouts: {total_s: 1e999}", ["f.yaml:6:12: timeouts.total_s: must be a finite number"]),
    "an integer of many digits": (
        MODEL + f"limits: {{n: {'9' * 5000}}}",
        ["f.yaml:6:13: limits.n: not a number that can be read"],
    ),
    "1.1 booleans are text": (
        model_with("hold_arguments: yes"),
        ["f.yaml:4:3: models[0].hold_arguments: must be `true` or `false`"],
    ),
    "no number where null is one too": (
        MODEL + "routing: {hold_s: abc}",
        ["f.yaml:6:11: routing.hold_s: must be a valid number, or `null`"],
    ),
    "a number where null is none": (
        MODEL + "routing: {kappa_max: null}",
        ["f.yaml:6:11: routing.kappa_max: must be a valid number"],
    ),
    "what another policy ignores": (
        MODEL + "routing: {policy: round_robin, hold_s: null}",
        ["f.yaml:6:32: routing.hold_s: has no effect with `policy: round_robin`"],
    ),
    "a choice": (model_with("tools: all"), ["f.yaml:4:3: models[0].tools: must be 'native' or 'constrained'"]),
    "a tag": (model_with("tools: !!binary aGk="), ["f.yaml:4:10: models[0].tools: YAML tags are not supported"]),
    "a tag on a boolean": (
        model_with("hold_arguments: !!bool 3"),
        ["f.yaml:4:19: models[0].hold_arguments: YAML tags are not supported"],
    ),
    "a set": (model_with("aliases: !!set {a}"), ["f.yaml:4:12: models[0].aliases: YAML tags are not supported"]),
    "a profile that is not there": (
        model_with("profile: /nowhere/p.yaml"),
        [
            "f.yaml:4:3: models[0].profile: no such file or directory: /nowhere/p.yaml (a relative path starts at the settings "
            "file; `interlock onboard` makes one)"
        ],
    ),
    "a profile of an engine's own": (
        "models: [{name: m, format: engine, profile: f.yaml, engines: [{url: 'http://h:1', kind: openai}]}]",
        ["f.yaml:1:36: models[0].profile: has no effect with `format: engine`: the engine templates and parses"],
    ),
    "an unknown format": (
        model_with("format: hermse"),
        ["f.yaml:4:3: models[0].format: unknown format; did you mean `hermes`?; known: auto, engine, hermes, plain, qwen25"],
    ),
    "a name with a quote": (
        MODEL.replace("name: m", "name: 'a\"b'"),
        ["f.yaml:3:5: models[0].name: must be 1 to 128 letters, digits or any of . _ : / -"],
    ),
    "a name that metrics use": (
        MODEL.replace("name: m", "name: unknown"),
        ["f.yaml:3:5: models[0].name: `unknown` is what metrics say where there is no model: take another name"],
    ),
    "an alias that is taken": (model_with("aliases: [m]"), ["f.yaml:4:13: models[0].aliases[0]: `m` is taken by models[0].name"]),
    "aliases as text": (model_with("aliases: a"), ["f.yaml:4:3: models[0].aliases: must be a list"]),
    "no source": (
        model_with("hold_arguments: false", source="tools: native"),
        ["f.yaml:2:3: models[0].source: is missing: give a GGUF file or a model directory, or set `format: engine`"],
    ),
    "a source that is not there": (
        model_with("hold_arguments: false", source="source: sub/../nope.gguf"),
        [
            "f.yaml:3:3: models[0].source: no such file or directory: nope.gguf (a relative path starts at the settings "
            "file; models are not downloaded)"
        ],
    ),
    "a source that is beneath a file": (
        model_with("hold_arguments: false", source="source: m.gguf/m.gguf"),
        ["f.yaml:3:3: models[0].source: cannot be read: Not a directory: m.gguf/m.gguf"],
    ),
    "a source that is a list": (
        model_with("hold_arguments: false", source="source: [m.gguf]"),
        ["f.yaml:3:3: models[0].source: must be a path"],
    ),
    "a source in no one's home": (
        model_with("hold_arguments: false", source="source: ~nobody.here/m.gguf"),
        ["f.yaml:3:3: models[0].source: '~nobody.here/m.gguf' is no path"],
    ),
    "nothing where a value could be": (model_with("profile:") + "- 7", ["f.yaml:6:3: models[1]: must be a mapping of keys"]),
    "an engine that takes ids, asked to template": (
        model_with("format: engine"),
        ["f.yaml:5:33: models[0].engines[0].kind: llamacpp is sent token ids, so it cannot serve a model with `format: engine`"],
    ),
    "an engine that templates, asked to take ids": (
        engine_with(kind="openai"),
        ["f.yaml:6:5: models[0].engines[0].kind: openai templates and parses by itself: the model needs `format: engine`"],
    ),
    "constrained by an engine that templates": (
        engine_with(kind="openai").replace("source: m.gguf", "format: engine\n  tools: constrained"),
        ["f.yaml:4:3: models[0].tools: `constrained` needs a `source` and a format other than `engine`"],
    ),
    "calls held back of an engine that parses": (
        engine_with(kind="openai").replace("source: m.gguf", "format: engine\n  hold_arguments: true"),
        ["f.yaml:4:3: models[0].hold_arguments: has no effect with `format: engine`: the engine's events pass as they come"],
    ),
    "control tokens of an engine": (
        model_with("format: engine\n  control_tokens: text").replace("llamacpp", "openai"),
        ["f.yaml:5:3: models[0].control_tokens: has no effect with `format: engine`: the engine tokenises the text"],
    ),
    "an engine to come": (
        engine_with(kind="vllm"),
        ["f.yaml:6:5: models[0].engines[0].kind: vllm is not supported by this version; supported: llamacpp, openai"],
    ),
    "no such engine": (
        engine_with(kind="lamacpp"),
        ["f.yaml:6:5: models[0].engines[0].kind: unknown kind of engine; did you mean `llamacpp`?; supported: llamacpp, openai"],
    ),
    "a kind that is a list": (engine_with(kind="[a]"), ["f.yaml:6:5: models[0].engines[0].kind: must be a valid string"]),
    "no engines": (
        "models: [{name: m, source: m.gguf}]",
        ["f.yaml:1:10: models[0].engines: is missing: list the engines, or name an `engines_file`"],
    ),
    "a list of no engines": (
        "models: [{name: m, source: m.gguf, engines: []}]",
        ["f.yaml:1:36: models[0].engines: must have at least one item"],
    ),
    "a file of engines in no one's home": (
        "models: [{name: m, source: m.gguf, engines_file: ~nobody.here/e.yaml}]",
        ["f.yaml:1:36: models[0].engines_file: '~nobody.here/e.yaml' is no path"],
    ),
    "ranks of a kind that has none": (
        engine_with(ranks="2"),
        ["f.yaml:7:5: models[0].engines[0].ranks: llamacpp cannot be told which rank a request is for"],
    ),
    "addresses of a certificate's name": (
        engine_with(url="https://h:1", resolve="true"),
        ["f.yaml:7:5: models[0].engines[0].resolve: needs an `http` URL: a certificate is of a name, not of an address"],
    ),
    "a key in the file": (
        engine_with(api_key="sk-secret"),
        ["f.yaml:7:5: models[0].engines[0].api_key: unknown key; did you mean `api_key_env`?"],
    ),
    "a key for a variable": (
        engine_with(api_key_env="sk-secret"),
        ["f.yaml:7:5: models[0].engines[0].api_key_env: must be the name of an environment variable, not a key"],
    ),
    "a variable that is not set": (
        engine_with(api_key_env="NOT_SET"),
        ["f.yaml:7:5: models[0].engines[0].api_key_env: the environment variable that it names is not set, or is empty"],
    ),
    "an engine's id that metrics use": (
        engine_with(id="none"),
        ["f.yaml:7:5: models[0].engines[0].id: `none` is what metrics say where there is no engine: take another name"],
    ),
    "an engine's default id that is taken": (
        MODEL.replace("engines: [", "engines: [{id: m-1, url: 'http://h:1', kind: llamacpp}, "),
        ["f.yaml:5:61: models[0].engines[1].id: `m-1` is taken by models[0].engines[0].id"],
    ),
}

URLS = {
    "http://h:1/v1": "leave out `/v1`: the gateway adds it",
    "http://h:1/v1/": "leave out `/v1`: the gateway adds it",
    "http://u:secret@h:1": "must hold no user or password: name a variable in `api_key_env`",
    "http://h:1/?key=secret": "must have no query and no fragment",
    "http://h:1/#secret": "must have no query and no fragment",
    "ftp://h:1": "must be the engine's root, as `http://127.0.0.1:8000`",
    "h:1": "must be the engine's root, as `http://127.0.0.1:8000`",
    "http://": "must be the engine's root, as `http://127.0.0.1:8000`",
    "http://h:0": "must be the engine's root, as `http://127.0.0.1:8000`",
    "http://h:99999": "must be the engine's root, as `http://127.0.0.1:8000`",
    "http://[::1": "must be the engine's root, as `http://127.0.0.1:8000`",
    "http://h h:1": "must be the engine's root, as `http://127.0.0.1:8000`",
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file(folder: Path, case: str) -> None:
    text, expected = BROKEN[case]
    assert problems(folder, text) == expected


@pytest.mark.parametrize("url", URLS)
def test_broken_url(folder: Path, url: str) -> None:
    assert problems(folder, engine_with(url=f"'{url}'")) == [f"f.yaml:5:5: models[0].engines[0].url: {URLS[url]}"]


def test_every_problem_at_once_in_the_file_s_order(folder: Path) -> None:
    text = """\
        server:
          prt: 9
          workers: 2
        models:
          - name: a b
            tools: all
            engines:
              - kind: vllm
                url: http://h:1/v1
          - name: x
            aliases: [x]
            source: m.gguf
            engines: []
        """
    assert [problem.partition(": ")[0:3:2] for problem in problems(folder, text, {"INTERLOCK_LIMITS__N": "0"})] == [
        ("INTERLOCK_LIMITS__N", "limits.n: must be greater than or equal to 1"),
        ("f.yaml:2:3", "server.prt: unknown key; did you mean `port`?"),
        ("f.yaml:3:3", "server.workers: this version runs one worker only: set 1, or leave it out"),
        ("f.yaml:5:5", "models[0].source: is missing: give a GGUF file or a model directory, or set `format: engine`"),
        ("f.yaml:5:5", "models[0].name: must be 1 to 128 letters, digits or any of . _ : / -"),
        ("f.yaml:6:5", "models[0].tools: must be 'native' or 'constrained'"),
        ("f.yaml:8:9", "models[0].engines[0].kind: vllm is not supported by this version; supported: llamacpp, openai"),
        ("f.yaml:9:9", "models[0].engines[0].url: leave out `/v1`: the gateway adds it"),
        ("f.yaml:11:15", "models[1].aliases[0]: `x` is taken by models[1].name"),
        ("f.yaml:13:5", "models[1].engines: must have at least one item"),
    ]


INSPECTED: dict[str, tuple[str, list[Speech]]] = {
    "defaults": (MODEL, [Speech(Path("m.gguf"), "auto", "native")]),
    "what is written": (
        model_with("tools: constrained\n  format: hermes\n  control_tokens: special"),
        [Speech(Path("m.gguf"), "hermes", "constrained", "special")],
    ),
    "whatever else is wrong": (
        model_with("hold_arguments: maybe\n  on_schema_miss: never\n  aliases: [m]\n  bogus: 1").replace("http", "ftp")
        + "server: {port: x}",
        [Speech(Path("m.gguf"), "auto", "native")],
    ),
    "an engine that does not fit": (engine_with(kind="openai"), [Speech(Path("m.gguf"), "auto", "native")]),
    "each by itself": (
        MODEL + "  - {name: n, source: m.gguf, format: hermes, engines: []}\n  - 7\n  - {source: nope.gguf}",
        [Speech(Path("m.gguf"), "auto", "native"), Speech(Path("m.gguf"), "hermes", "native")],
    ),
    "not one whose engine sees to it": (MODEL.replace("source: m.gguf", "format: engine"), []),
    "not one without a source": (MODEL.replace("source: m.gguf", "tools: native"), []),
    "not one that is not there": (MODEL.replace("m.gguf", "nope.gguf"), []),
    "not a format that is unknown": (model_with("format: hermse"), []),
    "not a format of two": (model_with("format: hermes\n  format: plain"), []),
    "not a format that is nothing": (model_with("format:"), []),
    "not a way with tools that is none": (model_with("tools: [native]"), []),
}


@pytest.mark.parametrize("case", INSPECTED)
def test_inspected(folder: Path, case: str) -> None:
    text, expected = INSPECTED[case]
    asked: list[Speech] = []

    def inspect(speech: Speech) -> Iterator[tuple[str, str]]:
        asked.append(speech._replace(source=speech.source.relative_to(folder)))
        yield "tools", "too quiet"
        yield "source", "too old"

    (folder / "f.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(folder / "f.yaml", {}, kinds=KINDS, formats=FORMATS, inspect=inspect)
    told = [each.partition(": ")[2] for each in caught.value.problems]
    assert asked == expected
    assert {each for each in told if each.endswith(("too quiet", "too old"))} == {
        f"models[{at}].{said}" for at in range(len(expected)) for said in ("tools: too quiet", "source: too old")
    }


def test_an_inspection_finds_the_source_as_the_settings_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    asked: list[Speech] = []

    def inspect(speech: Speech) -> Iterator[tuple[str, str]]:
        asked.append(speech)
        return iter(())

    (folder / "f.yaml").write_text(MODEL.replace("m.gguf", "~/m.gguf"))
    found = load(folder / "f.yaml", {}, kinds=KINDS, formats=FORMATS, inspect=inspect)
    assert asked == [found.models[0].speech] == [Speech(folder / "m.gguf", "auto", "native")]


def test_no_problem_shows_a_value_that_may_be_a_secret(folder: Path) -> None:
    secret = "hunter2/!"
    keys = [f"{each.removeprefix('- ')}: '{secret}'" for each in ("- url", "kind", "model", "api_key_env", "api_key", "id")]
    text = f"models:\n- name: '{secret}'\n  format: '{secret}'\n  source: nope\n  tools: '{secret}'\n  engines:\n  - "
    told = problems(folder, text + "\n    ".join(keys) + f"\nserver: {{port: '{secret}'}}", {"INTERLOCK_LIMITS__N": secret})
    assert len(told) >= 9
    assert not [each for each in told if "hunter2" in each]


ENVIRONMENT: dict[str, tuple[dict[str, str], str, object]] = {
    "a number": ({"INTERLOCK_SERVER__PORT": "9000"}, "server.port", 9000),
    "text": ({"INTERLOCK_SERVER__HOST": "::1"}, "server.host", "::1"),
    "null": ({"INTERLOCK_SERVER__ADMIN_PORT": ""}, "server.admin_port", None),
    "a boolean": ({"INTERLOCK_MODELS__0__HOLD_ARGUMENTS": "true"}, "models.0.hold_arguments", True),
    "a list": ({"INTERLOCK_MODELS__0__ALIASES": "[a, b]"}, "models.0.aliases", ("a", "b")),
    "a list by index": (
        {"INTERLOCK_MODELS__0__ALIASES__1": "b", "INTERLOCK_MODELS__0__ALIASES__0": "a"},
        "models.0.aliases",
        ("a", "b"),
    ),
    "a whole replaced by the part after it": (
        {"INTERLOCK_LIMITS__N": "3", "INTERLOCK_MODELS__0__ENGINES": "[{url: 'http://a:1', kind: llamacpp}]"},
        "models.0.engines.0.url",
        "http://a:1",
    ),
    "a deep one": ({"INTERLOCK_MODELS__0__ENGINES__0__URL": "http://b:1"}, "models.0.engines.0.url", "http://b:1"),
    "a new item": (
        {"INTERLOCK_MODELS__0__ENGINES__1__URL": "http://b:1", "INTERLOCK_MODELS__0__ENGINES__1__KIND": "llamacpp"},
        "models.0.engines.1.id",
        "m-1",
    ),
    "not ours": ({"INTERLOCK_ENGINE_KEY": "x", "OTHER__SERVER__PORT": "1"}, "server.port", 8080),
    "what Kubernetes sets": (
        {"INTERLOCK_SERVER_PORT": "tcp://10.0.0.1:80", "INTERLOCK_PORT": "tcp://10.0.0.1"},
        "server.port",
        8080,
    ),
}


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_environment(folder: Path, case: str) -> None:
    environ, path, expected = ENVIRONMENT[case]
    found: object = read(folder, MODEL, environ)
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, tuple) else getattr(found, key)
    assert found == expected


def test_environment_alone_is_enough(folder: Path) -> None:
    environ = {"INTERLOCK_MODELS__0__NAME": "m", "INTERLOCK_MODELS__0__FORMAT": "engine"}
    environ |= {"INTERLOCK_MODELS__0__ENGINES__0__KIND": "openai", "INTERLOCK_MODELS__0__ENGINES__0__URL": "http://h:1"}
    assert read(folder, "", environ).models[0].engines[0].id == "m-0"


BROKEN_ENVIRONMENT = {
    "INTERLOCK_SERVER__PRT=1": "INTERLOCK_SERVER__PRT: server.prt: unknown key; did you mean `port`?",
    "INTERLOCK_SERVER__PORT=x": "INTERLOCK_SERVER__PORT: server.port: must be a valid integer",
    "INTERLOCK_SERVER_PORT=1": "INTERLOCK_SERVER_PORT: not read: write INTERLOCK_SERVER__PORT",
    "INTERLOCK_LIMITS__N=[": "INTERLOCK_LIMITS__N: not valid YAML: expected the node content, but found '<stream end>'",
    "INTERLOCK_LIMITS__N=!!x 1": "INTERLOCK_LIMITS__N: limits.n: YAML tags are not supported",
    "INTERLOCK_MODELS__7__NAME=x": "INTERLOCK_MODELS__7__NAME: models[7].name: the next index of the list is 1, not 7",
    "INTERLOCK_MODELS__NAME=x": "INTERLOCK_MODELS__NAME: models.name: there is no mapping that `name` could be a key of",
    "INTERLOCK_0__X=x": "INTERLOCK_0__X: [0].x: there is no list that 0 could be an index of",
    "INTERLOCK_SERVER__0=x": "INTERLOCK_SERVER__0: server[0]: there is no list that 0 could be an index of",
    "INTERLOCK_MODELS__0__ALIASES__0=m": "INTERLOCK_MODELS__0__ALIASES__0: models[0].aliases[0]: `m` is taken by models[0].name",
}


@pytest.mark.parametrize("variable", BROKEN_ENVIRONMENT)
def test_broken_environment(folder: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    assert problems(folder, MODEL + "server: {host: 127.0.0.1}", {name: value}) == [BROKEN_ENVIRONMENT[variable]]


def test_anchors_and_merges(folder: Path) -> None:
    found = read(
        folder,
        """
        models:
          - &first
            name: a
            source: m.gguf
            engines: [&engine {url: "http://h:1", kind: llamacpp, model: x}]
          - name: b
            <<: [{tools: constrained}, *first]
            engines: [{<<: *engine, url: "http://h:2"}, *engine]
        """,
    )
    assert (found.models[1].name, found.models[1].tools, found.models[1].source) == ("b", "constrained", folder / "m.gguf")
    assert [(each.id, each.url, each.model) for each in found.models[1].engines] == [
        ("b-0", "http://h:2", "x"),
        ("b-1", "http://h:1", "x"),
    ]


def test_a_problem_in_what_is_merged_is_told_where_it_stands(folder: Path) -> None:
    with_text = MODEL.replace("m.gguf", "m.gguf\n    hold_arguments: 1")
    assert problems(folder, with_text) == ["f.yaml:5:5: models[0].hold_arguments: must be `true` or `false`"]
    text = MODEL + "limits:\n  <<: {n: 0}\n  stop: 1\ntimeouts: {<<: 3}"
    assert problems(folder, text) == [
        "f.yaml:7:8: limits.n: must be greater than or equal to 1",
        "f.yaml:9:16: timeouts: only a mapping can be merged with `<<`",
    ]


def doublings(count: int) -> str:
    rows = [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, count)]
    return "a0: &a0 {x: 1}\n" + "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (doublings(60), "values, repeated aliases included"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: &a {<<: *a}", "nested too deeply"),
        ("[" * 700, "nested too deeply"),
        ("a: " + "[" * 20 + "]" * 20, "nested too deeply"),
        ("a: [" + "1," * 10_000 + "]", "over 10000 values"),
        ("#" * (MAX_FILE_BYTES + 1), f"the file is over {MAX_FILE_BYTES} bytes"),
    ],
    ids=["aliases", "recursive alias", "recursive merge", "unclosed", "deep", "long", "large"],
)
def test_bounds(folder: Path, text: str, told: str) -> None:
    (problem,) = problems(folder, text)
    assert told in problem


def test_files_that_cannot_be_read(folder: Path) -> None:
    def told(path: Path) -> str:
        with pytest.raises(SettingsError) as caught:
            load(path, {}, kinds=KINDS, formats=FORMATS, inspect=speakable)
        (problem,) = caught.value.problems
        return problem.replace(f"{folder}/", "")

    assert told(folder / "none.yaml") == "none.yaml: cannot be read: No such file or directory"
    assert told(folder / ".") == f"{folder}: cannot be read: Is a directory"
    (folder / "latin").write_bytes(b"# caf\xe9")
    assert told(folder / "latin") == "latin: not UTF-8 text: byte 5 cannot be decoded"


def test_a_byte_order_mark_is_skipped(folder: Path) -> None:
    assert read(folder, b"\xef\xbb\xbf" + MODEL.encode()).models[0].name == "m"


def test_a_relative_source_starts_at_the_settings_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert read(folder, MODEL).models[0].source == folder / "m.gguf"
    monkeypatch.setenv("HOME", str(folder))
    assert read(folder, MODEL.replace("m.gguf", "~/m.gguf")).models[0].source == folder / "m.gguf"


def test_an_engine_without_a_grammar_cannot_be_constrained(folder: Path) -> None:
    (folder / "f.yaml").write_text(model_with("tools: constrained"))
    kinds = {"llamacpp": Traits(takes_ids=True, streams_ids=False, choices=False)}
    with pytest.raises(SettingsError, match=r"engines\[0\]\.kind: llamacpp cannot enforce tool calls"):
        load(folder / "f.yaml", {}, kinds=kinds, formats=(), inspect=speakable)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(max_size=80),
        st.lists(
            st.sampled_from([*"[]{}:,-&*!|>'\"\n# ", "<<", "models", "engines", "kind", "name", "- ", "\n  "]), max_size=40
        ).map("".join),
    ),
    keys=st.lists(st.sampled_from(["SERVER", "MODELS", "0", "ENGINES", "PORT", "", "1"]), min_size=2, max_size=4),
)
def test_any_file_and_environment_load_or_raise_settings_error(folder: Path, text: str, keys: list[str]) -> None:
    told: tuple[str, ...] = ()
    found: Settings | None = None
    try:
        found = read(folder, text.encode("utf-8", "replace"), {"INTERLOCK_" + "__".join(keys): text})
    except SettingsError as error:
        told = error.problems
    assert bool(told) != bool(found)


def test_sections_name_every_model() -> None:
    def models(model: type[BaseModel]) -> set[type[BaseModel]]:
        inner = {
            kind
            for field in model.model_fields.values()
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        }
        return {model}.union(*(models(each) for each in inner))

    assert models(Settings) == set(SECTIONS.values())


def test_every_setting_is_described_and_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("settings_docs", ROOT / "scripts" / "settings_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [
        (model.__name__, name)
        for path, model in SECTIONS.items()
        for name, field in model.model_fields.items()
        if not field.description and (*path, name) not in SECTIONS
    ] == []
    assert module.main(["--check"]) == 0


@pytest.mark.parametrize("file", ["docs/interlock.example.yaml", "docs/settings.md", "README.md"])
def test_the_examples_in_the_documentation_load(tmp_path: Path, file: str) -> None:
    text = (ROOT / file).read_text()
    if file.endswith(".md"):
        text, *more = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        assert not more
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Qwen3-4B-Q4_K_M.gguf").touch()
    (tmp_path / "f.yaml").write_text(text)
    found = load(tmp_path / "f.yaml", {"LLM_EXAMPLE_KEY": "k"}, kinds=KINDS, formats=FORMATS, inspect=speakable)
    assert found.models[0].name == "qwen3-4b"


def test_the_two_engines_of_the_documentation_load(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "two-engines.md").read_text(), re.DOTALL)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "SmolLM2.gguf").touch()
    (tmp_path / "two.yaml").write_text(text)
    found = load(tmp_path / "two.yaml", {}, kinds=KINDS, formats=FORMATS, inspect=speakable)
    assert found.server.route_headers
    assert [engine.id for engine in found.models[0].engines] == ["a", "b"]


def test_tracing_is_off_until_a_collector_is_named(folder: Path) -> None:
    assert read(folder, MODEL).tracing.otlp_endpoint is None
    assert read(folder, MODEL + "tracing:\n").tracing.sample_ratio == 1.0


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:4318",
        "https://collector.example.com/v1/traces",
        "http://[::1]:4318/",
        "grpc://collector:4317",
        "grpcs://collector:4317/",
    ],
)
def test_collectors_addresses(folder: Path, endpoint: str) -> None:
    found = read(folder, MODEL + f"tracing: {{otlp_endpoint: '{endpoint}', sample_ratio: 0.25}}\n").tracing
    assert (found.otlp_endpoint, found.sample_ratio) == (endpoint, 0.25)


@pytest.mark.parametrize(
    ("endpoint", "wrong"),
    [
        ("127.0.0.1:4318", "must be a collector's address, as `http://127.0.0.1:4318` or `grpc://127.0.0.1:4317`"),
        ("udp://127.0.0.1:4318", "must be a collector's address, as `http://127.0.0.1:4318` or `grpc://127.0.0.1:4317`"),
        ("http://", "must be a collector's address, as `http://127.0.0.1:4318` or `grpc://127.0.0.1:4317`"),
        ("http://h:99999", "must be a collector's address, as `http://127.0.0.1:4318` or `grpc://127.0.0.1:4317`"),
        ("http://h:4318/a b", "must be a collector's address, as `http://127.0.0.1:4318` or `grpc://127.0.0.1:4317`"),
        ("http://me:secret@h:4318", "must hold no user or password: OTEL_EXPORTER_OTLP_HEADERS can hold a key"),
        ("http://h:4318/?key=secret", "must have no query and no fragment"),
        ("grpc://h", "must have a port and no path, as `grpc://127.0.0.1:4317`"),
        ("grpc://h:4317/v1/traces", "must have a port and no path, as `grpc://127.0.0.1:4317`"),
    ],
)
def test_what_is_no_collectors_address(folder: Path, endpoint: str, wrong: str) -> None:
    (told,) = problems(folder, MODEL + f"tracing: {{otlp_endpoint: '{endpoint}'}}\n")
    assert told.partition("tracing.otlp_endpoint: ")[2] == wrong


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", ".nan", "all"])
def test_what_is_no_share(folder: Path, ratio: str) -> None:
    (told,) = problems(folder, MODEL + f"tracing: {{sample_ratio: {ratio}}}\n")
    assert "tracing.sample_ratio" in told


@pytest.mark.parametrize("missing", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
@pytest.mark.parametrize("raises", [False, True])
def test_tracing_without_its_packages_says_how_to_get_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str, raises: bool
) -> None:
    def find(name: str) -> object:
        if name == missing and raises:
            raise ModuleNotFoundError(name)
        return None if name == missing else object()

    monkeypatch.setattr("gateway.settings_parts.find_spec", find)
    (told,) = problems(folder, MODEL + "tracing: {otlp_endpoint: 'http://127.0.0.1:4318'}\n")
    assert told.endswith('OpenTelemetry\'s packages are not installed: `pip install ".[otel]"` in a clone brings them')
