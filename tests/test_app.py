"""What is wired out of the settings, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from support.gateway import settings_for, tiny_model

from gateway.app import is_loopback, load_settings, secrets, served_models, tools_for
from gateway.errors import ModelFileError, SettingsError


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
    (wired,) = served_models(settings_for("http://127.0.0.1:9", source=str(tiny_model(template)), **model))
    assert wired.format_names() == formats
    assert wired.rendered is not None


def test_a_model_whose_format_is_not_told_must_name_it() -> None:
    with pytest.raises(SettingsError) as caught:
        served_models(settings_for("http://127.0.0.1:9", source=str(tiny_model("dropping"))))
    (problem,) = caught.value.problems
    assert problem.startswith("models[0].format: ")
    assert "name the format" in problem


def test_local_tools_are_stated_where_the_template_ignores_them(tmp_path: Path) -> None:
    assert tools_for(tiny_model("full")) == "native"
    assert tools_for(tiny_model("echo")) == "constrained"
    with pytest.raises(ModelFileError, match=r"none\.gguf: No such file or directory"):
        tools_for(tmp_path / "none.gguf")


def test_keys_come_from_the_environment_and_are_known_as_secrets() -> None:
    environ = {"ENGINE_KEY": "sk-canary", "OTHER": "x"}
    settings = settings_for("http://127.0.0.1:9", engine={"api_key_env": "ENGINE_KEY"})
    assert secrets(settings, environ) == ["sk-canary"]
    assert secrets(settings_for("http://127.0.0.1:9"), environ) == []


def test_settings_are_checked_against_what_this_version_has(tmp_path: Path) -> None:
    file = tmp_path / "interlock.yaml"
    file.write_text(
        f"models: [{{name: m, source: {tiny_model()}, format: nonsense, engines: [{{url: 'http://h:1', kind: vllm9}}]}}]"
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {})
    said = [problem.partition(": ")[2] for problem in caught.value.problems]
    assert said[0].startswith("models[0].format: unknown format")
    assert said[1].startswith("models[0].engines[0].kind: unknown kind of engine")
