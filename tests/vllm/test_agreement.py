"""The same model on vLLM and on llama.cpp, from the same prompt ids: both were given ours, and the answers agree.

With weights of 32 bits in both they agree but for rounding. With the 4-bit file itself llama.cpp rounds activations to 8 bits, so
that near ties fall differently.
"""

import json
import random
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.llamacpp import running_engine, smollm2_file
from support.vllm import ALIAS, HOME, VllmUnderTest
from support.vocabulary import fixed_clock

from engines.base import Call, Engine, TokenLogprob, Work
from engines.llamacpp import LlamaCpp
from engines.vllm import Vllm
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.prompter import Prompter
from gateway.prompt.source import read_model
from gateway.request import GenerateRequest, Message, Sampling
from gateway.wire.sse import SseReader

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

QUESTIONS = (
    "Name three colours of the rainbow.",
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
    "Translate 'good morning' into French.",
    "Explain what a prime number is.",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
)
ALTERNATIVES = 5
MAX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers first differ: the position, and each engine's entry there."""

    at: int
    vllm: TokenLogprob
    llamacpp: TokenLogprob


@pytest.fixture(scope="module")
def files(vllm: VllmUnderTest) -> ModelFiles:
    return read_model(vllm.model)


def answer(url: str, call: Call) -> bytes:
    request = urllib.request.Request(url + call.path, call.body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as said:
        return bytes(said.read())


def generated(url: str, engine: Engine, ids: tuple[int, ...]) -> tuple[list[TokenLogprob], int, bytes]:
    """What a greedy answer's tokens were, how many prompt tokens the engine counted, and the raw stream."""
    sampling = Sampling(temperature=0.0)
    request = GenerateRequest("m", (), sampling=sampling, logprobs=ALTERNATIVES)
    work = Work(request=request, ids=ids, stop_ids=frozenset({2}), max_tokens=MAX_TOKENS, model=ALIAS)
    raw = answer(url, engine.call(work))
    reader = engine.reader(work)
    chunks = [chunk for event in SseReader().feed(raw) if (chunk := reader.chunk(event)) is not None]
    assert reader.done
    usage = chunks[-1].usage
    assert usage is not None
    return [entry for chunk in chunks for entry in chunk.logprobs], usage.prompt_tokens, raw


def prompt_ids(files: ModelFiles, question: str) -> tuple[int, ...]:
    prompter = Prompter(files, tools="native", syntax=None, clock=fixed_clock)
    return prompter.prompt(GenerateRequest("m", (Message("user", question),))).ids


def first_prompt_ids(raw: bytes) -> Any:
    """The prompt as vLLM says that it was given."""
    first = SseReader().feed(raw)[0]
    return json.loads(first.data)["choices"][0]["prompt_token_ids"]


def first_difference(one: list[TokenLogprob], other: list[TokenLogprob]) -> Difference | None:
    pairs = zip(one, other, strict=False)
    return next((Difference(at, *pair) for at, pair in enumerate(pairs) if pair[0].id != pair[1].id), None)


@pytest.mark.parametrize(
    ("file", "greatest_gap", "greatest_drift"),
    [pytest.param(HOME / "smollm2.gguf", 0.02, 0.005, id="32-bit"), pytest.param(smollm2_file(), 0.6, 0.2, id="4-bit")],
)
def test_greedy_answers_agree_but_for_near_ties(
    vllm: VllmUnderTest,
    files: ModelFiles,
    capsys: pytest.CaptureFixture[str],
    *,
    file: Path,
    greatest_gap: float,
    greatest_drift: float,
) -> None:
    """The gap is between the two engines' choices where they first differ, the drift of equal tokens' log probabilities."""
    gaps, drifts = [], []
    lines = [""]
    with running_engine(file=file, slots=1, context_tokens=2048) as llamacpp:
        for question in QUESTIONS:
            ids = prompt_ids(files, question)
            by_vllm, counted_by_vllm, raw = generated(vllm.url, Vllm(), ids)
            by_llamacpp, counted_by_llamacpp, _ = generated(llamacpp.url, LlamaCpp(), ids)
            assert first_prompt_ids(raw) == list(ids)
            assert counted_by_vllm == counted_by_llamacpp == len(ids)
            found = first_difference(by_vllm, by_llamacpp)
            assert found is not None or len(by_vllm) == len(by_llamacpp)
            end = len(by_vllm) if found is None else found.at
            drifts += [abs(one.logprob - other.logprob) for one, other in zip(by_vllm[:end], by_llamacpp[:end], strict=True)]
            gaps += [] if found is None else [gap(found)]
            lines.append(f"{question} {end} of {len(by_vllm)} tokens agree{told(found, files) if found else ''}")
    drift = sum(drifts) / len(drifts)
    lines.append(
        f"{len(QUESTIONS) - len(gaps)} of {len(QUESTIONS)} answers are the same; the largest gap is {max(gaps, default=0):.3f}"
    )
    lines.append(f"the log probabilities of {len(drifts)} equal tokens differ by {drift:.4f}, at most {max(drifts):.4f}")
    with capsys.disabled():
        print("\n".join(lines))
    assert max(gaps, default=0) < greatest_gap
    assert drift < greatest_drift


def gap(found: Difference) -> float:
    """How much less likely than its own choice an engine finds the other's, which is among its likeliest; the larger of both."""
    gaps = []
    for mine, others in ((found.vllm, found.llamacpp), (found.llamacpp, found.vllm)):
        likeliest = dict(mine.top)
        assert others.id in likeliest
        gaps.append(likeliest[mine.id] - likeliest[others.id])
    return max(gaps)


def told(found: Difference, files: ModelFiles) -> str:
    words = [repr(files.tokenizer.text_of(entry.id)) for entry in (found.vllm, found.llamacpp)]
    odds = [{token: round(value, 2) for token, value in entry.top[:2]} for entry in (found.vllm, found.llamacpp)]
    return f"; then vLLM {words[0]} {odds[0]}, llama.cpp {words[1]} {odds[1]}"


PIECES = (
    *("the ", "The", "don't", "  ", "\n\n", "\t", "0", "1234", "3.14", "{}", '"a":', "_x", "==", "http://a.b/c?d=e", "\r\n"),
    *("é", "🦙", "東京", "ß", "naïve", "été", "…", "a\u0301", "👩‍👩‍👧", "Ünï", "\u00a0"),
    *("<|im_start|>", "<|im_end|>", "<gh_stars>"),
)


def texts(count: int) -> list[str]:
    chance = random.Random(11)
    return ["".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 20))) for _ in range(count)]


def test_vllm_tokenises_as_we_do(vllm: VllmUnderTest, files: ModelFiles) -> None:
    adapter = Vllm()
    wrong = [
        text
        for text in texts(300)
        if adapter.token_ids(answer(vllm.url, adapter.tokenize(text, ALIAS))) != files.tokenizer.encode(text)
    ]
    assert not wrong


CONVERSATIONS = (
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "Hi\n"), ("assistant", "Hello 🦙"), ("user", "  and? ")],
    [("user", "👩‍👩‍👧 été"), ("assistant", ""), ("user", "\ttabs\n\n")],
)


@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_vllm_renders_the_same_prompt(vllm: VllmUnderTest, files: ModelFiles, turns: list[tuple[Any, str]]) -> None:
    prompter = Prompter(files, tools="native", syntax=None, clock=fixed_clock)
    ours = prompter.prompt(GenerateRequest("m", tuple(Message(role, text) for role, text in turns)))
    messages = [{"role": role, "content": text} for role, text in turns]
    asked = Call("/tokenize", json.dumps({"model": ALIAS, "messages": messages, "add_generation_prompt": True}).encode())
    assert Vllm().token_ids(answer(vllm.url, asked)) == ours.ids
