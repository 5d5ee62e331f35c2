"""The test `tool_call`: passed by every family's template, and failed by what is damaged, with what to do about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.real_templates import real_template
from support.subjects import FAMILIES, family_files, family_subject, own_template, real_templates, subject_of, with_profile

from gateway.checks.base import Case, Subject
from gateway.checks.tool_call import ARGUMENTS, check_tool_call
from gateway.formats.base import Format, ParseOptions, Parser
from gateway.prompt.profile import FormatChoice, StopToken
from gateway.request import Delta, FinishReason, ParseFailure, ToolCallArguments, ToolCallStart, Usage
from gateway.wire import jsonio

# Of the real ones, this one is written for a template engine that lets lists grow, which transformers' own does not.
REAL = [(family, real) for family, real in real_templates() if real != "Kimi-K2-Thinking"]
PARTS = "The history parts from the prompt"
NOT_JSON = "as JSON, but in"
UNESCAPED = "quotes or backslashes as it is, unescaped"
# What a family's own template makes of a turn so that nobody could read it, or otherwise than it asks for it.
SKIPPED: Mapping[str, Mapping[str, str]] = {
    "deepseek_v3_2": {"single call: the next turn": PARTS},
    "gemma4": {
        "single call: the next turn": PARTS,
        "null in an argument": NOT_JSON,
        "text before a call": "elsewhere than before its calls",
    },
    "lfm2_5": dict.fromkeys(("escapes", "quotes", "markup"), UNESCAPED),
    "mistral_v3": {"single call: the next turn": "those that the client was given are not those that the model wrote"},
    "qwq": {"single call: the next turn": PARTS},
    "seed_oss": dict.fromkeys(("nested arguments", "null in an argument"), NOT_JSON),
}
NO_CALLS = ("chatml", "deepseek_r1", "deepseek_v3", "deepseek_v3_1", "gemma2", "gemma3", "llama3", "phi3_5", "smollm3")
# As the gateway states tools to them: whose template does not show the thought of a turn, or cuts text at the end of one.
STATED_SKIPPED: Mapping[str, Mapping[str, str]] = {
    "deepseek_r1": {"single call: the next turn": PARTS, "markers of the format in an argument": "the whole of an argument"},
    "deepseek_v3": {"single call: the next turn": PARTS},
}


def cases(subject: Subject) -> dict[str, Case]:
    made = [*check_tool_call(subject)]
    assert {case.test for case in made} == {"tool_call"}
    assert len({case.name for case in made}) == len(made)
    assert all(bool(case.diagnosis) == (case.status != "passed") == bool(case.fix) for case in made)
    return {case.name: case for case in made}


def failed(subject: Subject) -> list[Case]:
    return [case for case in cases(subject).values() if case.status == "failed"]


def skipped(found: Mapping[str, Case]) -> dict[str, str]:
    return {name: case.diagnosis for name, case in found.items() if case.status == "skipped"}


def same_words(found: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    return found.keys() == expected.keys() and all(words in found[name] for name, words in expected.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_back_the_calls_that_its_template_writes(family: str) -> None:
    found = cases(family_subject(family))
    assert not [case for case in found.values() if case.status == "failed"]
    assert same_words(skipped(found), SKIPPED.get(family, {}))
    if family in NO_CALLS:
        assert [*found] == ["requests with tools are refused"]
    elif family == "granite3_3":
        assert [*found] == ["a history with calls is refused"]
    else:
        assert found.keys() >= {*ARGUMENTS, "no arguments", "markers of the format in an argument", "a call that is cut"}


@pytest.mark.no_cover  # as `needs_real` says
@pytest.mark.parametrize(("family", "real"), REAL)
def test_every_real_template_gives_back_its_calls(family: str, real: str) -> None:
    found = cases(family_subject(family, real_template(real)))
    assert not [case for case in found.values() if case.status == "failed"]
    assert same_words(skipped(found), SKIPPED.get(family, {}))


@pytest.mark.parametrize("family", [*NO_CALLS, "qwen3", "command_r7b", "glm4_7"])
def test_calls_in_the_stated_syntax_come_back(family: str) -> None:
    found = cases(family_subject(family, tools="constrained"))
    assert not [case for case in found.values() if case.status == "failed"]
    assert {"single call", "parallel calls", "text before a call", "an unknown tool"} <= found.keys()
    if family in NO_CALLS:
        assert same_words(skipped(found), STATED_SKIPPED.get(family, {}))


def test_what_is_shown_is_tried() -> None:
    found = cases(family_subject("qwen3")).keys()
    assert {"parallel calls", "text before a call", "a thought before a call", "arguments that are no JSON"} <= found
    assert {"single call: the next turn", "parallel calls: the next turn", "a thought before a call: the next turn"} <= found
    assert not {"parallel calls", "text before a call"} & cases(family_subject("gpt_oss")).keys()  # its template shows neither


def test_another_format_than_the_model_s_is_told_with_the_right_one() -> None:
    subject = with_profile(family_subject("qwen3_coder"), format=FormatChoice("hermes", "declared"))
    (case,) = cases(subject).values()
    assert (case.name, case.status) == ("single call", "failed")
    assert case.diagnosis.startswith("Format hermes reads no call in '<tool_call>\\n<function=check_lookup>")
    assert case.diagnosis.endswith("; qwen3_coder does.")
    assert case.fix == "Set `format: qwen3_coder`, or `format.name` in the profile."


def test_a_call_that_no_format_reads_is_told() -> None:
    template = own_template("qwen2_5").replace("<tool_call>", "<my_call>").replace("</tool_call>", "</my_call>")
    (case,) = failed(subject_of("m", family_files("qwen2_5", template), "hermes"))
    assert case.diagnosis.startswith("Format hermes reads no call in '<my_call>")
    assert case.diagnosis.endswith(".")
    assert "tools: constrained" in case.fix


def as_text(subject: Subject) -> Subject:
    can = {name: replace(each, arguments="text") for name, each in subject.profile.templates.items()}
    return with_profile(subject, templates=can)


@pytest.mark.parametrize("family", ["qwen2_5", "kimi_k2", "mistral_v11", "gpt_oss"])
def test_arguments_given_as_text_to_a_template_that_encodes_them(family: str) -> None:
    (case,) = cases(as_text(family_subject(family))).values()
    assert (case.name, case.status) == ("single call", "failed")
    assert case.diagnosis.startswith("The arguments are double encoded")
    assert case.fix == "Set `templates.default.arguments: object` in the profile."


def test_arguments_given_as_text_to_a_template_that_looks_into_them() -> None:
    (case,) = cases(as_text(family_subject("qwen3_coder"))).values()
    assert case.diagnosis.startswith("With arguments as text the template writes no call: ")
    assert case.fix == "Set `templates.default.arguments: object` in the profile."


def test_a_template_that_refuses_a_conversation_is_told_with_its_words() -> None:
    damage = "{%- for m in messages if m.tool_calls and m.content %}{{ raise_exception('No text beside calls.') }}{% endfor -%}"
    (case,) = failed(with_damage("qwen2_5", damage))
    assert case.name == "text before a call"
    assert "No text beside calls." in case.diagnosis


def test_text_that_the_format_adds_to_is_told() -> None:
    template = own_template("qwen2_5").replace("'\\n<tool_call>", "'\\n\\n\\n<tool_call>")
    assert template != own_template("qwen2_5")
    names = {case.name for case in failed(family_subject("qwen2_5", template))}
    assert "text before a call" in names


def test_a_call_between_which_and_its_result_no_turn_ends_is_told() -> None:
    subject = family_subject("gpt_oss")
    stop = tuple(token for token in subject.profile.stop if token.text != "<|call|>")
    (case,) = cases(with_profile(subject, stop=stop)).values()
    assert case.diagnosis.startswith("The template writes no stop token between a call and its result")
    assert "`stop` in the profile" in case.fix


def with_damage(family: str, damage: str) -> Subject:
    """The family with a template that was damaged after its profile was made."""
    subject = family_subject(family)
    return with_profile(replace(subject, files=replace(subject.files, templates={"default": damage + own_template(family)})))


def test_a_template_that_refuses_tools_which_the_profile_says_it_takes() -> None:
    (case,) = cases(with_damage("qwen2_5", "{%- if tools %}{{ raise_exception('No tools.') }}{% endif -%}")).values()
    assert (case.name, case.status) == ("single call", "failed")
    assert case.diagnosis.startswith("A request with tools is refused: ")
    assert "No tools." in case.diagnosis


def test_a_template_that_refuses_calls_which_the_profile_says_it_takes() -> None:
    damage = "{%- for m in messages if m.tool_calls %}{{ raise_exception('No calls.') }}{% endfor -%}"
    (case,) = cases(with_damage("qwen2_5", damage)).values()
    assert case.diagnosis.startswith("The template does not write a call: ")
    assert "No calls." in case.diagnosis


@dataclass(frozen=True)
class Changed:
    """A parser whose deltas are changed."""

    parser: Parser
    change: Callable[[Sequence[Delta]], list[Delta]]

    @property
    def thinking(self) -> bool:
        return self.parser.thinking

    def feed(self, text: str) -> list[Delta]:
        return self.change(self.parser.feed(text))

    def feed_tokens(self, tokens: Sequence[tuple[int, str]]) -> list[Delta]:
        return self.change(self.parser.feed_tokens(tokens))

    def finish(self, reason: FinishReason, usage: Usage) -> list[Delta]:
        return self.change(self.parser.finish(reason, usage))


def in_order(deltas: Sequence[Delta]) -> list[Delta]:
    """The same arguments in another order."""
    return [
        ToolCallArguments(delta.index, jsonio.dumps(jsonio.decode(delta.text), sort_keys=True))
        if isinstance(delta, ToolCallArguments)
        else delta
        for delta in deltas
    ]


def uncounted(deltas: Sequence[Delta]) -> list[Delta]:
    return [delta for delta in deltas if not isinstance(delta, ParseFailure)]


def renamed(deltas: Sequence[Delta]) -> list[Delta]:
    return [ToolCallStart(delta.index, delta.id, "other") if isinstance(delta, ToolCallStart) else delta for delta in deltas]


class ChangedFormat:
    """A format whose parsers do that."""

    def __init__(self, form: Format, change: Callable[[Sequence[Delta]], list[Delta]]) -> None:
        self._form = form
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._form, name)

    def parser(self, options: ParseOptions) -> Parser:
        return Changed(self._form.parser(options), self._change)


def read_with(change: Callable[[Sequence[Delta]], list[Delta]]) -> dict[str, Case]:
    subject = family_subject("qwen2_5")
    form: Any = ChangedFormat(subject.call_format, change)
    return {name: case for name, case in cases(replace(subject, call_format=form)).items() if case.status == "failed"}


def test_an_answer_that_comes_back_otherwise_than_it_was_written_ends_a_cache() -> None:
    found = read_with(in_order)
    assert [*found] == ["numbers and booleans: the next turn", "a number as text: the next turn"]
    diagnosis = found["numbers and booleans: the next turn"].diagnosis
    assert diagnosis.startswith("""Where the model wrote 'ratio": -0.5, "flag": true}}""")
    assert """the next prompt has 'flag": true, "ratio": -0.5}}""" in diagnosis


def test_what_is_no_call_and_is_not_counted_is_told() -> None:
    found = read_with(uncounted)
    assert [*found] == ["a call that is cut", "arguments that are no JSON", "an unknown tool"]
    assert found["an unknown tool"].diagnosis == "1 calls are read, and no failure is counted."


def test_a_name_that_is_read_wrong_is_told() -> None:
    (case,) = read_with(renamed).values()
    assert case.diagnosis.startswith("Format hermes reads a call of 'other' where check_lookup is called; ")


def test_a_stop_token_within_calls_is_not_the_format_s_fault() -> None:
    subject = family_subject("qwen2_5")
    token = subject.prompter.tokenizer.special_ids["<tool_call>"]
    found = cases(with_profile(subject, stop=(*subject.profile.stop, StopToken(token, "<tool_call>"))))
    case = found["single call"]
    assert case.status == "failed"
    assert case.diagnosis.endswith("where it is given the tokens, not their text.")
    assert "under `stop` in the profile" in case.fix
