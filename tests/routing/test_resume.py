"""What cannot be gone on with exactly, each with its reason."""

from dataclasses import replace

import pytest
from msgspec import structs

from gateway.request import GenerateRequest, Sampling
from gateway.routing.resume import Cut, Objection, objection, penalties

PLAIN = GenerateRequest(model="m", messages=())
FINE = Cut(PLAIN, constrained=False, takes_ids=True, kept=True, tokens=1000, resumes=0, left_s=60.0)


def sampled(**settings: float) -> GenerateRequest:
    return structs.replace(PLAIN, sampling=Sampling(**settings))  # type: ignore[arg-type] # whole numbers are among them


def test_a_plain_answer_can() -> None:
    assert objection(FINE) is None


@pytest.mark.parametrize(
    ("cut", "why"),
    [
        (replace(FINE, request=structs.replace(PLAIN, n=2)), "choices"),
        (replace(FINE, constrained=True), "constraint"),
        (replace(FINE, request=sampled(presence_penalty=0.1)), "penalties"),
        (replace(FINE, request=sampled(frequency_penalty=-0.1)), "penalties"),
        (replace(FINE, request=sampled(repetition_penalty=1.1)), "penalties"),
        (replace(FINE, takes_ids=False), "ids"),
        (replace(FINE, ended=True), "ended"),
        (replace(FINE, kept=False), "too_long"),
        (replace(FINE, resumes=2), "resumes"),
        (replace(FINE, left_s=0.0), "deadline"),
        (replace(FINE, left_s=0.1, tokens=1000), "deadline"),
    ],
)
def test_what_cannot(cut: Cut, why: Objection) -> None:
    assert objection(cut) == why
    assert objection(cut, on=False) == "off"


@pytest.mark.parametrize(
    "cut",
    [
        replace(FINE, resumes=1),
        replace(FINE, left_s=0.11),
        replace(FINE, request=sampled(temperature=1.0, seed=3, top_k=5)),
        replace(FINE, request=sampled(presence_penalty=0, frequency_penalty=0, repetition_penalty=1)),
        replace(FINE, request=sampled(presence_penalty=0.5), same_penalties={"presence_penalty"}),
    ],
)
def test_what_can(cut: Cut) -> None:
    assert objection(cut) is None


def test_one_penalty_that_counts_otherwise_is_enough() -> None:
    request = sampled(presence_penalty=0.5, repetition_penalty=1.2)
    assert penalties(request) == {"presence_penalty", "repetition_penalty"}
    assert objection(replace(FINE, request=request, same_penalties={"repetition_penalty"})) == "penalties"
