"""From a model's files and its profile to a report: what is checked is what would be served."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.gateway import tiny_model
from support.llamacpp import smollm2_file
from support.profiles import profile_of
from support.real_templates import real_template
from support.real_vocabularies import deepseek_vocabulary, model_directory, qwen_vocabulary
from support.subjects import formats

from gateway.checks.base import CHECKS, Case, Report
from gateway.checks.run import Checking, Subjects, check, keep_results
from gateway.errors import ModelFileError
from gateway.onboarding import onboard
from gateway.profile_file import read_profile, write_profile
from gateway.prompt.detect import FormatUnknown
from gateway.prompt.profile import FormatChoice, StopToken, digest
from gateway.settings_fit import Speech
from gateway.voice import ProfileError

NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


@pytest.fixture
def subjects() -> Subjects:
    return Subjects(formats(), NOW)


def checked(checking: Checking) -> Report:
    return check(checking.subject, at=NOW, interlock="0.1.0")


def failures(report: Report) -> list[str]:
    return [f"{case.test}: {case.name}: {case.diagnosis}" for case in report.cases if case.status == "failed"]


def test_smollm2_passes_all_four(subjects: Subjects) -> None:
    report = checked(subjects.alone(smollm2_file(), None))
    assert failures(report) == []
    assert report.passed
    assert (report.at, report.interlock, report.engine) == ("2026-03-14T15:09:26+00:00", "0.1.0", None)
    assert report.reference is not None
    assert report.reference.startswith("transformers ")
    assert [*report.checked().tests] == [*CHECKS]
    assert {case.test for case in report.cases} == {*CHECKS}
    names = {case.name for case in report.cases if case.test == "tool_call"}
    assert {"single call", "parallel calls"} <= names  # the gateway states the tools, as `interlock up` does


QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}


@pytest.mark.no_cover  # as `needs_real` says
@pytest.mark.parametrize(
    ("vocabulary", "specials", "template"),
    [
        (lambda: qwen_vocabulary("qwen3"), QWEN, "Qwen3-Coder"),
        (lambda: qwen_vocabulary("qwen35"), QWEN, "Qwen3.5-4B"),
        (deepseek_vocabulary, DEEPSEEK, "deepseek-ai-DeepSeek-V4"),
    ],
    ids=["qwen3-coder", "qwen3.5", "deepseek-v4"],
)
def test_real_vocabularies_pass_with_their_templates(
    subjects: Subjects, tmp_path: Path, vocabulary: Callable[[], Path], specials: dict[str, str], template: str
) -> None:
    model = model_directory(tmp_path, vocabulary(), specials, real_template(template))
    report = checked(subjects.alone(model, None))
    assert failures(report) == []
    assert report.passed


def test_a_model_without_settings_is_checked_as_up_would_serve_it(subjects: Subjects) -> None:
    stated = subjects.alone(tiny_model("echo"), None)
    assert (stated.subject.name, stated.subject.format.name, stated.subject.call_format.name) == ("echo", "plain", "hermes")
    own = subjects.alone(tiny_model("full"), None)
    assert (own.subject.format.name, own.subject.call_format.name, own.kept) == ("hermes", "hermes", None)


def test_a_profile_is_followed_and_its_file_is_kept(subjects: Subjects, tmp_path: Path) -> None:
    model, file = tiny_model("full"), tmp_path / "p.yaml"
    profile = replace(profile_of(model), stop=(StopToken(0, "<|endoftext|>"),))
    write_profile(file, profile)
    checking = subjects.alone(model, file)
    assert checking.kept == file
    assert checking.subject.prompter.stop_ids == {0}
    report = checked(checking)
    assert report.of == digest(profile)
    assert any(line.startswith("stop: turn end: The template ends the model's turn with <|im_end|>") for line in failures(report))


def test_files_that_have_changed_are_for_the_check_to_tell(subjects: Subjects, tmp_path: Path) -> None:
    model, file = tiny_model("full"), tmp_path / "p.yaml"
    write_profile(file, replace(profile_of(model), files={"metadata": "0" * 64}))
    report = checked(subjects.alone(model, file))
    assert [case.test for case in report.cases if case.status == "failed"] == ["template"]
    assert "metadata has changed" in failures(report)[0]


def test_what_hinders_a_check_is_told_under_the_settings_key(subjects: Subjects, tmp_path: Path) -> None:
    model, file = tiny_model("full"), tmp_path / "p.yaml"
    file.write_text("interlock_profile: 99\n")
    gone = Speech(tmp_path / "none.gguf", "auto", "native")
    assert [key for key, _ in subjects.inspect(gone)] == ["source"]
    assert [key for key, _ in subjects.inspect(Speech(model, "auto", "native", profile=file))] == ["profile"]
    write_profile(file, replace(profile_of(model), format=FormatChoice("hermes", "told")))
    assert [key for key, _ in subjects.inspect(Speech(model, "qwen3_coder", "native", profile=file))] == ["profile"]
    unsure = tiny_model("dropping")
    assert [key for key, _ in subjects.inspect(Speech(unsure, "auto", "native"))] == ["format"]
    with pytest.raises(FormatUnknown):
        subjects.alone(unsure, None)
    with pytest.raises(ProfileError):
        subjects.alone(model, tmp_path / "none.yaml")
    with pytest.raises(ModelFileError):
        subjects.alone(tmp_path / "none.gguf", None)


def test_a_model_of_the_settings_has_its_name_there(subjects: Subjects) -> None:
    speech = Speech(tiny_model("full"), "hermes", "constrained")
    assert [*subjects.inspect(speech)] == []
    assert [*subjects.inspect(speech)] == []  # read once
    one, other = (subjects.inspected(name, speech).subject for name in ("one", "other"))
    assert (one.name, other.name) == ("one", "other")
    assert one.prompter is other.prompter
    assert one.profile.format == FormatChoice("hermes", "declared", "named by a person")


def test_results_go_into_their_profiles_and_a_failed_one_stays(subjects: Subjects, tmp_path: Path) -> None:
    model, file = tiny_model("full"), tmp_path / "p.yaml"
    write_profile(file, onboard(model, formats()))
    checking = subjects.alone(model, file)
    good = Report("a", "d", "2026", "0.1.0", None, None, tuple(Case(name, "x", "passed") for name in CHECKS))
    bad = replace(good, model="b", cases=(*good.cases, Case("stop", "y", "failed", "why.", "how.")))
    said = [*keep_results([checking, checking, replace(checking, kept=None)], [bad, good, replace(good, model="c")])]
    assert said == [
        f"a: the result is kept in {file}",
        "c: the result is kept nowhere, without a profile (`interlock onboard` makes one)",
        f"b: the result is kept in {file}",
    ]
    kept = read_profile(file).checked
    assert kept is not None
    assert kept.failed == ("stop",)
