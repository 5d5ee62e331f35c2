"""The four tests on a real engine: does the model do what its profile says of it?

Answers are greedy where two of them are compared, and sampled with fixed seeds where a rate is measured.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from msgspec.structs import replace

from engines.base import Engine
from gateway.checks.asking import ASK_S, Asker, Target, Told
from gateway.checks.base import Case, Figures, Subject
from gateway.checks.rate import Rate
from gateway.errors import BadRequest, GatewayError, shown
from gateway.prompt.profile import CheckName
from gateway.request import GenerateRequest, Message, Sampling, ToolChoice, ToolSpec
from gateway.upstream import Upstream

TOKENS = 128
THOUGHT_TOKENS = 1024
TRIES = 8
_GREEDY = Sampling(temperature=0.0)
_QUESTIONS = ("Name the capital of France in one word.", "Say hello, and nothing else.", "What is 2 + 2?")
_PUZZLE = "A bat and a ball cost 1.10 together. The bat costs 1.00 more than the ball. What does the ball cost? Think first."
_CITY: Mapping[str, str] = {"type": "string", "description": "The city's name"}
_WEATHER = ToolSpec(
    "get_weather", "The weather of a city now", {"type": "object", "properties": {"city": _CITY}, "required": ["city"]}
)
_ADD = ToolSpec(
    "add",
    "The sum of two numbers",
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
)
_TASKS = ("What is the weather in Paris?", "Is it raining in Kraków now?", "How much is 17 plus 25?", "Add 3.5 and 4.")


@dataclass(slots=True)
class Live:
    """What a live check came to: its cases, and what was measured."""

    cases: list[Case] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)


async def check_live(subject: Subject, target: Target) -> Live:
    """Runs all four. Raises an EngineError where the engine does not say that it can serve; what it does then fails the case."""
    live = Live()
    async with Upstream() as upstream:
        asker = Asker(upstream, target, subject)
        await asker.reach()
        for test in (_template, _reasoning, _stop):
            live.cases += [case async for case in test(subject, asker)]
        await _tool_call(subject, asker, live)
    return live


async def _template(subject: Subject, asker: Asker) -> AsyncIterator[Case]:
    """The engine's own ids of our prompts are ours."""
    for number, question in enumerate(_QUESTIONS, 1):
        name = f"live: the engine's ids of prompt {number}"
        prompt = subject.prompter.prompt(_asked(question))
        try:
            theirs = await asker.ids(prompt.text)
        except GatewayError as error:
            yield _failed("template", name, error)
            continue
        if theirs is None:
            yield Case("template", name, "skipped", "the engine has no way to tell its token ids")
        elif theirs == prompt.ids:
            yield Case("template", name, "passed")
        else:
            at = next((at for at, pair in enumerate(zip(theirs, prompt.ids, strict=False)) if pair[0] != pair[1]), len(theirs))
            yield Case(
                "template",
                name,
                "failed",
                f"from token {at} on the engine has {theirs[at : at + 4]}, the gateway {prompt.ids[at : at + 4]}: the engine "
                "runs another model than the profile is of",
                "serve the model that the profile was derived from, or derive a profile of the one that is served",
            )


async def _reasoning(subject: Subject, asker: Asker) -> AsyncIterator[Case]:
    """A prompt that asks for a thought: it is told from the answer."""
    name = "live: a thought is told from the answer"
    request = replace(_asked(_PUZZLE), max_tokens=THOUGHT_TOKENS, template_kwargs={})
    try:
        told = await asker.ask(request)
    except (GatewayError, TimeoutError) as error:
        yield _failed("reasoning", name, error)
        return
    closer = subject.format.thought_closer
    if closer and closer in told.content:
        yield Case(
            "reasoning",
            name,
            "failed",
            f"{shown(closer)} stands in the content: the thought was read as the answer",
            "name the format that the model writes (`format` in the profile)",
        )
    elif told.reasoning and told.reason == "length":
        yield Case("reasoning", name, "skipped", f"the model did not end its thought within {THOUGHT_TOKENS} tokens")
    elif told.reasoning and not told.content.strip():
        yield Case(
            "reasoning",
            name,
            "failed",
            "the whole answer was read as a thought",
            "see how the generation prompt leaves the thought (`interlock onboard`), and name the format that the model writes",
        )
    else:
        yield Case("reasoning", name, "passed", "" if told.reasoning or not closer else "the model did not think")


async def _stop(subject: Subject, asker: Asker) -> AsyncIterator[Case]:
    """The gateway's stop tokens and the model's own end the same answers at the same place."""
    for number, question in enumerate(_QUESTIONS, 1):
        name = f"live: answer {number} ends as with the model's own stop tokens"
        try:
            ours = await asker.ask(_asked(question))
            native = await asker.ask(_asked(question), subject.files.stop_ids)
        except (GatewayError, TimeoutError) as error:
            yield _failed("stop", name, error)
            continue
        yield _compared(name, ours, native)


def _compared(name: str, ours: Told, native: Told) -> Case:
    text, other = ours.reasoning + ours.content, native.reasoning + native.content
    if ours.failures["stop_leak"]:
        seen, fix = "a stop token's text stands in the answer", "let the engine end there too, or look at how it was started"
    elif ours.reason == native.reason == "length":
        return Case("stop", name, "skipped", f"neither answer ended within {TOKENS} tokens")
    elif ours.reason == "length":
        seen, fix = (
            f"the answer ran on for {TOKENS} tokens where the model's own ends it",
            "add that token to `stop` in the profile",
        )
    elif not other.startswith(text):
        seen = f"{shown(text[-40:])} with the gateway's stop tokens, {shown(other[: len(text)][-40:])} with the model's own"
        fix = "see that the engine answers the same prompt the same way twice (temperature 0)"
    else:
        return Case("stop", name, "passed")
    return Case("stop", name, "failed", seen, fix)


async def _tool_call(subject: Subject, asker: Asker, live: Live) -> None:
    """How often the model's calls can be read, as it makes them and under a grammar, and what the grammar costs."""
    modes = _modes(subject, asker.target.engine)
    if not modes:
        live.cases.append(Case("tool_call", "live: calls", "skipped", "the model makes no calls, and none can be enforced"))
    for mode, choice in modes.items():
        name = f"live: {mode} calls"
        try:
            told = [await asker.ask(_task(number, choice)) for number in range(TRIES)]
        except (GatewayError, TimeoutError) as error:
            live.cases.append(_failed("tool_call", name, error))
            continue
        figures = _figures(mode, told)
        live.figures.append(figures)
        live.cases.append(_judged(name, figures))


def _modes(subject: Subject, engine: Engine) -> Mapping[str, ToolChoice]:
    """How the model can be had to call: by its template alone, and by a grammar."""
    modes = {"native": ToolChoice(), "constrained": ToolChoice("required")}
    found = {}
    for mode, choice in modes.items():
        try:
            constrained = subject.prompter.prompt(_task(0, choice)).constraint is not None
        except BadRequest:
            continue
        if constrained == (mode == "constrained") and (not constrained or "calls" in engine.traits.constraints):
            found[mode] = choice
    return found


def _figures(mode: str, told: Sequence[Told]) -> Figures:
    called = [each for each in told if (each.calls or each.failures) and each.reason != "length"]  # one that was cut says nothing
    failed = sum(bool(each.failures) for each in called)
    spent = [each.seconds / each.tokens for each in told if each.tokens]
    return Figures(mode, len(told), len(called), Rate(failed, len(called)), median(spent) if spent else None)


def _judged(name: str, figures: Figures) -> Case:
    """A grammar allows no call that cannot be read; of a model's own more than half must be, for certain."""
    failed = figures.failed
    if not figures.called:
        return Case("tool_call", name, "skipped", f"the model made no call in {figures.asked} answers")
    if (figures.mode == "constrained" and failed.hits) or failed.low > 0.5:
        return Case(
            "tool_call",
            name,
            "failed",
            f"{failed.hits} of {failed.tries} answers with calls cannot be read or do not fit their schema "
            f"(95 %: {failed.low:.0%} to {failed.high:.0%})",
            "name the format that the model writes, or set `tools: constrained`",
        )
    return Case("tool_call", name, "passed")


def _task(number: int, choice: ToolChoice) -> GenerateRequest:
    asked = _asked(_TASKS[number % len(_TASKS)])
    sampling = Sampling(temperature=0.7, seed=number + 1)
    return replace(asked, tools=(_WEATHER, _ADD), tool_choice=choice, sampling=sampling, parallel_tool_calls=False)


def _asked(question: str) -> GenerateRequest:
    """Without a thought, where the template can say so."""
    switch = {"enable_thinking": False}
    return GenerateRequest("", (Message("user", question),), sampling=_GREEDY, max_tokens=TOKENS, template_kwargs=switch)


def _failed(test: CheckName, name: str, error: Exception) -> Case:
    said = error.message if isinstance(error, GatewayError) else f"the engine did not answer within {ASK_S:g} s"
    return Case(test, name, "failed", said, "See that the engine runs and serves this model.")
