"""The soak itself: each of its checks can fail, and it tells a good gateway from one whose engines all fail."""

import random
from collections.abc import Sequence

import pytest
from faults.client import Answer
from faults.engine import FaultEngine
from soak.load import CALM_S, TURN_S, Load, Wish, fault_of, said_to
from soak.verdict import Counts, Sample, descriptors, ended, memory, offered, outcomes, running, slope_mib, success
from support.gateway import serving, settings_for


def samples(run_s: int, mib_in_ten_minutes: float, *, first_mib: float = 0.0) -> list[Sample]:
    """One a second; `first_mib` more are taken in the first five minutes."""
    grown = [at * mib_in_ten_minutes / 600 + min(at, 300) * first_mib / 300 for at in range(run_s)]
    return [Sample(at, round(1024 * (80 + mib)), 20, 3) for at, mib in enumerate(grown)]


@pytest.mark.parametrize(
    ("run_s", "growth", "first", "holds"),
    [(1200, 0.9, 0.0, True), (1200, 1.1, 0.0, False), (1200, 0.0, 50.0, True), (60, 15.0, 0.0, True), (60, 18.0, 0.0, False)],
)
def test_memory(run_s: int, growth: float, first: float, holds: bool) -> None:
    check = memory(samples(run_s, growth, first_mib=first), run_s)
    assert check.holds is holds, check
    assert ("scaled" in check.said) is (run_s == 60)


def test_the_slope_is_that_of_the_samples() -> None:
    assert slope_mib(samples(1200, 2.5), 300) == pytest.approx(2.5, abs=0.01)
    assert slope_mib(samples(1200, 2.5), 1198) is None
    assert not memory([], 1200).holds


@pytest.mark.parametrize(("good", "holds"), [(1000, True), (999, True), (998, False), (0, False)])
def test_success(good: int, holds: bool) -> None:
    assert success(Counts(sent=1000, judged=1000, good=good)).holds is holds
    assert not success(Counts()).holds, "nothing was judged"


def test_the_other_checks() -> None:
    assert outcomes(Counts(sent=7), 7).holds
    assert not outcomes(Counts(sent=7), 8).holds
    assert not outcomes(Counts(sent=7), 6).holds
    assert [offered(Counts(sent=95, not_offered=missed)).holds for missed in (5, 6)] == [True, False]
    assert not offered(Counts()).holds
    assert [running(count).holds for count in (0, 1)] == [True, False]
    assert [descriptors(20, after, 3, 3).holds for after in (19, 20, 21)] == [True, True, False]
    assert [descriptors(20, 20, kept, 3).holds for kept in (24, 25)] == [True, False]
    assert [check.holds for check in ended(0, "fine")] == [True, True]
    assert [check.holds for check in ended(None, "Traceback (most")] == [False, False]


def wish(**changed: object) -> Wish:
    return Wish(**{"text": "#1# [[tokens=8]]", "mode": "none", "only": None, "manner": "reads", "fields": {}, **changed})  # type: ignore[arg-type]  # by name


def answered(status: int, body: str) -> Answer:
    return Answer(raw=bytearray(f"HTTP/1.1 {status} S\r\ncontent-length: {len(body.encode())}\r\n\r\n{body}".encode()))


def test_an_answer_is_judged() -> None:
    whole = '{"choices":[{"message":{"content":"%s"}}]}'
    refused = '{"error":{"message":"no","type":"t","code":"c"}}'
    assert fault_of(wish(), answered(200, whole % said_to(wish().text))) == ""
    assert fault_of(wish(), answered(200, whole % "else")) != ""
    assert fault_of(wish(), answered(400, refused)) != ""
    assert fault_of(wish(mode="400"), answered(400, refused)) == ""
    assert fault_of(wish(mode="422"), answered(400, refused)) != ""
    assert fault_of(wish(manner="during"), Answer()) == ""
    with pytest.raises(AssertionError):
        fault_of(wish(), Answer(raw=answered(200, whole % "cut").raw[:-1]))


def wishes(load: Load, at: Sequence[float]) -> list[Wish]:
    return [load.wish(each) for each in at]


def test_faults_are_of_one_engine_at_a_time_and_in_its_time_only() -> None:
    load = Load("", ("a", "b"), 1.0, random.Random(6))
    assert {each.only for each in wishes(load, [TURN_S * 0.5] * 50)} == {"a"}
    assert {each.only for each in wishes(load, [TURN_S * 1.5] * 50)} == {"b"}
    assert {each.mode for each in wishes(load, [TURN_S - CALM_S / 2] * 50)} == {"none"}
    assert all(f"only={each.only}" in each.text for each in wishes(load, [1.0] * 50))


async def test_a_load_tells_engines_that_serve_from_engines_that_fail() -> None:
    async with FaultEngine("e").working() as engine, serving(settings_for(engine.url, kind="vllm")) as served:
        good = Load(served.url, ("e",), 0.0, random.Random(6))
        assert await good.closed(3, 0.3) > 1
        await good.open(40, 0.5)
        assert good.counts.judged > 20
        assert success(good.counts).holds, good.failures
        engine.ask("500")
        bad = Load(served.url, ("e",), 0.0, random.Random(6))
        await bad.open(20, 0.2)
        assert bad.counts.good == 0
        assert not success(bad.counts).holds
        assert bad.failures.most_common(1)[0][0].startswith("none: 50")
