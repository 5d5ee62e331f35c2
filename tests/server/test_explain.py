"""What `/explain` tells of a request, and how much of it is kept."""

import asyncio
import tracemalloc
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs
from support.events import DONE, MADE
from support.gateway import Served, scripted, serving, settings_for
from support.scripted_engine import HANG, HEAD, RESET, ScriptedEngine, completion, event, llama_token

from gateway.events import (
    AttemptFailed,
    AttemptStarted,
    CacheTold,
    ClientGone,
    Event,
    Finished,
    FirstToken,
    NotRetried,
    Prefilled,
    Received,
)
from gateway.observe.explain import KEPT_REQUESTS, Explain
from gateway.routing.view import EngineView, Forecast, Terms

VIEW = EngineView("e", True)
FORECAST = Forecast(1000, 896, 0.75, Terms(0.5, 0.0, 0.25, 0.125, 0.0625, 2.0), costs=(("b", 3.0), ("a", 1.5), ("e", 1.25)))


async def explained(served: Served, query: str) -> list[dict[str, Any]]:
    response = await served.client.get(f"{served.admin_url}/explain?{query}")
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["requests"]
    return found


def done(request_id: str, **changed: Any) -> Finished:
    fields = {name: getattr(DONE, name) for name in Finished.__struct_fields__}
    return Finished(**{**fields, "request_id": request_id, **changed})


def floats(told: Any) -> list[float]:
    if isinstance(told, dict | list):
        return [each for part in (told.values() if isinstance(told, dict) else told) for each in floats(part)]
    return [told] if isinstance(told, float) else []


async def test_attempts_say_which_choice_they_make_and_times_have_no_noise() -> None:
    async with ScriptedEngine().running() as engine:
        engine.script = lambda seen: completion("Hi")
        async with serving(settings_for(engine.url)) as served:
            assert (await served.chat(n=2)).status_code == 200
            (story,) = await explained(served, "last=1")
            fleet = (await served.client.get(f"{served.admin_url}/fleet")).json()
    assert sorted((each["attempt"], each["choice"]) for each in story["attempts"]) == [(1, 0), (2, 1)]
    assert len(floats([story, fleet])) > 20
    assert [each for each in floats([story, fleet]) if each != round(each, 6)] == []


async def test_a_request_is_told_with_each_attempt() -> None:
    """The first engine breaks off before its first token; the second serves."""
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        first.script = lambda seen: [HEAD, RESET]
        second.script = lambda seen: completion("Hi")
        urls = {"a": first.url, "b": second.url}
        settings = settings_for("", engines=[{"id": name, "url": url, "kind": "llamacpp"} for name, url in urls.items()])
        async with serving(settings) as served:
            answer = await served.chat()
            request_id = answer.headers["x-request-id"]
            (story,) = await explained(served, f"request_id={request_id}")
            assert await explained(served, "last=1") == [story]
    assert answer.status_code == 200
    assert {
        name: story[name] for name in ("request_id", "model", "outcome", "reason", "status", "streamed", "finish_reason")
    } == {
        "request_id": request_id,
        "model": "m",
        "outcome": "ok",
        "reason": None,
        "status": 200,
        "streamed": False,
        "finish_reason": "stop",
    }
    assert (story["retries"], story["resumes"], story["attempts_left_out"]) == (1, 0, 0)
    assert 0 < story["timings"]["ttft_s"] <= story["timings"]["duration_s"] < 20
    assert story["timings"]["queue_s"] == 0
    failed, served_by = story["attempts"]
    assert (failed["attempt"], failed["engine"], failed["why"], failed["outcome"]) == (1, "a", "cheapest", "failed")
    assert failed["reason"] == "broke"
    assert (served_by["attempt"], served_by["engine"], served_by["why"], served_by["outcome"]) == (2, "b", "elsewhere", "served")
    assert [each["id"] for each in failed["considered"]] == ["a", "b"]
    assert [each["id"] for each in served_by["considered"]] == ["b", "a"]
    assert {each["id"]: each["ready"] for each in served_by["considered"]} == {"a": False, "b": True}
    assert 0 <= failed["started_s"] <= served_by["started_s"]
    assert failed["lasted_s"] >= 0
    assert failed["stopped"] is served_by["stopped"] is None


async def test_why_no_attempt_followed() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), 0.05, RESET]
        await served.chat(stream=True)
        (story,) = await explained(served, "last=1")
    (attempt,) = story["attempts"]
    assert (story["outcome"], attempt["outcome"]) == ("upstream_error", "failed")
    assert attempt["stopped"] is not None


async def test_a_running_request_is_told_by_its_id_and_is_not_among_the_last() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG]
        async with served.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
            (story,) = await explained(served, f"request_id={response.headers['x-request-id']}")
            assert await explained(served, "last=5") == []
        assert (story["outcome"], story["timings"], story["attempts"][0]["outcome"]) == (None, None, "running")
        async with asyncio.timeout(10):
            while not (last := await explained(served, "last=5")):
                await asyncio.sleep(0.01)
    assert [(each["outcome"], each["attempts"][0]["outcome"]) for each in last] == [("client_gone", "client_gone")]


BODY = {"model": "m", "messages": [{"role": "user", "content": "canary-words"}]}


async def test_it_holds_no_text_of_the_client() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("canary-answer")
        for body in (BODY, {**BODY, "model": "canary-model"}, {**BODY, "n": "canary-field"}):
            await served.client.post("/v1/chat/completions?canary-query=1", json=body, headers={"x-request-id": "canary-id"})
        response = await served.client.get(f"{served.admin_url}/explain?last=10")
        stories = response.json()["requests"]
    assert [each["model"] for each in stories] == ["m", "unknown", "m"]
    assert "canary" not in response.text


@pytest.mark.parametrize(
    ("query", "status", "code", "param"),
    [
        ("", 400, None, "request_id"),
        ("?other=1", 400, None, "request_id"),
        ("?request_id=r&last=1", 400, None, "last"),
        ("?last=0", 400, None, "last"),
        ("?last=-1", 400, None, "last"),
        ("?last=1001", 400, None, "last"),
        ("?last=1e2", 400, None, "last"),
        ("?last=", 400, None, "last"),
        (f"?last={'9' * 5000}", 400, None, "last"),
        ("?last=%D9%A3", 400, None, "last"),
        ("?request_id=", 404, "request_not_found", "request_id"),
        ("?request_id=%0A%00x", 404, "request_not_found", "request_id"),
        (f"?request_id={'r' * 5000}", 404, "request_not_found", "request_id"),
    ],
)
async def test_a_wrong_question_names_the_parameter(query: str, status: int, code: str | None, param: str) -> None:
    async with scripted() as (_, served):
        response = await served.client.get(f"{served.admin_url}/explain{query}")
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert len(error["message"]) < 250


def test_the_last_are_kept_and_no_more() -> None:
    explain = Explain(lambda: 5.0)
    for number in range(KEPT_REQUESTS + 50):
        explain(Received(f"r{number}", "d", 1.0))
        explain(done(f"r{number}"))
    kept = [story.request_id for story in explain.last(2 * KEPT_REQUESTS)]
    assert kept == [f"r{number}" for number in range(KEPT_REQUESTS + 49, 49, -1)]
    assert explain.story("r49") is None
    assert explain.story("r50") is not None


def test_memory_is_bounded_whatever_happens() -> None:
    """Each is tried a hundred times among a hundred engines."""
    explain = Explain(lambda: 5.0, kept=200)
    engines = tuple(EngineView(f"engine-{number}", True, weights="w" * 1000) for number in range(100))

    def requests(name: str) -> None:
        for number in range(200):
            explain(Received(f"{name}{number}", "d", 1.0))
            for attempt in range(1, 101):
                costs = tuple((f"engine-{engine}", engine + 0.5) for engine in range(84, 100))
                forecast = Forecast(attempt + 5000, 4000, attempt + 0.5, Terms(attempt + 0.5), costs=costs)
                explain(AttemptStarted(f"{name}{number}", attempt, "engine-99", "m", 2.0, "panic", engines, forecast=forecast))
                explain(Prefilled(f"{name}{number}", attempt, "engine-99", "m", attempt + 0.25, forecast))
                explain(CacheTold(f"{name}{number}", attempt, "engine-99", "m", attempt + 3000, forecast))
                explain(AttemptFailed(f"{name}{number}", attempt, "engine-99", "gone"))
            explain(replace(MADE, request_id=f"{name}{number}", inter_token_s=((0.1, 1),) * 100))
            explain(done(f"{name}{number}"))

    tracemalloc.start()
    requests("first")
    story = explain.story("first0")
    assert story is not None
    assert (len(story.attempts), story.attempts_left_out) == (16, 84)
    assert [len(attempt.considered) for attempt in story.attempts] == [16] * 4 + [0] * 12
    assert [attempt.left_out for attempt in story.attempts] == [84] * 4 + [100] * 12
    assert story.attempts[0].considered[0].id == "engine-99"
    full, _ = tracemalloc.get_traced_memory()
    requests("more")
    later, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{full / 200:.0f} bytes a request at the most")
    assert full < 200 * 30_000
    assert later < 1.2 * full


def test_what_was_expected_of_an_attempt_stands_beside_what_came() -> None:
    explain = Explain(lambda: 5.0)
    views = tuple(EngineView(name, name != "d") for name in ("a", "b", "c", "d", "e"))
    explain(Received("r", "d", 1.0))
    explain(AttemptStarted("r", 1, "e", "m", 2.0, "cheapest", views, forecast=FORECAST))
    story = explain.story("r")
    assert story is not None
    (attempt,) = story.attempts
    assert (attempt.ttft_s, attempt.cached_tokens) == (None, None)
    assert attempt.forecast is not None
    assert asdict(attempt.forecast) == {
        "prompt_tokens": 1000,
        "cached_tokens": 896,
        "ttft_s": 0.75,
        "wait_s": 0.5,
        "memory_s": 0.0,
        "prefill_s": 0.25,
        "eviction_s": 0.125,
        "standing_s": 0.0625,
        "kappa": 2.0,
        "shared_s": 0.0,
    }
    assert [(each.id, each.cost_s) for each in attempt.considered] == [
        ("e", 1.25),
        ("a", 1.5),
        ("b", 3.0),
        ("c", None),
        ("d", None),
    ]
    explain(Prefilled("r", 1, "e", "m", 0.5, FORECAST))
    explain(CacheTold("r", 1, "e", "m", 880, FORECAST))
    explain(done("r"))
    (over,) = explain.last(1)
    assert (over.attempts[0].ttft_s, over.attempts[0].cached_tokens) == (0.5, 880)


def test_what_followed_a_failure_is_counted_while_the_request_runs() -> None:
    explain = Explain(lambda: 5.0)
    explain(Received("r", "d", 1.0))
    explain(AttemptStarted("r", 1, "a", "m", 2.0, "least_busy"))
    explain(AttemptStarted("r", 2, "b", "m", 2.0, "least_busy"))  # another choice
    explain(AttemptFailed("r", 1, "a", "gone"))
    explain(AttemptStarted("r", 3, "b", "m", 2.0, "resume", retry=True))
    explain(AttemptFailed("r", 2, "b", "gone"))
    explain(AttemptStarted("r", 4, "a", "m", 2.0, "panic", retry=True))
    story = explain.story("r")
    assert story is not None
    assert (story.outcome, story.retries, story.resumes, len(story.attempts)) == (None, 2, 1, 4)


def test_running_requests_are_bounded_too() -> None:
    explain = Explain(lambda: 5.0)
    for number in range(5000):
        explain(Received(f"r{number}", "d", 1.0))
    assert explain.story("r0") is None
    assert explain.story("r4999") is not None
    explain(done("r0"))  # it ends all the same
    assert [each.request_id for each in explain.last(5)] == ["r0"]


ids = st.sampled_from(["r", "s"])
numbers = st.integers(1, 3)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Received, ids, st.just("d"), st.just(1.0)),
    st.builds(AttemptStarted, ids, numbers, st.just("e"), st.just("m"), st.just(2.0), st.just("only"), st.just((VIEW,))),
    st.builds(AttemptFailed, ids, numbers, st.just("e"), st.just("gone")),
    st.builds(NotRetried, ids, numbers, st.just("budget")),
    st.builds(ClientGone, ids, numbers, st.just("e")),
    st.builds(FirstToken, ids, numbers, st.just("e"), st.just("m"), st.just(0.1)),
    st.builds(Prefilled, ids, numbers, st.just("e"), st.just("m"), st.just(0.1), st.sampled_from([None, FORECAST])),
    st.builds(CacheTold, ids, numbers, st.just("e"), st.just("m"), st.sampled_from([None, 5]), st.just(FORECAST)),
    ids.map(done),
)


@given(st.lists(events, max_size=30))
def test_any_order_of_events_is_taken(happened: list[Event]) -> None:
    """Nothing raises; a request that ended is over, and none of its attempts runs."""
    explain = Explain(lambda: 5.0)
    with capture_logs():
        for each in happened:
            explain(each)
    over = {each.request_id for each in happened if isinstance(each, Finished)}
    assert {story.request_id for story in explain.last(10)} == over
    for story in explain.last(10):
        assert story.outcome == "ok"
        assert all(attempt.outcome != "running" and attempt.lasted_s is not None for attempt in story.attempts)
