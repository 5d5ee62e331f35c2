"""vLLM holds answers to our grammars, though they are in llama.cpp's language: what it samples is in them, as we read them."""

import urllib.request

import pytest
from support.gbnf import Grammar
from support.vllm import ALIAS, VllmUnderTest

from engines.base import Work
from engines.gbnf import gbnf
from engines.vllm import Vllm
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.source import read_model
from gateway.request import CallAnswer, Constraint, GenerateRequest, JsonAnswer, Sampling, ToolSpec
from gateway.wire.sse import SseReader

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PROMPT = "<|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n"
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/node",
}
TRIP = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Kraków", 'a "b"\n', None]},
        "days": {"type": "integer", "minimum": 3, "maximum": 120},
        "note": {"type": "string", "minLength": 2, "maxLength": 12},
        "prices": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "days", "note"],
}
TOOLS = (ToolSpec("weather", parameters=TRIP), ToolSpec("now"))


def calls(*, max_calls: int | None = None, or_text: bool = False, thought_closer: str | None = None) -> CallAnswer:
    return CallAnswer(TOOLS, "<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments", or_text, max_calls, thought_closer)


CONSTRAINTS: dict[str, Constraint] = {
    "an object": JsonAnswer(),
    "a trip": JsonAnswer(TRIP),
    "a tree": JsonAnswer(TREE),
    "a choice": JsonAnswer({"anyOf": [{"type": "boolean"}, {"type": "integer", "exclusiveMinimum": 9}, {"const": {"é": [1.5]}}]}),
    "after a thought": JsonAnswer(TRIP, "</think>"),
    "one call": calls(max_calls=1),
    "calls": calls(max_calls=3),
    "any number of calls": calls(),
    "calls after a thought": calls(thought_closer="</think>"),
    "calls or text": calls(or_text=True),
}
END, LESS = 2, 44  # <|im_end|>, "<"


@pytest.fixture(scope="module")
def files(vllm: VllmUnderTest) -> ModelFiles:
    return read_model(vllm.model)


def sampled(vllm: VllmUnderTest, files: ModelFiles, constraint: Constraint, seed: int) -> tuple[str, bool]:
    """A hot answer, and whether it is whole. What opens a marker is likelier than it would be."""
    sampling = Sampling(temperature=1.3, seed=seed, logit_bias=((LESS, 4.0),))
    work = Work(
        request=GenerateRequest("m", (), sampling=sampling, tools=TOOLS),
        ids=files.tokenizer.encode(PROMPT),
        stop_ids=files.stop_ids,
        constraint=constraint,
        max_tokens=70,
        model=ALIAS,
    )
    adapter = Vllm()
    call, reader = adapter.call(work), adapter.reader(work)
    request = urllib.request.Request(vllm.url + call.path, call.body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        chunks = [chunk for event in SseReader().feed(answer.read()) if (chunk := reader.chunk(event)) is not None]
    detokenizer = files.tokenizer.detokenizer()
    text = "".join(detokenizer.add(token) for chunk in chunks for token in chunk.ids or ())
    return text, chunks[-1].stop_id == END


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_what_is_sampled_is_in_the_grammar(vllm: VllmUnderTest, files: ModelFiles, name: str) -> None:
    constraint = CONSTRAINTS[name]
    grammar = Grammar.read(gbnf(constraint, declared=TOOLS))
    for seed in range(3):
        text, whole = sampled(vllm, files, constraint, seed)
        assert text
        assert grammar.accepts(text, part=not whole), text
