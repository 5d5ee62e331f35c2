"""A model as wired: its names, its formats' names, and how long an answer may be."""

import pytest
from support.vocabulary import SYNTAX, fixed_clock, model_files

from gateway.answer import AnswerRules
from gateway.errors import ContextTooLong
from gateway.formats.registry import load
from gateway.model import Model, Rendered, by_name, fitted
from gateway.prompt.prompter import Prompter
from gateway.request import Prompt

FORMATS = load()


def model(name: str = "m", *aliases: str, own: str = "plain", calls: str = "plain") -> Model:
    prompter = Prompter(model_files("echo"), tools="constrained", syntax=SYNTAX, clock=fixed_clock)
    return Model(name, Rendered(prompter, FORMATS[own], FORMATS[calls]), AnswerRules(), 0, aliases)


def test_the_format_s_name_is_that_of_what_reads_the_answer() -> None:
    constrained = model(calls="hermes")
    assert (constrained.format_name(False), constrained.format_name(True)) == ("plain", "hermes")
    assert constrained.format_names() == ("plain", "hermes")
    assert model().format_names() == ("plain",)
    passed = Model("m", None, AnswerRules(), 0)
    assert (passed.format_names(), passed.format_name(True)) == (("engine",), "engine")


def test_a_model_is_found_by_each_of_its_names() -> None:
    first, second = model("a", "x", "y"), model("b")
    assert by_name((first, second)) == {"a": first, "x": first, "y": first, "b": second}


@pytest.mark.parametrize(
    ("context", "asked", "given", "notes"),
    [
        (None, None, None, ()),
        (None, 50, 50, ()),
        (100, None, 90, ()),
        (100, 90, 90, ()),
        (100, 500, 90, ("max_tokens: 90 of 500 are left of the context",)),
        (11, None, 1, ()),
    ],
)
def test_an_answer_fits_the_context(context: int | None, asked: int | None, given: int | None, notes: tuple[str, ...]) -> None:
    prompt = Prompt("x", tuple(range(10)), max_tokens=7, notes=("mapped",))
    made = fitted(prompt, asked, context)
    assert (made.max_tokens, made.ids) == (given, prompt.ids)
    assert made.notes == ("mapped", *notes)


@pytest.mark.parametrize("context", [10, 9, 1])
def test_a_prompt_that_leaves_nothing_is_refused(context: int) -> None:
    with pytest.raises(ContextTooLong) as caught:
        fitted(Prompt("x", tuple(range(10))), 1, context)
    assert f"maximum context length is {context} tokens" in caught.value.message
    assert "10 tokens" in caught.value.message
