"""Prompts of real models, with their real vocabularies and templates: text and ids are transformers' own, to the last token."""

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from support.conversations import CONVERSATIONS, random_conversations
from support.llamacpp import EngineUnderTest, smollm2_file
from support.real_templates import real_template
from support.real_vocabularies import (
    deepseek_vocabulary,
    model_directory,
    qwen_by_ranks,
    qwen_vocabulary,
)
from support.reference import fixed_reference_time, reference_ids, reference_text, wordless_tokenizer
from support.vocabulary import SYNTAX, fixed_clock, template_text
from transformers import PreTrainedTokenizerFast

from gateway.errors import BadRequest
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.prompter import Prompter
from gateway.prompt.source import read_model
from gateway.request import Prompt

__all__ = ["fixed_reference_time"]

# The other tests run the same code.
pytestmark = [pytest.mark.no_cover, pytest.mark.usefixtures("fixed_reference_time")]

QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
VOCABULARIES: Mapping[str, tuple[Callable[[], Path], Mapping[str, str]]] = {
    "Qwen3": (partial(qwen_vocabulary, "qwen3"), QWEN),
    "Qwen3.5": (partial(qwen_vocabulary, "qwen35"), QWEN),
    "DeepSeek": (deepseek_vocabulary, DEEPSEEK),
}
# The vocabulary, the template, and how many of the conversations the template cannot show.
MODELS = [
    ("Qwen3", "trl-qwen3", 0),
    ("Qwen3", "Qwen-Qwen3-0.6B", 0),
    ("Qwen3", "trl-qwen3_instruct_2507", 0),
    ("Qwen3", "Qwen3-Coder", 0),
    ("Qwen3.5", "Qwen3.5-4B", 2),
    ("Qwen3.5", "trl-qwen3_6", 2),
    ("DeepSeek", "deepseek-ai-DeepSeek-V4", 0),
    ("DeepSeek", "deepseek-ai-DeepSeek-V3.2", 0),
    ("DeepSeek", "deepseek-ai-DeepSeek-V3.1", 31),
]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model as we read it, and its tokenizer as transformers does."""

    files: ModelFiles
    reference: PreTrainedTokenizerFast

    def speaker(self, template: str) -> Prompter:
        return speaker(replace(self.files, templates={"default": template}))


def speaker(files: ModelFiles) -> Prompter:
    return Prompter(files, tools="native", syntax=SYNTAX, clock=fixed_clock)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Vocabulary]:
    made: dict[str, Vocabulary] = {}

    def vocabulary(name: str) -> Vocabulary:
        if name not in made:
            file, specials = VOCABULARIES[name]
            directory = model_directory(tmp_path_factory.mktemp(name), file(), specials, template_text("echo"))
            reference = PreTrainedTokenizerFast(tokenizer_file=str(file()), **specials)  # type: ignore[no-untyped-call]  # theirs
            made[name] = Vocabulary(read_model(directory), reference)
        return made[name]

    return vocabulary


def prompts(prompter: Prompter) -> dict[str, Prompt]:
    """Each conversation's that the template shows."""
    made: dict[str, Prompt] = {}
    for name, request in CONVERSATIONS.items():
        try:
            made[name] = prompter.prompt(request)
        except BadRequest:
            continue
    return made


@pytest.mark.parametrize(("vocabulary", "template", "refused"), MODELS, ids=[f"{name}-ids" for _, name, _ in MODELS])
def test_text_and_ids_are_transformers_own(
    vocabularies: Callable[[str], Vocabulary], vocabulary: str, template: str, refused: int
) -> None:
    source, model = real_template(template), vocabularies(vocabulary)
    prompter = model.speaker(source)
    made = prompts(prompter)
    assert len(CONVERSATIONS) - len(made) == refused
    for name, prompt in made.items():
        draft = prompter.plan(CONVERSATIONS[name]).draft
        assert prompt.text == reference_text(model.reference, source, draft), name
        assert prompt.ids == reference_ids(model.reference, source, draft), name


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_ids_of_random_conversations_are_transformers_own(vocabularies: Callable[[str], Vocabulary], vocabulary: str) -> None:
    source, model = template_text("full"), vocabularies(vocabulary)
    prompter = model.speaker(source)
    for request in random_conversations(150):
        assert prompter.prompt(request).ids == reference_ids(model.reference, source, prompter.plan(request).draft)


@pytest.mark.parametrize(("vocabulary", "name"), [("Qwen3", "qwen3"), ("Qwen3.5", "qwen35")])
def test_ids_are_those_of_qwen_s_own_ranks(
    vocabularies: Callable[[str], Vocabulary], vocabulary: str, name: Literal["qwen3", "qwen35"]
) -> None:
    """The conversion to `tokenizer.json` lost nothing: tiktoken, which reads the ranks themselves, agrees."""
    prompter, ranks = vocabularies(vocabulary).speaker(template_text("full")), qwen_by_ranks(name)
    for conversation, prompt in prompts(prompter).items():
        assert list(prompt.ids) == ranks.encode(prompt.text), conversation


@pytest.mark.parametrize("template", ["full", "tagged", "dropping"])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_with_our_own_templates_too(vocabularies: Callable[[str], Vocabulary], vocabulary: str, template: str) -> None:
    source, model = template_text(template), vocabularies(vocabulary)
    prompter = model.speaker(source)
    for name, prompt in prompts(prompter).items():
        assert prompt.ids == reference_ids(model.reference, source, prompter.plan(CONVERSATIONS[name]).draft), name


def engine_ids(url: str, text: str) -> tuple[int, ...]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    asked = urllib.request.Request(f"{url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return tuple(json.load(answer)["tokens"])


@pytest.mark.engine
def test_smollm2_text_is_transformers_own_and_ids_are_the_engine_s(local_engine: EngineUnderTest) -> None:
    files = read_model(smollm2_file())
    prompter, reference = speaker(files), wordless_tokenizer(files.specials)
    made = prompts(prompter)
    assert len(made) >= 25
    for name, prompt in made.items():
        draft = prompter.plan(CONVERSATIONS[name]).draft
        assert prompt.text == reference_text(reference, files.templates["default"], draft), name
        assert prompt.ids == engine_ids(local_engine.url, prompt.text), name
