"""The test `reasoning`: thoughts of every family come back, and each damage fails the right case with the right words."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.checked import checked_model, profiled, with_template
from support.real_templates import REAL, real_template
from support.subjects import FAMILIES, family_subject, formats, own_template
from support.vocabulary import model_files, template_text

from gateway.checks.base import Case, Subject
from gateway.checks.reasoning import check_reasoning
from gateway.formats.base import Format, ParseOptions, Parser
from gateway.prompt.derive import derive
from gateway.prompt.thought_end import ThoughtEnd
from gateway.request import Delta, FinishReason, ParseFailure, ReasoningText, Usage

FULL = template_text("full")
THINKING = "enable_thinking is defined and not enable_thinking"
# Of these families the template writes thoughts, or opens or closes them in its prompt.
THINK = {
    *("command_r7b", "deepseek_r1", "deepseek_v3", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4", "gemma4", "glm4_6", "glm4_7"),
    *(
        "glm5",
        "gpt_oss",
        "granite3_3",
        "kimi_k2_thinking",
        "lfm2_5",
        "minimax_m2",
        "mistral_v13",
        "nemotron3",
        "qwen3",
        "qwen3_5",
        "qwq",
    ),
    *("seed_oss", "smollm3", "step3_5"),
}


def checked(subject: Subject) -> dict[str, Case]:
    cases = list(check_reasoning(subject))
    made = {case.name: case for case in cases}
    assert len(made) == len(cases)
    for case in cases:
        assert case.test == "reasoning"
        assert case.status == "passed" or case.diagnosis.endswith("."), case
        assert case.status != "failed" or case.fix.endswith("."), case
    return made


def failed(subject: Subject) -> dict[str, Case]:
    return {name: case for name, case in checked(subject).items() if case.status == "failed"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes(family: str) -> None:
    cases = checked(family_subject(family))
    assert {case.status for case in cases.values()} <= {"passed", "skipped"}, cases
    assert (len(cases) > 3) is (family in THINK), cases.keys()
    if family not in THINK:
        assert set(cases) == {"no thoughts"}


@pytest.mark.parametrize("file", REAL, ids=lambda file: file.stem)
def test_every_real_template_passes_with_its_format(file: "object") -> None:
    source = real_template(getattr(file, "stem", ""))
    files = with_template(source)
    said = derive("m", files, formats())
    if said.format.name is not None:
        assert not failed(checked_model(files, said))


def test_a_thinking_switch_is_tried_in_all_its_values() -> None:
    cases = checked(checked_model(model_files("full"), form="hermes"))
    assert {case.status for case in cases.values()} == {"passed"}
    assert set(cases) == {
        *("thought", "thought, thinking on", "no thought, thinking off", "thought absent", "cut by the limit", "thought end"),
        *("unclosed", "a thought quotes a call", "a thought spells its own end"),
    }


def test_where_the_template_shows_no_thought_it_is_built_and_that_is_said() -> None:
    assert "thought (built of the format's markers: the template shows none)" in checked(family_subject("deepseek_v3"))
    assert "thought (as it begins in a tool loop)" in checked(family_subject("gpt_oss"))


def test_a_prompt_that_leaves_the_thought_open_though_thinking_is_off() -> None:
    source = FULL.replace("<think>\n\n</think>\n\n", "<think>\n")
    assert source != FULL
    cases = failed(checked_model(with_template(source), form="hermes"))
    assert set(cases) == {"no thought, thinking off"}
    case = cases["no thought, thinking off"]
    assert "After a prompt that ends with '<|im_start|>assistant\\n<think>\\n'" in case.diagnosis
    assert "the format hermes reads the thought 'It is this, checksaidmark.'" in case.diagnosis
    assert case.fix.startswith("Let the template close the thought in its generation prompt")


@pytest.mark.parametrize("form", ["mistral_v13", "seed_oss", "gpt_oss"])
def test_the_thought_of_another_format(form: str) -> None:
    cases = failed(checked_model(model_files("full"), form=form))
    assert "thought" in cases
    assert f"the format {form} reads the thought ''" in cases["thought"].diagnosis
    assert "<think>First this" in cases["thought"].diagnosis
    assert "`format`" in cases["thought"].fix


def test_a_format_without_thoughts_on_a_model_that_thinks() -> None:
    case = failed(checked_model(model_files("full"), form="mistral_v3"))["thoughts"]
    assert case.diagnosis.startswith("The template has thoughts (reasoning_content), and the format mistral_v3 reads none")


def test_a_format_of_other_thoughts_on_a_prompt_that_opens_one() -> None:
    case = failed(checked_model(with_template(own_template("deepseek_v3")), form="seed_oss"))["thoughts"]
    assert case.diagnosis.startswith("The template has thoughts (<think>), and the format seed_oss reads none")
    assert case.diagnosis.endswith("a prompt ends '<｜Assistant｜><think>\\n'.")


def test_who_wants_everything_as_content_gets_it() -> None:
    cases = checked(checked_model(model_files("full"), form="plain"))
    assert {name: case.status for name, case in cases.items()} == {"thoughts": "skipped", "no thoughts": "passed"}


def test_a_thought_end_that_ends_no_thought() -> None:
    files = model_files("full")
    said = replace(profiled(files, "hermes"), thought_end=ThoughtEnd("</thought>", "</thought>"))
    case = failed(checked_model(files, said, form="hermes"))["thought end"]
    assert "'</thought>', in which the format hermes finds no '</think>'" in case.diagnosis
    assert "`thought_end`" in case.fix


def test_a_thought_end_that_a_person_changed_is_the_one_that_is_read() -> None:
    files = model_files("full")
    said = replace(profiled(files, "hermes"), thought_end=ThoughtEnd("</think>", "</think>so "))
    assert set(failed(checked_model(files, said, form="hermes"))) == {"thought end"}


def test_a_prompt_that_is_always_closed_has_content_only() -> None:
    source = FULL.replace(r"{{- '<|im_start|>assistant\n' -}}", r"{{- '<|im_start|>assistant\n<think></think>' -}}")
    assert source != FULL
    cases = checked(checked_model(with_template(source.replace(THINKING, "false")), form="hermes"))
    assert {name: case.status for name, case in cases.items()} == {"no thought": "passed"}


def test_a_switch_that_the_template_refuses_is_left_out() -> None:
    source = FULL.replace(f"{{%- if {THINKING} %}}", f"{{%- if {THINKING} %}}{{{{ raise_exception('always on') }}}}")
    assert source != FULL
    case = checked(checked_model(with_template(source), form="hermes"))["thought, thinking off"]
    assert (case.status, "always on" in case.diagnosis) == ("skipped", True)


def test_a_template_that_refuses_everything_under_an_old_profile() -> None:
    said = profiled(model_files("full"), "hermes")
    case = failed(checked_model(with_template("{{ raise_exception('edited') }}"), said, form="hermes"))["prompts"]
    assert "edited" in case.diagnosis


class _Deaf(Format):
    """A format whose parsers tell some things no longer."""

    def __init__(self, form: Format, *dropped: type[Delta]) -> None:
        self._form, self._dropped = form, dropped

    def __getattribute__(self, name: str) -> object:
        own = object.__getattribute__(self, "__dict__")
        return object.__getattribute__(self, name) if name in ("parser", "_form", "_dropped") else getattr(own["_form"], name)

    def parser(self, options: ParseOptions) -> Parser:
        return _DeafParser(self._form.parser(options), self._dropped)


class _DeafParser:
    def __init__(self, parser: Parser, dropped: tuple[type[Delta], ...]) -> None:
        self._parser, self._dropped = parser, dropped

    @property
    def thinking(self) -> bool:
        return self._parser.thinking

    def feed(self, text: str) -> list[Delta]:
        return self._heard(self._parser.feed(text))

    def feed_tokens(self, tokens: Sequence[tuple[int, str]]) -> list[Delta]:
        return self._heard(self._parser.feed_tokens(tokens))

    def finish(self, reason: FinishReason, usage: Usage) -> list[Delta]:
        return self._heard(self._parser.finish(reason, usage))

    def _heard(self, deltas: list[Delta]) -> list[Delta]:
        return [delta for delta in deltas if not isinstance(delta, self._dropped)]


@pytest.mark.parametrize(
    ("dropped", "names", "words"),
    [
        (ParseFailure, {"unclosed", "cut by the limit"}, "A thought that is never closed is not counted"),
        (ReasoningText, {"unclosed", "cut by the limit"}, "text is lost"),
    ],
)
def test_what_is_not_counted_or_lost_is_found(dropped: type[Delta], names: set[str], words: str) -> None:
    subject = checked_model(model_files("full"), form="hermes")
    deaf = _Deaf(subject.format, dropped)  # type: ignore[abstract]  # the rest is the format's own
    cases = failed(replace(subject, format=deaf, call_format=deaf))
    assert names <= set(cases)
    for name in names:
        assert words in cases[name].diagnosis
