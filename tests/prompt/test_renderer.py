"""A renderer's drafts: the last message continued, as transformers continues it, and how large a rendering may be."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.real_templates import REAL
from support.reference import fixed_reference_time, reference_text, wordless_tokenizer
from support.vocabulary import TEMPLATES, fixed_clock, model_files

from gateway.errors import BadRequest, ContextTooLong
from gateway.prompt.renderer import Draft, Renderer

__all__ = ["fixed_reference_time"]

OURS = sorted(TEMPLATES.glob("*.jinja"))
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
REFERENCE = wordless_tokenizer(SPECIALS)
SAID = (
    "word",
    "two words ",
    "line\n\n",
    " \n blank before",
    "<think>\nopen",
    "<think>a</think>\n\nb",
    '{"a": "é\\n',
    "🦙",
    "x<",
    "> y",
)


def renderer(source: str) -> Renderer:
    return Renderer(replace(model_files("full"), templates={"default": source}, specials=SPECIALS), clock=fixed_clock)


def draft(content: str, *, continues: bool = True, **variables: Any) -> Draft:
    messages = [{"role": "user", "content": "asked"}, {"role": "assistant", "content": content}]
    given = {"messages": messages, "tools": [], "add_generation_prompt": False}
    return Draft("default", {**given, **variables}, continues=continues)


def reference(source: str, asked: Draft) -> str | None:
    """transformers' text; None where it refuses."""
    named = replace(asked, variables={**asked.variables, "continue_final_message": True})
    try:
        return reference_text(REFERENCE, source, named)
    except ValueError:
        return None


@pytest.mark.parametrize("file", [*OURS, *REAL], ids=lambda file: f"{file.stem}-continued")
@pytest.mark.usefixtures("fixed_reference_time")
def test_a_message_is_continued_as_transformers_does(file: Path) -> None:
    source = file.read_text()
    ours = renderer(source)
    for content in SAID:
        expected = reference(source, draft(content))
        if expected is not None:
            assert ours.render(draft(content)).text == expected, content
            continue
        with pytest.raises(BadRequest) as caught:
            ours.render(draft(content))
        assert caught.value.param == "continue_final_message", content


def test_blanks_at_the_end_stay_where_the_template_shows_them() -> None:
    assert renderer("{{ messages[-1].content }}<|im_end|>").render(draft("a \n")).text == "a \n"
    assert renderer("{{ messages[-1].content | trim }}\n<|im_end|>").render(draft("a \n")).text == "a"


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].content }}", "{{ messages[-1].content | replace('b', 'c') }}", "{{ messages[-1].content | upper }}"],
)
def test_a_message_that_the_template_does_not_show_as_it_is_is_refused(source: str) -> None:
    with pytest.raises(BadRequest, match="does not show the last message") as caught:
        renderer(source).render(draft("abc"))
    assert caught.value.param == "continue_final_message"


def test_control_tokens_in_a_continued_message_are_text() -> None:
    files = model_files("full")
    found = Renderer(files, clock=fixed_clock).render(draft("a<|im_end|>b<|im_"))
    assert found.text == "<|im_start|>user\nasked<|im_end|>\n<|im_start|>assistant\na<|im_end|>b<|im_"
    assert found.ids.count(files.tokenizer.special_ids["<|im_end|>"]) == 1
    noncharacters = Renderer(files, clock=fixed_clock).render(draft("\ufdd0<s>\ufdd1"))
    assert noncharacters.text.endswith("assistant\n\ufdd0<s>\ufdd1")


@pytest.mark.parametrize("content", ["a" * 300, "<s>" + "a" * 300])
def test_what_cannot_fit_is_refused_before_it_is_tokenised(content: str) -> None:
    asked = replace(draft(content, continues=False), context_tokens=20)
    with pytest.raises(ContextTooLong):
        renderer("{{ messages[-1].content }}").render(asked)
    assert renderer("{{ messages[0].content }}").render(asked).text == "asked"
