"""Engines of several kinds behind one model: what one lacks another has, and none is blamed for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import pytest
from fakes.conforming import ids_of
from fakes.sglang import FakeSglang
from fakes.trtllm import FakeTrtLlm
from fakes.vllm import FakeVllm
from support.gateway import Served, serving, settings_for

pytestmark = pytest.mark.faults
STEADY = {"eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0}
Other = FakeSglang | FakeTrtLlm


@contextlib.asynccontextmanager
async def mixed(first: FakeVllm | Other, second: FakeVllm | Other, records: list[Mapping[str, object]]) -> AsyncIterator[Served]:
    """A gateway in front of both, of which operators say that they answer alike."""
    kinds = {FakeVllm: "vllm", FakeSglang: "sglang", FakeTrtLlm: "trtllm"}
    async with first.running(), second.running():
        both = {"a": first, "b": second}
        engines = [{"id": name, "url": each.url, "kind": kinds[type(each)], "weights": "W"} for name, each in both.items()]
        async with serving(settings_for("", kind="vllm", engines=engines, failures=STEADY), access=records.append) as served:
            async with asyncio.timeout(5):
                while not all(served.gateway.registry.is_ready(name) for name in both):
                    await asyncio.sleep(0.005)
            yield served


LACKS: list[tuple[Callable[[], Other], dict[str, Any]]] = [
    (FakeTrtLlm, {"logprobs": True}),
    (FakeTrtLlm, {"min_tokens": 8}),
    (partial(FakeSglang, incremental=True), {"repetition_penalty": 2.5}),
]


lacks = pytest.mark.parametrize(("lacking", "asked"), LACKS, ids=["logprobs", "min_tokens", "repetition_penalty"])


@lacks
async def test_what_one_kind_lacks_another_is_asked_for(lacking: Callable[[], Other], asked: dict[str, Any]) -> None:
    records: list[Mapping[str, object]] = []
    other, able = lacking(), FakeVllm()
    able.says = lambda _: ids_of("lo")
    async with mixed(other, able, records) as served:
        for _ in range(3):
            assert (await served.chat(max_tokens=9, **asked)).status_code == 200
        assert {record["engine"] for record in records} == {"b"}
        assert {record["retries"] for record in records} == {0}
        assert other.calls == []
        assert not served.gateway.registry.view("m").engines[0].failing
        served.gateway.registry.drain("b", True)
        answer = await served.chat(max_tokens=9, **asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")


@pytest.mark.parametrize("cut", [0, 3])
@lacks
async def test_what_no_other_can_go_on_with_is_the_engines_failure(
    lacking: Callable[[], Other], asked: dict[str, Any], cut: int
) -> None:
    records: list[Mapping[str, object]] = []
    first, other = FakeVllm(), lacking()
    first.cut_after = cut
    async with mixed(first, other, records) as served:
        error = (await served.stream(max_tokens=9, **asked))[-1]["error"] if cut else (await served.chat(**asked)).json()["error"]
        assert error["code"] == "engine_broke"
        assert records[-1]["outcome"] == "upstream_error"
        assert other.calls == []


async def test_a_penalty_that_the_other_counts_otherwise_is_not_gone_on_with() -> None:
    first, other = FakeVllm(), FakeSglang(incremental=True)
    first.cut_after = 3
    other.says = lambda _: ids_of("lo")
    async with mixed(first, other, []) as served:
        assert (await served.stream(max_tokens=9, repetition_penalty=1.3))[-1]["error"]["code"] == "engine_broke"
        assert other.calls == []
        served.gateway.registry.set_ready("a", True)
        assert (await served.stream(max_tokens=9))[-1] == "[DONE]"
        assert len(other.calls) == 1


@pytest.mark.parametrize("asked", [{"logprobs": True}, {"min_tokens": 2}])
async def test_what_none_has_is_the_clients_fault(asked: dict[str, Any]) -> None:
    records: list[Mapping[str, object]] = []
    async with mixed(FakeTrtLlm(), FakeTrtLlm(), records) as served:
        answer = await served.chat(max_tokens=9, **asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == next(iter(asked))
        assert records[-1]["attempts"] == 1
