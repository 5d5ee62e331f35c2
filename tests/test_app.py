"""What is wired out of the settings, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.gateway import settings_for, tiny_model
from support.gguf_writer import gguf
from support.vocabulary import template_text, tokenizer_fields

from gateway import voice
from gateway.app import configure, with_models
from gateway.errors import ModelFileError, SettingsError
from gateway.prompt.source import read_model
from gateway.settings import Settings, load
from gateway.voice import tools_for
from gateway.wiring import is_loopback, wire_with


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("gateway.example", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("template", "model", "formats"),
    [
        ("echo", {}, ("plain",)),
        ("echo", {"tools": "constrained"}, ("plain", "hermes")),
        ("full", {}, ("hermes",)),
        ("tagged", {}, ("qwen3_coder",)),
        ("tagged", {"tools": "constrained"}, ("qwen3_coder", "hermes")),
        ("tagged", {"format": "hermes"}, ("hermes",)),
        ("dropping", {"format": "plain"}, ("plain",)),
    ],
)
def test_the_formats_of_a_model(template: str, model: dict[str, Any], formats: tuple[str, ...]) -> None:
    (wired,) = with_models(settings_for("http://127.0.0.1:9", source=str(tiny_model(template)), **model)).models
    assert wired.format_names() == formats
    assert wired.rendered is not None


def test_a_model_whose_format_is_not_told_must_name_it() -> None:
    with pytest.raises(SettingsError) as caught:
        with_models(settings_for("http://127.0.0.1:9", source=str(tiny_model("dropping"))))
    (problem,) = caught.value.problems
    assert problem.startswith("models[0].format: ")
    assert "name the format" in problem


def test_a_file_that_is_no_model_is_told_of_settings_made_in_code() -> None:
    with pytest.raises(SettingsError, match=r"^models\[0\]\.source: .*: This is not a GGUF file"):
        with_models(settings_for("http://127.0.0.1:9", source=__file__))


def test_local_tools_are_stated_where_the_template_ignores_them(tmp_path: Path) -> None:
    assert tools_for(tiny_model("full")) == "native"
    assert tools_for(tiny_model("echo")) == "constrained"
    with pytest.raises(ModelFileError, match=r"none\.gguf: No such file or directory"):
        tools_for(tmp_path / "none.gguf")


def test_keys_come_from_the_environment_and_are_known_as_secrets() -> None:
    hidden: list[str] = []
    wire = wire_with({"ENGINE_KEY": "sk-canary", "OTHER": "x"}, hidden.append)
    for keys in ({}, {"api_key_env": "ENGINE_KEY"}):
        (entry,) = settings_for("http://127.0.0.1:9", engine=keys).models[0].engines
        assert wire("m", entry).api_key == ("sk-canary" if keys else None)
    assert hidden == ["sk-canary"]


def problems(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        configure(file, {})
    return list(caught.value.problems)


def test_settings_are_checked_against_what_this_version_has(tmp_path: Path) -> None:
    told = problems(
        tmp_path / "f.yaml",
        f"models: [{{name: m, source: {tiny_model()}, format: nonsense, engines: [{{url: 'http://h:1', kind: vllm9}}]}}]",
    )
    said = [problem.partition(": ")[2] for problem in told]
    assert said[0].startswith("models[0].format: unknown format")
    assert said[1].startswith("models[0].engines[0].kind: unknown kind of engine")


def test_model_files_are_checked_together_with_all_other_settings(tmp_path: Path) -> None:
    file, text, empty = tmp_path / "f.yaml", tmp_path / "text.gguf", tmp_path / "empty"
    text.write_text("hello")
    empty.mkdir()
    told = problems(
        file,
        f"""\
server: {{port: 999999}}
models:
  - name: "a b"
    source: text.gguf
    engines: [{{url: "http://h:1/v1", kind: llamacpp}}]
  - name: m
    aliases: [m]
    bogus: 1
    source: {tiny_model("dropping")}
    engines: []
  - name: n
    source: empty
    format: qwen9
    engines: [{{url: "http://h:1", kind: llamacpp}}]
  - name: o
    source: empty
    tools: constrained
    engines: [{{url: "http://h:1", kind: openai}}]
""",
    )
    said = [problem.removeprefix(f"{file}:") for problem in told]
    starts = [
        "1:10: server.port: must be less than or equal to 65535",
        "3:5: models[0].name: must be 1 to 128 letters",
        f"4:5: models[0].source: {text}: This is not a GGUF file",
        "5:16: models[0].engines[0].url: leave out `/v1`",
        "6:5: models[1].format: no formats of this version read what the template writes",
        "7:15: models[1].aliases[0]: `m` is taken by models[1].name",
        "8:5: models[1].bogus: unknown key",
        "10:5: models[1].engines: must have at least one item",
        "13:5: models[2].format: unknown format",
        f"16:5: models[3].source: {empty}: The model has no chat template",
        "18:35: models[3].engines[0].kind: openai templates and parses by itself",
    ]
    assert [each[: len(start)] for each, start in zip(said, starts, strict=True)] == starts


def test_a_template_that_refuses_the_conversation_that_formats_are_told_by(tmp_path: Path) -> None:
    refusing = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no results') }}{% endfor %}"
    template = refusing + template_text("full")
    (tmp_path / "m.gguf").write_bytes(gguf({"general.architecture": "tiny", **tokenizer_fields(template=template)}))
    text = "models: [{name: m, source: m.gguf, engines: [{url: 'http://h:1', kind: llamacpp}]}]"
    (problem,) = problems(tmp_path / "f.yaml", text)
    assert re.fullmatch(r".*:1:10: models\[0\]\.format: The model's chat template .*: name it", problem)
    (tmp_path / "f.yaml").write_text(text.replace("source", "format: hermes, source"))
    assert configure(tmp_path / "f.yaml", {}).models[0].format_names() == ("hermes",)


def test_a_model_s_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path) -> Any:
        read.append(path)
        return read_model(path)

    monkeypatch.setattr(voice, "read_model", counted)
    source = tiny_model("full")
    engine = "engines: [{url: 'http://h:1', kind: llamacpp}]"
    (tmp_path / "f.yaml").write_text(
        f"""\
models:
  - {{name: a, source: {source}, hold_arguments: true, on_parse_failure: error, aliases: [x], {engine}}}
  - {{name: b, source: {source}, {engine}}}
  - {{name: c, source: {source}, format: engine, engines: [{{url: "http://h:1", kind: openai}}]}}
"""
    )
    configured = configure(tmp_path / "f.yaml", {})
    first, second, third = configured.models
    assert read == [source]
    assert [each.name for each in configured.models] == [each.name for each in configured.settings.models] == ["a", "b", "c"]
    assert first.rendered is not None
    assert second.rendered is not None
    assert (first.rendered.hold_arguments, second.rendered.hold_arguments) == (True, False)
    assert (first.rules.on_parse_failure, second.rules.on_parse_failure) == ("error", "content")
    assert (first.aliases, second.aliases) == (("x",), ())
    assert third.rendered is None


def test_a_settings_file_that_changes_while_the_models_are_read_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "interlock.yaml"
    text = f"models: [{{name: m, source: {tiny_model()}, engines: [{{url: 'http://127.0.0.1:9', kind: llamacpp}}]}}]\n"
    file.write_text(text)

    def slow(*arguments: Any, **options: Any) -> Settings:
        loaded = load(*arguments, **options)
        file.write_text(text + "timeouts: {connect_s: 2}\n")
        return loaded

    monkeypatch.setattr("gateway.app.load", slow)
    found = configure(file, {}).file
    assert found is not None
    assert [found.watched.look() for _ in range(3)] == [False, True, False]
    assert found.read().timeouts.connect_s == 2
