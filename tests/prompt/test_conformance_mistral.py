"""Prompts of Mistral's models against mistral-common, by whose rules they were trained: ids by ids, on the messages that our
Prompter hands to the template. Where a published template writes something else than mistral-common, transformers does as the
template says and so do we: `adapted` and each model's `apart` list these differences, with their reasons."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from msgspec import structs
from support.conversations import CONVERSATIONS
from support.real_templates import real_template
from support.vocabulary import SYNTAX, fixed_clock

from gateway.errors import BadRequest
from gateway.prompt.prompter import Prompter
from gateway.prompt.renderer import Draft
from gateway.prompt.source import read_model
from gateway.request import GenerateRequest, Message

pytestmark = pytest.mark.no_cover  # the other tests run the same code
SPECIALS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> "
    "[IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] [CALL_ID] [ARGS] "
    "[THINK] [/THINK]"
)
NO_ANSWER = "mistral-common refuses an answer without text, the template writes its end"
ARGUMENTS = "arguments that are JSON, but no object: text to us, a value to mistral-common"
BROKEN = "arguments that are no JSON: the template writes them as they are, mistral-common as a JSON string"
JOINED = "mistral-common joins messages of the same role, the template (not Mistral's own) writes them apart"
LATER_SYSTEM = "mistral-common refuses a system message after an answer, the template (not Mistral's own) writes it"


@dataclass(frozen=True, slots=True)
class Model:
    """A real vocabulary, the version of mistral-common's rules for it, a published template, and how many of the conversations
    the template cannot show. `thinks`: the template shows thoughts."""

    file: str
    version: str
    template: str
    refused: int
    apart: Mapping[str, str] = field(default_factory=dict)
    thinks: bool = False


MODELS = [
    Model(
        "tekken_240718.json",
        "v3",
        "mistralai-Mistral-Nemo-Instruct-2407",
        4,
        {
            "empty-strings": NO_ANSWER,
            "null-answer": NO_ANSWER,
            "thought-without-text": NO_ANSWER,
            "list-arguments": ARGUMENTS,
        },
    ),
    Model(
        "tekken_240911.json",
        "v11",
        "Mistral-Small-3.2-24B-Instruct-2506",
        4,
        {
            "empty-strings": NO_ANSWER,
            "null-answer": NO_ANSWER,
            "thought-without-text": NO_ANSWER,
            "list-arguments": ARGUMENTS,
        },
    ),
    Model(
        "tekken_240911.json",
        "v13",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        4,
        {"broken-arguments": BROKEN},
        thinks=True,
    ),
    Model(
        "tekken_240911.json",
        "v13",
        "unsloth-mistral-Devstral-Small-2507",
        0,
        {
            "empty-strings": NO_ANSWER,
            "null-answer": NO_ANSWER,
            "thought-without-text": NO_ANSWER,
            "broken-arguments": BROKEN,
            "two-users": JOINED,
            "two-users-later": JOINED,
            "two-assistants": JOINED,
            "later-system": LATER_SYSTEM,
            "later-developer": LATER_SYSTEM,
        },
    ),
]


def adapted(request: GenerateRequest, model: Model) -> GenerateRequest:
    """The request without what the two are known to write apart in every conversation: a system message of the template's own
    where the client sent none; thoughts, for which older rules have no place; an empty description where a tool has none (by
    mistral-common); results, which Nemo's template writes bare and mistral-common as JSON."""
    messages = request.messages
    if model.version != "v3" and messages[0].role not in {"system", "developer"}:
        messages = (Message("system", "Be brief."), *messages)
    if not model.thinks:
        messages = tuple(replace(message, reasoning=None) for message in messages)
    if model.version == "v3":
        messages = tuple(
            replace(message, content=json.dumps(str(message.content))) if message.role in {"tool", "function"} else message
            for message in messages
        )
    tools = tuple(replace(tool, description=tool.description or "") for tool in request.tools)
    return structs.replace(request, messages=messages, tools=tools)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Model], Path]:
    """Each model's directory: the packages' vocabularies, which name neither special tokens nor the newer versions."""

    def directory(model: Model) -> Path:
        spec = find_spec("mistral_common")
        assert spec is not None
        assert spec.submodule_search_locations
        tekken = json.loads((Path(spec.submodule_search_locations[0]) / "data" / model.file).read_text())
        tekken["config"]["version"] = model.version
        names = enumerate(SPECIALS.split())
        tekken["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in names]
        made = tmp_path_factory.mktemp(model.template)
        (made / "tekken.json").write_text(json.dumps(tekken))
        (made / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
        (made / "chat_template.jinja").write_text(real_template(model.template))
        return made

    return directory


@pytest.mark.parametrize("model", MODELS, ids=[f"{model.template}-{model.version}-ids" for model in MODELS])
def test_ids_are_mistral_common_s_own(directories: Callable[[Model], Path], model: Model) -> None:
    directory = directories(model)
    prompter = Prompter(read_model(directory), tools="native", syntax=SYNTAX, clock=fixed_clock)
    reference = MistralTokenizer.from_file(str(directory / "tekken.json"))
    refused, apart = 0, set()
    for name, plain in CONVERSATIONS.items():
        request = adapted(plain, model)
        try:
            prompt = prompter.prompt(request)
        except BadRequest:
            refused += 1
            continue
        if prompt.ids != reference_ids(reference, prompter.plan(request).draft):
            apart.add(name)
    assert apart == set(model.apart)
    assert refused == model.refused


def reference_ids(reference: MistralTokenizer[Any, Any, Any, Any, Any], draft: Draft) -> tuple[int, ...] | None:
    """None where mistral-common refuses."""
    messages = [_asked(message) for message in draft.variables["messages"]]
    try:
        asked: ChatCompletionRequest[Any] = ChatCompletionRequest(messages=messages, tools=draft.variables["tools"])
        return tuple(reference.encode_chat_completion(asked).tokens)
    except MistralCommonException:
        return None


def _asked(message: Mapping[str, Any]) -> dict[str, Any]:
    """With arguments as text."""
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {**call, "function": {"name": call["function"]["name"], "arguments": _text(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
