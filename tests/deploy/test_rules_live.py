"""The rules in a real Prometheus that scrapes a real gateway under load: every expression has data, and what happens is told.

Windows of days are seconds here, and alerts do not wait. Their times are what `promtool` tests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.gateway import Served, serving, settings_for
from support.prometheus import Prometheus, prometheus, scraping
from support.promql import compared, selectors, with_windows, without_thresholds
from support.rules import alerts, hurried, rules
from support.scripted_engine import CLOSE, HEAD, ScriptedEngine, Seen, Step, event, llama_end, llama_token

WINDOW = timedelta(seconds=5)
ON_TIME = {"InterlockTtftBurnFast", "InterlockTtftBurnSlow", "InterlockLoopLag"}  # fire where the machine of the test is busy


def caching(*, keeps: bool = True) -> Callable[[Seen], list[Step]]:
    """An engine that has each prompt in its cache from its second time on, but for the last token; or never, as it keeps none."""
    known: set[tuple[int, ...]] = set()

    def answer(seen: Seen) -> list[Step]:
        prompt = tuple(seen.body["prompt"])
        cached = len(prompt) - 1 if prompt in known else 0
        known.update([prompt] * keeps)
        tokens = [event(llama_token(text, at, prompt_tokens=len(prompt))) for at, text in enumerate("Yes", 1)]
        return [HEAD, *tokens, event(llama_end(3, cached=cached, prompt_tokens=len(prompt))), b"0\r\n\r\n", CLOSE]

    return answer


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[tuple[list[ScriptedEngine], Served]]:
    """One with two engines, that is asked all the time."""
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        engines = [first, second]
        for each in engines:
            each.script = caching()
        entries = [{"id": name, "url": each.url, "kind": "llamacpp"} for name, each in zip("ab", engines, strict=True)]
        async with serving(settings_for("", engines=entries, routing={"policy": "round_robin"})) as served:
            asking = [asyncio.create_task(ask(served, number)) for number in range(2)]
            try:
                yield engines, served
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.wait(asking)


async def ask(served: Served, number: int) -> None:
    while True:
        message = {"role": "user", "content": f"Conversation {number}: {'all of it ' * 40}"}
        with contextlib.suppress(OSError):
            await served.chat(messages=[message], stream=bool(number))
        await asyncio.sleep(0.02)


def fails(seen: Seen) -> list[Step]:
    return [b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", CLOSE]


def expressions() -> set[str]:
    """All that must have data where nothing is wrong."""
    recorded = {rule.expr for rule in rules() if rule.record}
    compares = {each for alert in alerts().values() for each in (*compared(alert.expr), without_thresholds(alert.expr))}
    read = {each for rule in rules() for each in selectors(rule.expr)}
    return read | {with_windows(each, WINDOW) for each in recorded | compares}


def firing(asked: Prometheus) -> set[str]:
    return {each["labels"]["alertname"] for each in asked.api("alerts")["alerts"] if each["state"] == "firing"}


def told(asked: Prometheus, *names: str) -> None:
    """Waits until these fire."""
    asked.until(lambda: firing(asked) >= set(names), what=f"firing: {names}")


@pytest.mark.timeout(180)
async def test_every_expression_has_data_and_what_happens_is_told(tmp_path: Path) -> None:
    files = hurried(tmp_path / "rules", WINDOW, 1)

    async def until(wait: Callable[[], None]) -> None:
        await asyncio.to_thread(wait)

    async with gateway() as (engines, served):
        with prometheus(scraping(served.admin_url, every="500ms", rules=files), tmp_path) as asked:
            await until(lambda: healthy(asked))
            engines[0].script, engines[1].script = fails, caching(keeps=False)
            await until(lambda: told(asked, "InterlockBreakerOpen", "InterlockCacheDrift"))
            assert not firing(asked) & {"InterlockEngineDown", "InterlockErrorsBurnFast", "InterlockErrorsBurnSlow"}
            engines[0].up = False
            await until(lambda: told(asked, "InterlockEngineDown"))
            assert "InterlockModelDown" not in firing(asked)
            engines[1].up = False
            await until(lambda: told(asked, "InterlockModelDown", "InterlockErrorsBurnFast", "InterlockErrorsBurnSlow"))
            served.stop.set()
            await until(lambda: told(asked, "InterlockGone", "InterlockUnreachable"))


def healthy(asked: Prometheus) -> None:
    """Waits until all that is asked for is there; then no rule has failed, and no alert fires."""
    missing = expressions()

    def complete() -> bool:
        missing.difference_update([each for each in missing if asked.query(each)])
        return not missing

    try:
        asked.until(complete, what="data for every expression")
    except AssertionError:
        raise AssertionError(f"no data: {sorted(missing)}") from None
    evaluated = [rule for group in asked.api("rules")["groups"] for rule in group["rules"]]
    assert len(evaluated) == len(rules())
    assert [(rule["name"], rule["lastError"]) for rule in evaluated if rule["health"] != "ok"] == []
    asked.until(lambda: not firing(asked) - ON_TIME, what="no alert where nothing is wrong")
