"""An answer that its engine breaks off is gone on with on another, token by token; where that is not exact, it is marked."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from faults.client import Answer
from faults.leaks import NoLeaks
from faults.place import QUICK, Fleet, fleet
from faults.saying import ENDS, text_of, unbroken
from faults.speech import Kind

pytestmark = pytest.mark.faults
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
STEADY = {"eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0}
"""The first engine gets every request, however often it fails."""
FAST = {**QUICK, "between_tokens_s": 0.2}
USAGE = {"stream_options": {"include_usage": True}}
ANSWERS = 100


def said(place: Fleet) -> list[int]:
    """The ids of the unbroken answer to the last request."""
    return unbroken(min((seen.prompt for seen in place.since_last()), key=len))


def same(place: Fleet, answer: Answer, *, stream: bool, ids: bool = False) -> None:
    """The client was given the unbroken answer, and nothing that tells of a cut."""
    expected = said(place)
    assert answer.error is None, (answer.error, place.record)
    assert answer.text == text_of(expected), place.record
    prompt = min(len(seen.prompt) for seen in place.since_last())
    counts = {"prompt_tokens": prompt, "completion_tokens": len(expected) + 1, "total_tokens": prompt + len(expected) + 1}
    if stream:
        streamed(answer, counts, [*expected, ENDS] if ids else None)
        return
    body = json.loads(answer.body)
    assert_counts(body["usage"], counts)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    if ids:
        assert choice["token_ids"] == [*expected, ENDS]


def streamed(answer: Answer, counts: Mapping[str, int], ids: list[int] | None) -> None:
    *events, end = answer.events
    assert end == "[DONE]"
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    *chunks, last = events
    assert last["choices"] == []
    assert_counts(last["usage"], counts)
    assert all(event["usage"] is None for event in chunks)
    choices = [choice for event in chunks for choice in event["choices"]]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert {key for choice in choices for key in choice["delta"]} <= {"role", "content"}
    if ids is not None:
        assert [token for choice in choices for token in choice.get("token_ids", ())] == ids


def assert_counts(usage: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    assert {name: usage[name] for name in counts} == counts
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= counts["prompt_tokens"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_at_any_token_of_100_answers_changes_nothing(no_leaks: NoLeaks, kind: Kind, stream: bool) -> None:
    fields: dict[str, Any] = {"stream": stream, **(USAGE if stream else {})}
    if ids := kind == "vllm":
        fields["return_token_ids"] = True
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        cuts = 0
        answers = ANSWERS if stream else ANSWERS // 5
        for number in range(answers):
            after = length = 0
            while after <= length + 1:
                asked = (
                    f"[[tokens={6 + number % 11}]][[chaos:reset_mid_stream settle=0.004 after={after} only=a]] {number} {after}"
                )
                answer = await place.ask(asked, **fields)
                same(place, answer, stream=stream, ids=ids)
                length = len(said(place))
                calls = len(place.since_last())
                assert calls == 2 or after > length, "an answer that had its end is not asked for again"
                cuts += calls - 1
                after += 1
                place.served.gateway.registry.set_ready("a", True)  # else it is out until it was probed
        assert cuts > answers * 10
