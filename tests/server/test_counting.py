"""Counters and histograms only grow, whatever engines say and clients do, from one scrape to the next."""

import asyncio
import itertools
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.gateway import IN_FLIGHT, Served, sample, serving, settings_for
from support.scripted_engine import CLOSE, HANG, HEAD, RESET, ScriptedEngine, Step, completion, event, llama_end, llama_token

ROUNDS = 4
FAILS: list[Step] = [b"HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", CLOSE]
SCRIPTS: list[list[Step]] = [
    completion("a", "b", pause_s=0.005),
    FAILS,
    [HEAD, event(llama_token("a", 1)), event(llama_end(-5, cached=-3, prompt_tokens=-10)), b"0\r\n\r\n", CLOSE],
    [HEAD, event(llama_token("a", 1)), event(llama_end(1 << 60, cached=1 << 59)), b"0\r\n\r\n", CLOSE],
    [HEAD, event(llama_token("a", 1)), RESET],
    [HEAD, b"nonsense", CLOSE],
    [HEAD, HANG],
]


class Scrapes:
    """Scrapes one after the other, and what grew smaller."""

    def __init__(self) -> None:
        self.count = 0
        self.smaller: list[str] = []
        self._last: dict[str, float] = {}

    def take(self, text: str) -> None:
        now = {
            sample(each.name, **each.labels): each.value
            for family in text_string_to_metric_families(text)
            if family.type in ("counter", "histogram")
            for each in family.samples
        }
        last = self._last
        self.smaller += [f"{name}: {was} -> {now.get(name)}" for name, was in last.items() if now.get(name, -1) < was]
        self._last = now
        self.count += 1


async def traffic(served: Served) -> None:
    asks: list[dict[str, Any]] = [{}, {"stream": True}, {"n": 2}, {"model": "nope"}, {"messages": []}, {"stream": True, "n": 3}]
    await asyncio.gather(*(served.chat(**body) for body in asks * 3), return_exceptions=True)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with served.client.stream("POST", "/v1/chat/completions", json=body):
        pass  # it leaves at once


async def test_no_counter_goes_backwards() -> None:
    scrapes = Scrapes()
    turns = itertools.cycle(SCRIPTS)
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        first.script = second.script = lambda seen: next(turns)
        engines = [{"id": each, "url": one.url, "kind": "llamacpp"} for each, one in (("a", first), ("b", second))]
        settings = settings_for("", engines=engines, timeouts={"first_token_s": 0.3}, limits={"queue_requests": 4})
        async with serving(settings) as served, httpx.AsyncClient(timeout=30, trust_env=False) as scraper:

            async def scraped() -> None:
                while True:
                    scrapes.take((await scraper.get(f"{served.admin_url}/metrics")).text)
                    await asyncio.sleep(0.02)

            scraping = asyncio.create_task(scraped())
            for number in range(ROUNDS):
                second.up = number % 2 == 0
                await traffic(served)
                assert not scraping.done()
            await served.settled(IN_FLIGHT.replace("'e'", "'a'"), 0, within_s=10)
            scraping.cancel()
            await asyncio.wait([scraping])
            metrics = await served.metrics()
    assert scrapes.count > ROUNDS
    assert scrapes.smaller == []
    ended = sum(value for name, value in metrics.items() if name.startswith("interlock_requests_total"))
    assert ended == ROUNDS * 19
