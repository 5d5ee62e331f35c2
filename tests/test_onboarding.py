"""What `interlock onboard` tells, keeps and replaces."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.real_templates import needs_real, real_template
from support.real_vocabularies import model_directory, qwen_vocabulary
from support.vocabulary import model_files, template_text

from gateway.errors import ModelFileError
from gateway.formats.registry import load
from gateway.onboarding import ProfileThere, keep, model_name, onboard, summary
from gateway.profile_file import read_profile, write_checked
from gateway.prompt.derive import derive
from gateway.prompt.model_files import DEFAULT, TOOL_USE
from gateway.prompt.profile import Checked, Profile, Verdict, digest

FORMATS = load()


@pytest.fixture(scope="module")
def profile() -> Profile:
    return replace(derive("m", model_files("full"), FORMATS), files={"metadata": "12"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profile.yaml"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/Qwen3-4B-Q4_K_M.gguf", "Qwen3-4B-Q4_K_M"),
        ("models/Qwen3-0.6B", "Qwen3-0.6B"),
        ("models/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("models/Qwen3-0.6B/.", "Qwen3-0.6B"),
        ("models/Qwen3-0.6B/sub/..", "Qwen3-0.6B"),
        ("hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d81485cdf75e47ca", "Qwen3-0.6B"),
    ],
)
def test_a_model_is_called_by_its_files(path: str, name: str) -> None:
    assert model_name(Path("/data") / path) == name


def test_the_name_of_the_folder_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_name(Path()) == tmp_path.name


def test_a_model_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="none: No such file"):
        onboard(tmp_path / "none", FORMATS)


def test_a_profile_is_written_once(file: Path, profile: Profile) -> None:
    assert keep(file, profile)
    assert read_profile(file) == profile
    assert not keep(file, profile)


def test_a_checked_profile_that_says_the_same_is_left(file: Path, profile: Profile) -> None:
    keep(file, profile)
    checked = Checked(digest(profile), "2026-03-14", "0.1.0", None, None, {"stop": Verdict(True, 3)})
    write_checked(file, checked)
    assert not keep(file, profile)
    assert read_profile(file).checked == checked


def test_what_a_person_changed_is_lost_by_force_alone(file: Path, profile: Profile) -> None:
    keep(file, replace(profile, stop=(), model="mine"))
    with pytest.raises(ProfileThere, match=r"profile.yaml says something else of model, stop: `--force` replaces it, with"):
        keep(file, profile)
    assert read_profile(file).model == "mine"
    assert keep(file, profile, replace=True)
    assert read_profile(file) == profile


def test_files_that_have_changed_are_named(file: Path, profile: Profile) -> None:
    keep(file, replace(profile, files={"metadata": "11", "config.json": "1"}))
    with pytest.raises(ProfileThere, match=r"else of files \(metadata has changed; config.json is gone\): "):
        keep(file, profile)


def test_what_is_no_profile_is_not_overwritten(file: Path, profile: Profile) -> None:
    file.write_text("models: []\n")
    with pytest.raises(ProfileThere, match=r"profile.yaml: interlock_profile is None.*`--force` writes a new profile"):
        keep(file, profile)
    assert file.read_text() == "models: []\n"
    assert keep(file, profile, replace=True)


def test_the_summary_says_what_matters() -> None:
    files = replace(model_files("dropping"), conflicts=("Two templates.",))
    lines = list(summary(derive("m", files, FORMATS)))
    assert lines[:11] == [
        "m: format unknown (unsure: no formats of this version read what the template writes, a tool call: name the format, or "
        "`plain` to read no calls)",
        "  stops at      <|endoftext|> (0), <|im_end|> (2)",
        r'  prompt ends   "<|im_start|>assistant\n<think>\n"',
        "  turn ends     <|im_end|>",
        "  thoughts      of earlier turns are not read; how the prompt leaves the thought, by the thinking switch: not given "
        "open, on open, off open",
        r'  a call        "probe_function(probe_key=first_value;)<|im_end|>\n"',
        r'  in a chat     a turn loses 2 tokens of the cache, from "<think>\n" on',
        r'  with tools    a turn loses 2 tokens of the cache, from "<think>\n" on',
        r'  tools, user   a turn loses 2 tokens of the cache, from "<think>\n" on',
        "  the date      is not in the prompt",
        "  BOS           None: the template writes none, and the files want none.",
    ]
    assert lines[11] == "  What it cannot do:"
    assert "    - The template drops developer messages: they are given as system messages." in lines
    assert lines[-2:] == ["  Its files are at odds:", "    - Two templates."]


def test_the_summary_of_a_model_with_two_templates_has_both() -> None:
    files = replace(model_files("echo"), templates={DEFAULT: template_text("echo"), TOOL_USE: template_text("full")})
    lines = list(summary(derive("m", files, FORMATS)))
    assert lines[0] == "m: format hermes (told: it reads back the tool call that the template writes)"
    assert [line for line in lines if line.startswith("  With the template")] == [
        "  With the template default:",
        "  With the template tool_use:",
    ]
    assert "  in a chat     each request goes on from the one before" in lines
    assert "  thoughts      none" in lines
    assert lines.count("  a call        is not shown") == 1


@needs_real
def test_the_guide_shows_what_is_printed(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[1] / "docs" / "onboarding.md").read_text(encoding="utf-8")
    model = tmp_path / "Qwen3-0.6B"
    model.mkdir()
    model_directory(model, qwen_vocabulary("qwen3"), {"eos_token": "<|im_end|>"}, real_template("Qwen-Qwen3-0.6B"))
    (model / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    told = "\n".join(summary(onboard(model, FORMATS)))
    assert f"```\n{told}\n```" in guide
