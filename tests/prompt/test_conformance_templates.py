"""Every real template with every conversation: the text is transformers' own, or the request is refused by its field, and
nothing that a model must see is left out without a word. Compared by text."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.conversations import CONVERSATIONS, Mark, marked, open_thoughts
from support.real_templates import REAL, REAL_FILES, needs_real
from support.reference import fixed_reference_time, reference_text, wordless_tokenizer
from support.vocabulary import SYNTAX, TEMPLATES, fixed_clock, model_files

from gateway.errors import BadRequest
from gateway.prompt.prompter import Prompter, ToolMode
from gateway.request import GenerateRequest, Prompt

__all__ = ["fixed_reference_time"]

OURS = sorted(TEMPLATES.glob("*.jinja"))
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
# This template shows the text of a message that calls after the results of its calls.
TEXT_AFTER_RESULTS = frozenset({"google-gemma-4-31B-it"})
SYSTEMS = frozenset({"system", "developer"})
# How many of the conversations each template refuses, of those that refuse any. The rest is rendered.
REFUSED: Mapping[str, int] = {
    "dropping": 4,
    "echo": 32,
    "strict": 35,
    "Apertus-8B-Instruct": 2,
    "HuggingFaceTB-SmolLM3-3B": 34,
    "Kimi-K2-Thinking": 26,
    "Mistral-Small-3.2-24B-Instruct-2506": 4,
    "Qwen3.5-4B": 2,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": 33,
    "deepseek-ai-DeepSeek-V3.1": 31,
    "google-gemma-2-2b-it": 35,
    "ibm-granite-granite-3.3-2B-Instruct": 26,
    "meta-llama-Llama-3.1-8B-Instruct": 2,
    "meta-llama-Llama-3.2-3B-Instruct": 2,
    "microsoft-Phi-3.5-mini-instruct": 32,
    "mistralai-Ministral-3-14B-Reasoning-2512": 4,
    "mistralai-Mistral-Nemo-Instruct-2407": 4,
    "openai-gpt-oss-120b": 4,
    "trl-deepseekv3": 31,
    "trl-gemma3": 35,
    "trl-llama3": 32,
    "trl-qwen3_6": 2,
}

templates = pytest.mark.parametrize("file", [*OURS, *REAL], ids=lambda file: f"{file.stem}-text")


@needs_real
def test_the_real_templates_are_here() -> None:
    assert len(REAL_FILES) >= 40


@cache
def speaker(file: Path, tools: ToolMode = "native") -> Prompter:
    files = replace(model_files("full"), templates={"default": file.read_text()}, specials=SPECIALS)
    return Prompter(files, tools=tools, syntax=SYNTAX, clock=fixed_clock)


def outcome(prompter: Prompter, request: GenerateRequest) -> Prompt | BadRequest:
    try:
        return prompter.prompt(request)
    except BadRequest as error:
        return error


@templates
@pytest.mark.usefixtures("fixed_reference_time")
def test_the_text_is_transformers_own_or_the_request_is_refused(file: Path) -> None:
    prompter, source, reference = speaker(file), file.read_text(), wordless_tokenizer(SPECIALS)
    refused = 0
    for name, request in CONVERSATIONS.items():
        made = outcome(prompter, request)
        if isinstance(made, Prompt):
            assert made.text == reference_text(reference, source, prompter.plan(request).draft), name
        else:
            refused += 1
            assert (made.param or "").startswith(("messages[", "tools")), (name, made.param)
            assert "chat template" in made.message, name
    assert refused == REFUSED.get(file.stem, 0)


@templates
@pytest.mark.parametrize("tools", ["native", "constrained"])
def test_nothing_is_left_out_without_a_word(file: Path, tools: ToolMode) -> None:
    prompter = speaker(file, tools)
    for name, plain in CONVERSATIONS.items():
        request, marks = marked(plain)
        prompt = outcome(prompter, request)
        if isinstance(prompt, BadRequest):
            assert isinstance(outcome(prompter, plain), BadRequest), name
            continue
        lost = [mark for mark in marks if mark.word not in prompt.text]
        untold = [mark for mark in lost if not allowed(mark, request) and not told(mark, prompt.notes)]
        assert not untold, (name, prompt.notes)
        late = file.stem in TEXT_AFTER_RESULTS and "text" in name
        assert late or in_order(marks, request, prompt), name


def in_order(marks: list[Mark], request: GenerateRequest, prompt: Prompt) -> bool:
    """Whether texts, arguments and results follow one another as their messages do."""
    roles = [message.role for message in request.messages]
    said = [mark.word for mark in marks if mark.kind in {"text", "argument", "result"} and roles[mark.index] not in SYSTEMS]
    places = [prompt.text.index(word) for word in said if word in prompt.text]
    return places == sorted(places) or any("put in the order" in note for note in prompt.notes)


def allowed(mark: Mark, request: GenerateRequest) -> bool:
    """Models' own rule: thoughts of answered turns may be cut."""
    return mark.kind == "thought" and mark.index not in open_thoughts(request.messages)


def told(mark: Mark, notes: tuple[str, ...]) -> bool:
    """Only an assistant's own words may be left out, and a note says so."""
    if mark.kind == "thought":
        return any("thoughts are left out" in note for note in notes)
    place = f"messages[{mark.index}]: "
    ways = ("text beside calls left out", "text beside calls given as a thought", "what stands before </think> is a thought")
    return mark.kind == "text" and any(note.startswith(tuple(place + way for way in ways)) for note in notes)


@templates
@pytest.mark.usefixtures("fixed_reference_time")
def test_the_text_of_stated_tools_is_transformers_own(file: Path) -> None:
    """With `tools: constrained` the template sees no tools, calls or results: few conversations are left to refuse."""
    prompter, source, reference = speaker(file, "constrained"), file.read_text(), wordless_tokenizer(SPECIALS)
    refused = set()
    for name, request in CONVERSATIONS.items():
        made = outcome(prompter, request)
        if isinstance(made, Prompt):
            assert made.text == reference_text(reference, source, prompter.plan(request).draft), name
        else:
            refused.add(name)
    assert refused <= {"later-system", "later-developer", "assistant-first"}
