"""A profile's values: which differ, which are refused, and which checks still hold."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import ModelFileError
from gateway.prompt.probe import Capabilities
from gateway.prompt.profile import (
    Checked,
    FormatChoice,
    Profile,
    StopToken,
    Verdict,
    checked_values,
    differing,
    digest,
    profile_of,
    profile_values,
)

CAN = Capabilities(
    *("yes", "yes", "no", "drops", "yes", "yes", "yes", "raises", "yes", "object", "text", "empty", None),
    opening="",
    hides_thoughts=frozenset({None, False, True}),
    tool_keys=frozenset({"properties", "description"}),
)
PROFILE = Profile(
    model="m",
    files={"b": "1", "a": "2"},
    format=FormatChoice(None, "unsure", "no tool calls"),
    stop=(StopToken(2, "<|im_end|>"),),
    thought_end=None,
    templates={"tool_use": CAN, "default": CAN},
    found={},
)


def test_its_values_stand_in_one_order_and_are_plain() -> None:
    values = profile_values(PROFILE)
    assert list(values)[:3] == ["interlock_profile", "model", "files"]
    assert list(values["files"]) == ["a", "b"]
    assert list(values["templates"]) == ["default", "tool_use"]
    assert values["templates"]["default"]["hides_thoughts"] == [False, None, True]
    assert values["templates"]["default"]["tool_keys"] == ["description", "properties"]
    assert values["stop"] == [{"id": 2, "text": "<|im_end|>"}]
    assert profile_of(values) == PROFILE


def test_a_check_is_of_the_profile_without_it() -> None:
    checked = Checked(
        digest(PROFILE), "2026-03-14", "0.1.0", None, None, {"stop": Verdict(True, 3), "template": Verdict(False, 1)}
    )
    assert digest(replace(PROFILE, checked=checked)) == checked.of
    assert digest(replace(PROFILE, stop=())) != checked.of
    assert digest(replace(PROFILE, files={"a": "2", "b": "1"})) == checked.of, "the order of keys says nothing"
    assert checked.failed == ("template",)
    assert checked_values(checked)["tests"]["stop"] == {"passed": True, "cases": 3, "failed": [], "skipped": []}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"interlock_profile": "1"}, "interlock_profile is '1'; this version reads 1"),
        ({"interlock_profile": True}, "interlock_profile: expected `int`, got `bool`"),
        ({"model": None}, "model: expected `str`, got `null`"),
        ({"files": {"a": 1}}, "files[...]: expected `str`, got `int`"),
        ({"format": {"name": "hermes", "certainty": "sure"}}, "format.certainty: invalid enum value 'sure'"),
        ({"format": {"name": "hermes", "certainty": "told", "because": ""}}, "format.because: not a field"),
        ({"stop": [{"id": 1}]}, "stop[0]: object missing required field `text`"),
        ({"thought_end": {"before_any": "", "before_text": None}}, "thought_end.before_text: expected `str`, got `null`"),
        ({"found": {"default": {"generation_prompt": 1}}}, "found.default.generation_prompt: expected `str`, got `int`"),
        ({"checked": {"tests": {}}}, "checked: object missing required field `of`"),
        ({"comment": "mine"}, "comment: not a field"),
    ],
)
def test_what_is_no_profile_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        profile_of(profile_values(PROFILE) | change)
    assert str(caught.value).startswith(said)


def test_files_that_differ_are_told() -> None:
    recorded = {"config.json": "1", "chat_template.jinja": "2", "tokenizer.json": "3"}
    now = {"config.json": "1", "tokenizer.json": "4", "generation_config.json": "5"}
    assert differing(recorded, recorded) == ()
    assert differing(recorded, now) == (
        "tokenizer.json has changed",
        "chat_template.jinja is gone",
        "generation_config.json is new",
    )
