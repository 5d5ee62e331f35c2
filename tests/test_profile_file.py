"""A profile on disk: what is written is read back, what a person changes is followed, and a slip is named."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.errors import ModelFileError
from gateway.profile_file import profile_text, read_profile, write_checked, write_profile
from gateway.prompt.probe import Capabilities
from gateway.prompt.profile import Checked, FormatChoice, Found, Loop, Profile, StopToken, Thoughts, Verdict
from gateway.prompt.thought_end import ThoughtEnd

CAN = Capabilities(
    *("yes", "yes", "no", "drops", "yes", "yes", "yes", "raises", "yes", "object", "text", "empty", "reasoning_content"),
    opening="<|im_start|>assistant\n",
    hides_thoughts=frozenset({None, False}),
    cuts_at=frozenset({"</think>", "[/THINK]"}),
    refusals={"parallel_calls": "One call only: yes or no?"},
)
FOUND = Found(
    generation_prompt="<|im_start|>assistant\n<think>\n",
    turn_end="<|im_end|>",
    thoughts=Thoughts("reasoning_content", "\n<think>\n\nt\n</think>\n", {"none": "open", "false": "closed"}, True, False),
    call="<tool_call>\n{}\n</tool_call>",
    calls="a\nb\n  c \n\n",
    result=" r",
    loops={"plain": Loop(True), "tools": Loop(False, 12, "<think>")},
    dated=False,
    bos="None.",
    cannot=("The template drops developer messages: they are given as system messages.",),
)
PROFILE = Profile(
    model="m",
    files={"tokenizer.json": "1e5", "config.json": "08", "chat_template.jinja": "0x1F", "a": "12e34"},
    format=FormatChoice("hermes", "told", "it reads back the call"),
    stop=(StopToken(2, "<|im_end|>"), StopToken(7, "yes"), StopToken(8, "null")),
    thought_end=ThoughtEnd("\n</think>\n\n", "\n</think>\n\n"),
    templates={"default": CAN},
    found={"default": FOUND},
)
CHECKED = Checked(
    of="1e5",
    at="2026-03-14T15:09:00Z",
    interlock="0.1.0",
    reference="transformers 5.24.0",
    engine=None,
    tests={"template": Verdict(False, 30, ("developer",), ("ids",)), "stop": Verdict(True, 3)},
)


TEXT = st.text(max_size=12) | st.text("\n \t:#'\"|>-\\{e1.", max_size=10)
SUPPORTS = st.sampled_from(["yes", "no", "drops", "raises"])
PROFILES = st.builds(
    replace,
    st.just(PROFILE),
    model=TEXT,
    files=st.dictionaries(TEXT, TEXT, max_size=2),
    stop=st.lists(st.builds(StopToken, st.integers(0, 1 << 20), TEXT), max_size=2).map(tuple),
    thought_end=st.none() | st.builds(ThoughtEnd, TEXT, TEXT),
    templates=st.dictionaries(
        TEXT,
        st.builds(
            replace,
            st.just(CAN),
            system=SUPPORTS,
            reasoning=st.none() | TEXT,
            hides_thoughts=st.frozensets(st.sampled_from([None, True, False])),
            cuts_at=st.frozensets(TEXT, max_size=2),
            refusals=st.dictionaries(TEXT, TEXT, max_size=2),
        ),
        max_size=2,
    ),
    found=st.dictionaries(TEXT, st.builds(replace, st.just(FOUND), call=TEXT, turn_end=st.none() | TEXT), max_size=2),
    conflicts=st.lists(TEXT, max_size=2).map(tuple),
    checked=st.none() | st.builds(replace, st.just(CHECKED), at=TEXT, reference=st.none() | TEXT),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profile.yaml"


def edited(file: Path, old: str, new: str) -> Path:
    """The profile of this module as a person has changed it."""
    text = profile_text(PROFILE)
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new), encoding="utf-8")
    return file


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profile=PROFILES)
@example(profile=PROFILE)
@example(
    profile=replace(PROFILE, checked=CHECKED, conflicts=("One.", "\x85\u2028two: # no\ttab\x00", "<<", "=", "~", "-", "1e5"))
)
def test_what_is_written_is_read_back(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    write_profile(file, profile)
    assert read_profile(file) == profile
    text = file.read_text(encoding="utf-8")
    write_profile(file, read_profile(file))
    assert file.read_text(encoding="utf-8") == text, "in the same order"


def test_other_readers_of_yaml_read_the_same(file: Path) -> None:
    write_profile(file, PROFILE)
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert values["templates"]["default"]["system"] == "yes"
    assert values["files"] == PROFILE.files
    assert values["found"]["default"]["calls"] == FOUND.calls


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("    system: 'yes'\n", "    system: no\n", {"system": "no"}),
        ("    developer: 'no'\n", "    developer: yes\n", {"developer": "yes"}),
        ("    later_developer: drops\n", "    later_developer: raises  # since the update\n", {"later_developer": "raises"}),
        ("    reasoning: reasoning_content\n", "    reasoning:\n", {"reasoning": None}),
    ],
)
def test_what_a_person_writes_is_read_as_it_stands(file: Path, old: str, new: str, change: dict[str, Any]) -> None:
    profile = read_profile(edited(file, old, new))
    assert profile == replace(PROFILE, templates={"default": replace(CAN, **change)})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    system: 'yes'\n", "    system: maybe\n", "templates.default.system: invalid enum value 'maybe'"),
        ("    system: 'yes'\n", "    system: true\n", "templates.default.system: expected `str`, got `bool`"),
        ("    system: 'yes'\n", "", "templates.default: object missing required field `system`"),
        ("    system: 'yes'\n", "    system: 'yes'\n    sytem: no\n", "templates.default.sytem: not a field of a profile"),
        ("- id: 7\n  text: 'yes'\n", "- id: 7\n  text: 'yes'\n  txt: a\n", "stop.1.txt: not a field of a profile"),
        ("- id: 7\n", "- id: seven\n", "stop[1].id: expected `int`, got `str`"),
        ("        lost_tokens: 12\n", "        lost_tokens: many\n", "found.default.loops[...].lost_tokens: expected `int`"),
        ("conflicts: []\n", "conflict: []\n", "conflict: not a field of a profile"),
        (
            "interlock_profile: 1\n",
            "interlock_profile: 2\n",
            "interlock_profile is 2; this version reads 1: derive the profile again",
        ),
        ("interlock_profile: 1\n", "", "interlock_profile is None; this version reads 1"),
        ("format:\n", "format: hermes\nfurther:\n", "format: expected `object`, got `str`"),
        ("model: m\n", "model: m\nmodel: n\n", "model: written twice"),
        ("  default:\n    system", "  default: [\n    system", "not valid YAML"),
    ],
)
def test_a_slip_is_named_with_its_file_and_field(file: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_profile(edited(file, old, new))
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("templates", ["[]", "text", "{default: text}"])
def test_what_is_no_mapping_is_named(file: Path, templates: str) -> None:
    file.write_text(f"interlock_profile: 1\ntemplates: {templates}\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"(templates|templates\.default|the profile): .*(got|missing)"):
        read_profile(file)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        read_profile(file)
    with pytest.raises(ModelFileError, match="No such file"):
        write_checked(file, CHECKED)
    with pytest.raises(ModelFileError, match="cannot be written: No such file"):
        write_profile(file / "in" / "none", PROFILE)


def test_a_check_leaves_what_a_person_wrote(file: Path) -> None:
    changed = edited(file, "    system: 'yes'\n", "    # seen on Monday\n    system: no\n").read_text() + "# The end.\n"
    file.write_text(changed.rstrip("\n"), encoding="utf-8")
    for checked in (CHECKED, replace(CHECKED, at="later", tests={})):
        write_checked(file, checked)
        text = file.read_text(encoding="utf-8")
        assert "    # seen on Monday\n    system: no\n" in text
        assert text.count("# The end.\n") == 1
        assert text.count("checked:") == 1
        profile = read_profile(file)
        assert (profile.checked, profile.templates["default"].system) == (checked, "no")


def test_a_check_leaves_the_comment_of_the_key_after_it(file: Path) -> None:
    write_profile(file, replace(PROFILE, checked=CHECKED))
    text = file.read_text(encoding="utf-8")
    at = text.index("checked:")
    before = text[:at].replace("conflicts: []\n", "")
    file.write_text(f"{before}{text[at:]}# None were found.\nconflicts: []\n", encoding="utf-8")
    write_checked(file, replace(CHECKED, at="later"))
    assert "# None were found.\nconflicts: []\nchecked:\n" in file.read_text(encoding="utf-8")
    assert read_profile(file) == replace(PROFILE, checked=replace(CHECKED, at="later"))


@pytest.mark.parametrize("key", ['"checked":', "'checked' :", "checked :"])
def test_a_check_takes_the_place_of_the_last_however_its_key_is_written(file: Path, key: str) -> None:
    edited(file, "checked: null", f"{key} null")
    write_checked(file, replace(CHECKED, at="later"))
    assert read_profile(file) == replace(PROFILE, checked=replace(CHECKED, at="later"))


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def _as_json(text: str) -> str:
    return json.dumps(yaml.safe_load(text))


def _ended(text: str) -> str:
    return f"{text}...\n"


def _closed_below(text: str) -> str:
    last = "{of: a, at: b, interlock: c, reference: null, engine: null, tests: {}\n}"
    return text.replace("checked: null", f"checked: {last}")


@pytest.mark.parametrize("laid_out", [_indented, _as_json, _ended, _closed_below])
def test_a_profile_that_a_check_cannot_be_put_into_stays_as_it_is(file: Path, laid_out: Callable[[str], str]) -> None:
    text = laid_out(profile_text(PROFILE))
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"profile.yaml: the result cannot be put into it as it is laid out"):
        write_checked(file, CHECKED)
    assert file.read_text(encoding="utf-8") == text
    assert os.listdir(file.parent) == ["profile.yaml"]


def test_a_file_is_written_whole_or_not_at_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(file, PROFILE)

    def full(self: Path, data: str, encoding: str) -> int:
        self.write_bytes(data.encode(encoding)[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(ModelFileError, match="cannot be written: No space left"):
            write_profile(file, replace(PROFILE, model="other"))
    assert read_profile(file) == PROFILE
    assert os.listdir(file.parent) == ["profile.yaml"]
