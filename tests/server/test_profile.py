"""A model with a profile: what it says is followed, it must be of these files, and a failed check closes the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.gateway import HELLO, outcome, sample, scripted, settings_for, tiny_model
from support.profiles import PASSED, checked, profile_of, written
from support.scripted_engine import completion

from gateway.app import with_models
from gateway.errors import SettingsError
from gateway.prompt.profile import CheckName, StopToken

FULL = tiny_model("full")


async def served(tmp_path: Path, profile: Any, **changed: Any) -> tuple[Any, Any, Any, int]:
    """The answer to a chat, `/ready` with the models listed, the metrics, and how many calls the engine got."""
    file = written(profile, tmp_path)
    async with scripted(source=str(FULL), profile=file, **changed) as (engine, gateway):
        answer = await gateway.chat()
        ready = await gateway.client.get("/ready")
        listed = [each["id"] for each in (await gateway.client.get("/v1/models")).json()["data"]]
        assert (await gateway.client.get("/v1/models/m")).status_code == (200 if listed else 404)
        metrics = await gateway.metrics()
    return answer, {**ready.json(), "code": ready.status_code, "listed": listed}, metrics, len(engine.calls)


async def test_a_model_that_passed_is_served_by_its_profile(tmp_path: Path) -> None:
    profile = replace(profile_of(FULL), stop=(StopToken(1, "<|im_start|>"),))
    answer, ready, metrics, _ = await served(tmp_path, checked(profile))
    assert answer.status_code == 200
    assert (ready["status"], ready["not_served"]) == ("ready", {})
    for test in PASSED:
        assert metrics[sample("interlock_model_check", model="m", test=test)] == 1


async def test_the_stop_tokens_are_those_of_the_profile(tmp_path: Path) -> None:
    profile = replace(profile_of(FULL), stop=(StopToken(1, "<|im_start|>"),))
    async with scripted(source=str(FULL), profile=written(profile, tmp_path)) as (engine, gateway):
        engine.script = lambda seen: completion("Hi")
        rendered = (await gateway.client.post("/v1/chat/completions/render", json=HELLO)).json()
    assert rendered["stop_ids"] == [1]


async def test_a_model_that_failed_answers_no_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = checked(profile_of(FULL), {**PASSED, "stop": False, "tool_call": False})
    answer, ready, metrics, calls = await served(tmp_path, profile)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_not_served"
    assert "its check failed: stop, tool_call" in answer.json()["error"]["message"]
    assert calls == 0
    assert (ready["code"], ready["status"], ready["listed"]) == (503, "not ready", [])
    assert ready["not_served"] == {"m": "its check failed: stop, tool_call (`interlock check` says why)"}
    assert metrics[sample("interlock_model_check", model="m", test="stop")] == 0
    assert metrics[sample("interlock_model_check", model="m", test="template")] == 1
    assert metrics[outcome("rejected", engine="none")] == 1
    assert "its check failed: stop, tool_call" in capfd.readouterr().out


async def test_one_that_was_not_checked_is_served_with_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answer, ready, metrics, _ = await served(tmp_path, profile_of(FULL))
    assert (answer.status_code, ready["status"]) == (200, "ready")
    assert not any("interlock_model_check" in name for name in metrics)
    assert "served unchecked" in capfd.readouterr().out


@pytest.mark.parametrize("tests", [{}, {"template": True, "reasoning": True}])
async def test_a_check_of_some_tests_is_none(tmp_path: Path, tests: dict[CheckName, bool]) -> None:
    answer, _, metrics, _ = await served(tmp_path, checked(profile_of(FULL), tests), require_checks=True)
    assert answer.status_code == 503
    assert not any("interlock_model_check" in name for name in metrics)


@pytest.mark.parametrize("since", [False, True])
async def test_where_checks_are_required_one_without_is_not_served(tmp_path: Path, since: bool) -> None:
    """A check of the profile before it was changed is none."""
    profile = profile_of(FULL)
    if since:
        profile = replace(checked(profile), stop=(StopToken(1, "<|im_start|>"),))
    answer, ready, _, calls = await served(tmp_path, profile, require_checks=True)
    assert (answer.status_code, calls) == (503, 0)
    assert "has not been checked" in ready["not_served"]["m"]


async def test_where_checks_are_required_one_without_a_profile_is_not_served() -> None:
    async with scripted(require_checks=True) as (engine, gateway):
        answer = await gateway.chat()
    assert (answer.status_code, engine.calls) == (503, [])


async def test_the_engines_own_models_need_no_check() -> None:
    async with scripted(kind="openai", require_checks=True) as (engine, gateway):
        engine.script = lambda seen: [*completion("Hi")]
        ready = (await gateway.client.get("/ready")).json()
    assert ready["not_served"] == {}


def refused(tmp_path: Path, profile: Any, source: Path = FULL, **changed: Any) -> str:
    settings = settings_for("http://h:1", source=str(source), profile=written(profile, tmp_path), **changed)
    with pytest.raises(SettingsError) as caught:
        with_models(settings)
    (problem,) = caught.value.problems
    return problem


def test_a_profile_of_other_files_is_refused(tmp_path: Path) -> None:
    problem = refused(tmp_path, profile_of(tiny_model("echo")))
    assert problem.startswith(
        "models[0].profile: the model's files are not those that profile.yaml was made of: metadata has changed"
    )
    assert "`interlock onboard`" in problem


def test_a_profile_without_a_format_is_refused_until_one_is_named(tmp_path: Path) -> None:
    assert "the profile names no format (two formats read it)" in refused(tmp_path, profile_of(FULL, None))
    with_models(settings_for("http://h:1", source=str(FULL), profile=written(profile_of(FULL, None), tmp_path), format="hermes"))


def test_a_profile_that_says_otherwise_than_the_settings_is_refused(tmp_path: Path) -> None:
    assert "the profile says format hermes, the settings qwen35" in refused(tmp_path, profile_of(FULL), format="qwen35")


def test_a_profile_with_a_format_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "the profile's format 'banana' is none that this version knows" in refused(tmp_path, profile_of(FULL, "banana"))


def test_a_file_that_is_no_profile_is_refused_with_its_fault(tmp_path: Path) -> None:
    file = Path(written(profile_of(FULL), tmp_path))
    file.write_text(file.read_text().replace("tools: 'yes'", "tools: maybe"))
    settings = settings_for("http://h:1", source=str(FULL), profile=str(file))
    with pytest.raises(SettingsError, match=r"models\[0\]\.profile: .*templates\.default\.tools: invalid enum value 'maybe'"):
        with_models(settings)
