"""The simulation against what is known: queues with a formula, closed loops with a bound, time that has no scale."""

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.jsonio import encode
from lab.simulate.model import EngineModel, Leap, Reserve
from lab.simulate.named import POLICIES
from lab.simulate.replica import Job
from lab.simulate.report import report, spread
from lab.simulate.run import simulate
from lab.traces import Prompt, Request, Trace, read

DATA = Path(__file__).parent.parent / "data" / "traces"
PEERS = sorted(name for name in POLICIES if not name.startswith(("cost", "gateway")))
ONE_AT_A_TIME = EngineModel(
    step_s=0, decode_s=1, context_s=0, prefill_s=1e-4, attention_s=0, most_running=1, step_tokens=1 << 30, blocks=1 << 20
)


def queue(services: list[int], load: float, seed: int) -> tuple[Trace, list[float]]:
    """Poisson arrivals of prompts that are one step each, `services` in tokens of which 10,000 take a second; and each one's wait
    by Lindley's recursion."""
    rng = random.Random(seed)
    requests, waits, now_s, wait_s = list[Request](), list[float](), 0.0, 0.0
    for number, tokens in enumerate(services):
        gap_s = rng.expovariate(load)
        wait_s = max(0.0, wait_s + (services[number - 1] * 1e-4 if number else 0.0) - gap_s)
        now_s += gap_s
        requests.append(Request(Prompt(number, tokens, (), number), 1, now_s))
        waits.append(wait_s)
    return Trace("queue", tuple(requests)), waits


def simulated_waits(trace: Trace, expected: list[float]) -> list[float]:
    jobs = simulate(trace, 1, POLICIES["round_robin"], ONE_AT_A_TIME).jobs
    waits = [job.first_s - job.arrived_s - job.prompt.tokens * 1e-4 for job in jobs]
    assert max(abs(one - other) for one, other in zip(waits, expected, strict=True)) < 1e-6
    return waits


@pytest.mark.timeout(600)  # 200,000 requests: seconds, where nothing else runs
def test_equal_services_wait_as_m_d_1_says() -> None:
    trace, lindley = queue([10_000] * 200_000, 0.8, seed=1)
    assert fmean(simulated_waits(trace, lindley)) == pytest.approx(0.8 / (2 * (1 - 0.8)), rel=0.03)


@pytest.mark.timeout(600)
def test_exponential_services_wait_as_m_m_1_says() -> None:
    rng = random.Random(3)
    trace, lindley = queue([max(1, round(rng.expovariate(1e-4))) for _ in range(200_000)], 0.8, seed=2)
    assert fmean(simulated_waits(trace, lindley)) == pytest.approx(0.8 / (1 - 0.8), rel=0.04)


def sessions(count: int, turns: int, think_s: float) -> Trace:
    """Sessions that all begin at once, of prompts of one second each."""
    return Trace(
        "sessions",
        tuple(
            Request(
                Prompt(session * turns + turn, 10_000, (), session),
                1,
                float(turn),
                session * turns + turn - 1 if turn else None,
                think_s,
            )
            for session in range(count)
            for turn in range(turns)
        ),
        paced=True,
    )


@pytest.mark.parametrize("users", [1, 4, 8, 16])
def test_a_closed_loop_stays_under_its_bound_and_comes_near_it(users: int) -> None:
    turns, think_s, service_s = 50, 5.0, 1.0
    jobs = simulate(sessions(users, turns, think_s), 1, POLICIES["round_robin"], ONE_AT_A_TIME).jobs
    rate = users * (turns - 1) / max(job.arrived_s for job in jobs)
    bound = min(users / (think_s + service_s), 1 / service_s)
    assert 0.9 * bound < rate <= bound + 1e-9


def test_an_open_loop_does_not_wait_for_its_users() -> None:
    trace = sessions(16, 50, 5.0)
    closed, opened = (simulate(trace, 1, POLICIES["round_robin"], ONE_AT_A_TIME, loop=loop).jobs for loop in ("closed", "open"))
    assert max(job.arrived_s for job in opened) == 49.0
    assert fmean(job.done_s - job.arrived_s for job in opened) > 10 * fmean(job.done_s - job.arrived_s for job in closed)


@pytest.mark.parametrize("reserve", ["prompt", "output"])
@pytest.mark.parametrize("policy", PEERS)
def test_all_speeds_doubled_halve_all_times_exactly(policy: str, reserve: Reserve) -> None:
    model = replace(EngineModel(), blocks=80, reserve=reserve, step_tokens=2048)
    for name in ("agents.jsonl", "chats.jsonl"):
        trace = read(DATA / name)
        slow = simulate(trace, 2, POLICIES[policy], model)
        fast = simulate(trace, 2, POLICIES[policy], model.faster(2), speed=2)
        assert [each / 2 for each in moments(slow.jobs)] == moments(fast.jobs)
        assert [job.engine for job in slow.jobs] == [job.engine for job in fast.jobs]


def moments(jobs: tuple[Job, ...]) -> list[float]:
    return [moment for job in jobs for moment in (job.arrived_s, job.first_s, job.done_s)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_same_seed_gives_the_same_bytes_and_every_request_ends_once(policy: str) -> None:
    trace, model = read(DATA / "agents.jsonl"), replace(EngineModel(), blocks=120)
    one, same = (simulate(trace, 3, POLICIES[policy], model, seed=4) for _ in range(2))
    assert encode(report(one, "t", policy)) == encode(report(same, "t", policy))
    assert moments(one.jobs) == moments(same.jobs)
    assert [job.prompt.id for job in one.jobs] == [request.prompt.id for request in trace.requests]
    assert all(job.arrived_s <= job.first_s <= job.done_s for job in one.jobs)
    assert {job.engine for job in one.jobs} <= {0, 1, 2}


def test_a_request_longer_than_an_engine_is_left_out_and_its_session_goes_on() -> None:
    trace = sessions(1, 3, 2.0)
    long = replace(trace.requests[1], prompt=replace(trace.requests[1].prompt, tokens=60_000_000))
    outcome = simulate(
        replace(trace, requests=(trace.requests[0], long, trace.requests[2])),
        1,
        POLICIES["round_robin"],
        replace(ONE_AT_A_TIME, blocks=100),
    )
    assert outcome.too_long == 1
    assert [(job.prompt.id, job.arrived_s) for job in outcome.jobs] == [(0, 0.0), (2, pytest.approx(3.0))]


def test_a_leap_is_cut_at_the_first_step_that_ends_late_enough() -> None:
    for growth_s in (0.0, 1e-3):
        leap = Leap(10.0, 0.02, growth_s, 1000)
        for steps in (1, 2, 500, 1000):
            end_s = leap.after(steps)
            assert leap.steps_until(end_s - 1e-6) == steps
            assert leap.steps_until(end_s + 1e-6) == min(steps + 1, 1000)
        assert leap.steps_until(10.0) == 1


@settings(deadline=None)
@given(
    st.floats(0, 1e4), st.floats(1e-4, 10), st.sampled_from([0.0, 1e-7, 1e-3, 1.0]), st.integers(1, 100_000), st.floats(0, 1.1)
)
def test_no_step_before_it_ends_late_enough(start_s: float, first_s: float, growth: float, count: int, share: float) -> None:
    leap = Leap(start_s, first_s, growth * first_s, count)
    moment_s = start_s + share * (leap.end_s - start_s)
    steps = leap.steps_until(moment_s)
    assert steps == count or leap.after(steps) >= moment_s
    assert steps == 1 or leap.after(steps - 1) < moment_s


def test_the_numbers_of_a_spread() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert [found.mean, found.p50, found.p95, found.p99] == pytest.approx([3.0, 3.0, 4.8, 4.96])


@pytest.mark.parametrize("wrong", [{"step_s": -1}, {"step_s": 0, "decode_s": 0}, {"blocks": 0}])
def test_an_engine_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"time|room"):
        replace(EngineModel(), **wrong)  # type: ignore[arg-type]  # wrong on purpose
