"""What the router tells of itself is true: metrics, `/fleet` and `/explain` after a load on two engines that cache."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.gateway import Served, sample, serving, settings_for
from support.scripted_engine import CLOSE, HEAD, ScriptedEngine, Seen, Step, chat_chunk, chunked, event, llama_end, llama_token

CHUNK = 16
ANSWER = "Yes"  # a token a letter
WORDS = "all the words that are said in one turn of a conversation between an agent and its model "
TURNS, CONVERSATIONS = 6, 4
DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
FEW_US = 5e-6  # /explain tells times to the microsecond
NEAR = 1e-2  # of ratios of two such times, of which the least is a millisecond


@dataclass
class Caching:
    """An engine that keeps all that it has worked on. `tells`: it says how much of a prompt it had, else 0. `wrote` are the
    numbers that it said, each with the prompt's length."""

    engine: ScriptedEngine
    tells: bool = True
    first_s: float = 0.0
    kept: list[Sequence[int]] = field(default_factory=list)
    wrote: list[tuple[int, int]] = field(default_factory=list)

    def script(self, seen: Seen) -> list[Step]:
        """One answer of some tokens of the model's own."""
        prompt = seen.body["prompt"]
        cached = min(max((_shared(prompt, each) for each in self.kept), default=0), len(prompt) - 1)
        told = cached if self.tells else 0
        answer = [(each, self.engine.tokenizer.encode(each)[0]) for each in ANSWER]
        self.kept.append([*prompt, *(token for _, token in answer[:-1])])
        self.wrote.append((told, len(prompt)))
        tokens = [event(llama_token(text, at, token, len(prompt))) for at, (text, token) in enumerate(answer, 1)]
        end = event(llama_end(len(answer), cached=told, prompt_tokens=len(prompt)))
        return [HEAD, self.first_s, *tokens, end, b"0\r\n\r\n", CLOSE]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@contextlib.asynccontextmanager
async def two(**routing: Any) -> AsyncIterator[tuple[dict[str, Caching], Served]]:
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        engines = {"a": Caching(first), "b": Caching(second)}
        for each in engines.values():
            each.engine.script = each.script
        entries = [{"id": name, "url": each.engine.url, "kind": "llamacpp"} for name, each in engines.items()]
        settings = settings_for("", engines=entries, routing={"chunk_tokens": CHUNK, **routing})
        async with serving(settings) as served:
            while not all(each.ready for each in served.gateway.registry.view("m").engines):
                await served.gateway.registry.changed()
            yield engines, served


async def talk(served: Served, turns: int = TURNS, conversations: int = CONVERSATIONS, name: str = "") -> int:
    """Conversations side by side, each turn with the one before; how many requests that were."""

    async def one(number: int) -> None:
        messages: list[dict[str, Any]] = []
        for turn in range(turns):
            messages.append({"role": "user", "content": f"{name}{number} {turn} {WORDS}"})
            answer = await served.chat(messages=messages)
            assert answer.status_code == 200, answer.text
            messages.append(answer.json()["choices"][0]["message"])

    await asyncio.gather(*map(one, range(conversations)))
    return turns * conversations


async def shown(served: Served, path: str, key: str) -> list[dict[str, Any]]:
    response = await served.client.get(f"{served.admin_url}{path}")
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()[key]
    return found


def of(name: str, engine: str, **labels: str) -> str:
    return sample(f"interlock_{name}", model="m", engine=engine, **labels)


async def test_every_number_is_right_after_a_load_on_two_engines() -> None:
    async with two() as (engines, served):
        requests = await talk(served)
        metrics = await served.metrics()
        fleet = {each["id"]: each for each in await shown(served, "/fleet", "engines")}
        stories = await shown(served, f"/explain?last={requests}", "requests")
    attempts = [attempt for story in stories for attempt in story["attempts"]]
    assert len(attempts) == requests == sum(len(each.wrote) for each in engines.values())
    for name, engine in engines.items():
        assert engine.wrote, "both engines served"
        own = [each for each in reversed(attempts) if each["engine"] == name]
        reported = sorted(cached for cached, _ in engine.wrote)
        assert sorted(each["cached_tokens"] or 0 for each in own) == reported
        assert sorted(each["forecast"]["prompt_tokens"] for each in own) == sorted(tokens for _, tokens in engine.wrote)
        compared = [each for each in own if each["cached_tokens"] is not None]  # it had nothing until it first had something
        predicted = sum(each["forecast"]["cached_tokens"] for each in compared)
        assert metrics[of("predicted_cached_prompt_tokens_total", name)] == predicted > 0
        assert metrics[of("compared_cached_prompt_tokens_total", name)] == sum(reported)
        assert metrics[of("cached_prompt_tokens_total", name)] == sum(reported)
        decisions = {
            why: metrics[of("route_decisions_total", name, reason=why)] for why in ("cheapest", "turn", "panic", "resume")
        }
        assert decisions == {"cheapest": len(own), "turn": 0, "panic": 0, "resume": 0}
        counts = {each: metrics[of("cache_predictions_total", name, result=each)] for each in ("right", "over", "under")}
        apart = [each["forecast"]["cached_tokens"] - each["cached_tokens"] for each in compared]
        near = [max(CHUNK, 0.05 * each["forecast"]["prompt_tokens"]) for each in compared]
        assert counts["right"] == sum(abs(gap) <= bound for gap, bound in zip(apart, near, strict=True))
        assert counts["over"] == sum(gap > bound for gap, bound in zip(apart, near, strict=True))
        assert sum(counts.values()) == metrics[of("cache_prediction_error_ratio_count", name)] == len(compared)
        errors = [abs(gap) / each["forecast"]["prompt_tokens"] for gap, each in zip(apart, compared, strict=True)]
        assert metrics[of("cache_prediction_error_ratio_sum", name)] == pytest.approx(sum(errors))
        ratios = [each["ttft_s"] / max(each["forecast"]["ttft_s"], 0.001) for each in own]
        assert metrics[of("predicted_ttft_ratio_count", name)] == len(own)
        assert metrics[of("predicted_ttft_ratio_sum", name)] == pytest.approx(sum(ratios), rel=NEAR)
        assert metrics[of("cache_prediction_drift", name)] == 0
        told = fleet[name]["predictions"]
        assert (told["right"], told["over"], told["under"]) == (counts["right"], counts["over"], counts["under"])
        assert told["state"] in ("too_few", "as_predicted")
        believed = fleet[name]["router"]
        longest = max(tokens for _, tokens in engine.wrote) // CHUNK
        assert believed["index_entries"] >= longest
        assert (believed["pinned_entries"], believed["pending_prefill_s"]) == (0, 0)
        assert believed["capacity_tokens"] > 0
        assert believed["prefill_tokens_per_s"] > 0
        assert believed["slowness"] > 0


async def test_a_conversation_that_stays_is_predicted_to_a_chunk() -> None:
    """One alone, on one engine: each turn after the first finds all that was before, and both say so."""
    async with two() as (_, served):
        await talk(served, turns=8, conversations=1)
        stories = await shown(served, "/explain?last=8", "requests")
    home = {attempt["engine"] for story in stories for attempt in story["attempts"]}
    assert len(home) == 1
    for story in stories[:-1]:
        (attempt,) = story["attempts"]
        assert 0 <= attempt["cached_tokens"] - attempt["forecast"]["cached_tokens"] < 2 * CHUNK
        assert attempt["cached_tokens"] > 0.3 * attempt["forecast"]["prompt_tokens"]


async def test_explain_says_why_not_the_other_engine() -> None:
    async with two() as (_, served):
        await talk(served, turns=3, conversations=1)
        (story,) = await shown(served, "/explain?last=1", "requests")
    (attempt,) = story["attempts"]
    home, other = attempt["considered"]
    assert home["id"] == attempt["engine"] != other["id"]
    forecast = attempt["forecast"]
    parts = forecast["wait_s"] + forecast["memory_s"] + forecast["standing_s"] - forecast["shared_s"]
    made_s = forecast["prefill_s"] + forecast["eviction_s"]
    assert home["cost_s"] == pytest.approx(parts + forecast["kappa"] * made_s, abs=FEW_US)
    assert home["cost_s"] < other["cost_s"]
    assert forecast["ttft_s"] == pytest.approx(sum(forecast[term] for term in ("wait_s", "memory_s", "prefill_s")), abs=FEW_US)
    assert forecast["prefill_s"] > 0
    assert attempt["ttft_s"] <= attempt["lasted_s"]


async def test_the_time_is_measured_from_the_attempt_to_its_first_token() -> None:
    async with two() as (engines, served):
        for each in engines.values():
            each.first_s = 0.2
        await talk(served, turns=1, conversations=1)
        ((attempt,),) = [story["attempts"] for story in await shown(served, "/explain?last=1", "requests")]
        ratio = (await served.metrics())[of("predicted_ttft_ratio_sum", attempt["engine"])]
    assert 0.2 <= attempt["ttft_s"] <= attempt["lasted_s"]
    assert ratio == pytest.approx(attempt["ttft_s"] / attempt["forecast"]["ttft_s"], rel=NEAR)


async def test_an_engine_whose_cache_is_switched_off_is_an_alarm() -> None:
    async with two() as (engines, served):
        await talk(served, turns=3, conversations=2)
        for each in engines.values():
            each.tells = False
        with capture_logs() as logs:
            await talk(served, turns=40, conversations=1, name="later")
        metrics = await served.metrics()
        fleet = {each["id"]: each["predictions"] for each in await shown(served, "/fleet", "engines")}
    alarms = [each for each in logs if "likely" in each]
    assert len(alarms) >= 1
    assert len({each["engine"] for each in alarms}) == len(alarms), "one line an engine"
    for alarm in alarms:
        assert (alarm["log_level"], alarm["model"]) == ("warning", "m")
        assert alarm["reported_cached_tokens"] < 0.75 * alarm["predicted_cached_tokens"]
        assert metrics[of("cache_prediction_drift", alarm["engine"])] == 1
        assert fleet[alarm["engine"]]["state"] == "drifts"
        assert metrics[of("cache_predictions_total", alarm["engine"], result="over")] > 0


async def test_engines_that_do_not_tell_are_no_alarm_and_are_shown_so() -> None:
    """Of an engine that templates itself nothing says that a missing number is 0."""
    async with ScriptedEngine().running() as engine:
        engine.script = lambda _: [HEAD, *map(event, [chat_chunk({"content": "Hi"}), chat_chunk({}, "stop")]), DONE]
        with capture_logs() as logs:
            async with serving(settings_for(engine.url, kind="openai")) as served:
                await talk(served, turns=8)
                metrics = await served.metrics()
                (entry,) = await shown(served, "/fleet", "engines")
                stories = await shown(served, "/explain?last=40", "requests")
    assert not [each for each in logs if "likely" in each]
    assert entry["predictions"]["state"] == "not_told"
    assert (entry["predictions"]["right"], entry["predictions"]["over"]) == (0, 0)
    assert all(attempt["cached_tokens"] is None for story in stories for attempt in story["attempts"])
    assert any(attempt["forecast"]["cached_tokens"] for story in stories for attempt in story["attempts"])
    assert of("cache_prediction_drift", "e") not in metrics
    assert metrics[of("predicted_cached_prompt_tokens_total", "e")] == 0


@pytest.mark.parametrize(
    ("policy", "why"), [("round_robin", "turn"), ("least_outstanding", "least_busy"), ("session", "session")]
)
async def test_each_policy_has_its_word_and_compares_no_costs(policy: str, why: str) -> None:
    async with two(policy=policy) as (engines, served):
        for _ in range(4):
            assert (await served.chat(prompt_cache_key="mine")).status_code == 200
        metrics = await served.metrics()
        stories = await shown(served, "/explain?last=4", "requests")
    assert {attempt["why"] for story in stories for attempt in story["attempts"]} == {why}
    assert sum(metrics[of("route_decisions_total", name, reason=why)] for name in engines) == 4
    (attempt,) = stories[0]["attempts"]
    assert [each["cost_s"] for each in attempt["considered"]] == [None, None]
    assert attempt["forecast"]["prefill_s"] > 0


async def test_prompts_that_an_engine_makes_are_compared_by_its_own_counts() -> None:
    """With `format: engine` tokens are estimated, until some were counted."""
    async with ScriptedEngine().running() as engine:
        said: list[int] = []

        def script(seen: Seen) -> list[Step]:
            tokens = sum(len(each["content"]) for each in seen.body["messages"]) // 4
            cached = said[-1] if said else 0
            said.append(tokens)
            usage = {"prompt_tokens": tokens, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
            end = {**chat_chunk({}), "choices": [], "usage": usage}
            steps = [chat_chunk({"role": "assistant", "content": "Hi"}), chat_chunk({}, "stop"), end]
            return [HEAD, *map(event, steps), chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]

        engine.script = script
        async with serving(settings_for(engine.url, kind="openai")) as served:
            messages: list[dict[str, str]] = []
            for turn in range(6):
                messages.append({"role": "user", "content": f"{turn} " + WORDS * 60})
                assert (await served.chat(messages=messages)).status_code == 200
            stories = await shown(served, "/explain?last=6", "requests")
            (entry,) = await shown(served, "/fleet", "engines")
    for story in stories[:-1]:
        (attempt,) = story["attempts"]
        assert attempt["cached_tokens"] > 0
        assert abs(attempt["forecast"]["cached_tokens"] - attempt["cached_tokens"]) < 0.15 * attempt["forecast"]["prompt_tokens"]
    assert entry["predictions"]["over"] == 0


async def test_no_client_makes_series() -> None:
    async with two() as (_, served):
        await talk(served, turns=2)
        before = set(await served.metrics())
        for number in range(50):
            await served.client.post(
                "/v1/chat/completions",
                json={"model": f"m{number}", "messages": [{"role": "user", "content": "x"}]},
                headers={"x-session-affinity": f"s{number}", "x-session-id": f"s{number}"},
            )
            answer = await served.chat(prompt_cache_key=f"key {number}", user=f"u{number}")
            assert answer.status_code == 200
        after = set(await served.metrics())
    new = {each for each in after - before if "route" in each or "cache" in each or "ttft" in each}
    assert not new
