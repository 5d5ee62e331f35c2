"""An answer that its engine breaks off is gone on with on another, token by token; where that is not exact, it is marked."""

import asyncio
import itertools
import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from faults.client import LIMIT_S, Answer, connected
from faults.leaks import NoLeaks
from faults.place import QUICK, Fleet, fleet
from faults.proxy import Line
from faults.saying import ENDS, text_of, unbroken
from faults.speech import Kind

pytestmark = pytest.mark.faults
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
STEADY = {"eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0}
"""The first engine gets every request, however often it fails."""
FAST = {**QUICK, "between_tokens_s": 0.2}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
ANSWERS = 100
SLACK = 5  # the machine is shared


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


@pytest.mark.parametrize("kind", KINDS)
async def test_going_on_takes_no_time_that_a_reader_sees(no_leaks: NoLeaks, kind: Kind) -> None:
    """Row E8: 50 ms and the prefill, of which these engines need none."""
    loop = asyncio.get_running_loop()
    took_s: dict[str, list[float]] = {"": [], "[[chaos:reset_mid_stream after=5 only=a]]": []}
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        for number in range(20):
            for fault, each_s in took_s.items():
                began_s = loop.time()
                same(place, await place.ask(f"[[tokens=12]]{fault} {number}", **USAGE), stream=True)
                each_s.append(loop.time() - began_s)
                assert len(place.since_last()) == (2 if fault else 1)
                place.served.gateway.registry.set_ready("a", True)
    usual_s, resumed_s = (statistics.median(each_s) for each_s in took_s.values())
    assert resumed_s - usual_s <= SLACK * 0.05


@pytest.mark.parametrize(
    "mode",
    [
        "reset_mid_stream settle=0",
        "close_mid_stream",
        "end_mid_stream",
        "half_event",
        "error_mid_stream",
        "bad_json",
        "not_object",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_however_it_is_cut_nothing_changes(no_leaks: NoLeaks, kind: Kind, mode: str) -> None:
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        for after in (0, 1, 2, 5, 9, 14, 15):
            for stream in (True, False):
                text = f"[[tokens=14]][[chaos:{mode} after={after} only=a]] {after}"
                answer = await place.ask(text, stream=stream, **(USAGE if stream else {}))
                same(place, answer, stream=stream)
                place.served.gateway.registry.set_ready("a", True)


@pytest.mark.parametrize("kind", KINDS)
async def test_silence_is_a_cut_and_the_silent_engine_is_closed_first(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, timeouts=FAST, failures=STEADY) as place:
        for after in (1, 6, 11):
            same(place, await place.ask(f"[[tokens=12]][[chaos:hang_mid_stream after={after} only=a]]", **USAGE), stream=True)
            first, second = place.since_last()
            assert await place.closed(first) <= second.began_s


@pytest.mark.parametrize("after", [13, 14])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_is_silent_after_the_end_costs_no_second_call(no_leaks: NoLeaks, kind: Kind, after: int) -> None:
    """The end is known: the id that ends the turn was made, or the last of all that it may make."""
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        limit = {"max_tokens": 13} if after == 13 else {}
        answer = await place.ask(f"[[tokens=13]][[ascii]][[chaos:hang_mid_stream after={after} only=a]]", **limit)
        assert answer.done
        assert answer.text == text_of(said(place))
        assert answer.finishes == ["length" if after == 13 else "stop"]
        assert len(place.since_last()) == 1


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_end_of_turn_without_a_reason_costs_no_second_call(no_leaks: NoLeaks, kind: Kind, cut: int) -> None:
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        for tokens in range(1, 7):
            for stream in (True, False):
                text = f"[[tokens={tokens}]][[chaos:no_finish cut={cut} only=a]]"
                answer = await place.ask(text, stream=stream, **(USAGE if stream else {}))
                same(place, answer, stream=stream)
                assert len(place.since_last()) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_at_any_byte_changes_nothing(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, proxied=True, timeouts=QUICK, failures=STEADY) as place:
        cuts = 0
        ends = itertools.cycle(end if at % 4 else 9_000 for at, end in enumerate(range(20, 2600, 43)))  # or it were ejected
        path = b"POST /completion" if kind == "llamacpp" else b"POST /v1"
        place.proxy.lines = lambda _: Line(slice_bytes=7, reset_after=next(ends), since=path)
        await place.proxy.drop()  # the connections that stood before
        place.served.gateway.registry.set_ready("a", False)
        await place.ready()
        for number in range(40):
            await place.ready()
            same(place, await place.ask(f"[[tokens=9]] {number}", **USAGE), stream=True)
            cuts += len(place.since_last()) - 1
        assert cuts > 20


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_cut_anywhere_changes_nothing(no_leaks: NoLeaks, kind: Kind) -> None:
    """While a text is passed over, too, whose ids were lost."""
    for second in (0, 1, 2, 3, 5, 8, 11, 14, 17):
        # A gateway each time: an engine that failed is passed over where another can go on.
        async with fleet(no_leaks, kind, 3, timeouts=QUICK, failures=STEADY) as place:
            cuts = f"[[chaos:reset_mid_stream after=16 only=a]][[chaos:error_mid_stream after={second} only=b]]"
            same(place, await place.ask(f"[[tokens=20]]{cuts}", **USAGE), stream=True)
            assert [seen.fault for seen in place.since_last()][:2] == ["reset_mid_stream", "error_mid_stream"]


@pytest.mark.parametrize("engines", [2, 3])
async def test_other_words_than_the_known_end_the_answer_or_another_engine_goes_on(no_leaks: NoLeaks, engines: int) -> None:
    async with fleet(no_leaks, "llamacpp", engines, timeouts=QUICK, failures=STEADY) as place:
        for number in range(5):
            cuts = "[[chaos:reset_mid_stream after=25 only=a]][[chaos:fat kb=1 only=b]]"
            answer = await place.ask(f"[[tokens=30]]{cuts} {number}", **USAGE)
            assert len(place.since_last()) == engines
            if engines == 3:
                same(place, answer, stream=True)
            else:
                marked(place, answer)
                assert place.record["reason"] == "differs"
            registry = place.served.gateway.registry
            assert registry.is_ready("b"), "it is not at fault"
            assert not [each for each in registry.view("m").engines if each.id == "b" and each.failing]
            registry.set_ready("a", True)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stop_string_across_a_cut_ends_the_answer(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        for after in range(4, 12):
            text = f"[[tokens=16]][[ascii]][[chaos:reset_mid_stream after={after} only=a]]"
            whole = (await place.ask(text)).text
            place.served.gateway.registry.set_ready("a", True)
            answer = await place.ask(text, stop=[whole[6:11]])
            assert (answer.done, answer.text, answer.finishes) == (True, whole[: whole.index(whole[6:11])], ["stop"])
            place.served.gateway.registry.set_ready("a", True)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_limit_counts_what_both_engines_made(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        for after in range(9):
            text = f"[[tokens=16]][[ascii]][[chaos:reset_mid_stream after={after} only=a]]"
            answer = await place.ask(text, max_tokens=8, **USAGE)
            assert answer.text == text_of(said(place)[:8])
            assert answer.finishes == ["length"]
            assert answer.events[-2]["usage"]["completion_tokens"] == 8
            assert [seen.limit for seen in place.since_last()] == [8] if after == 8 else [8, 8 - after]
            place.served.gateway.registry.set_ready("a", True)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_is_gone_on_with_as_one_json_counts_each_token_once(no_leaks: NoLeaks, kind: Kind) -> None:
    """It begins with text that the client has, whose tokens the first engine had lost."""
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        for after in range(16):
            text = f"[[tokens=16]][[chaos:reset_mid_stream after={after} only=a]][[chaos:json_not_stream only=b]]"
            same(place, await place.ask(text, **USAGE), stream=True)
            place.served.gateway.registry.set_ready("a", True)


# What is not exact is marked


def marked(place: Fleet, answer: Answer, code: str | None = None) -> None:
    """The client has a part of the answer and an error that tells that it is one."""
    assert answer.streamed
    assert answer.error is not None
    assert not answer.done
    assert answer.text
    assert text_of(said(place)).startswith(answer.text)
    if code is not None:
        assert answer.error["code"] == code


CUT = "[[tokens=16]][[ascii]][[chaos:reset_mid_stream after=6 only=a]]"
UNBEGUN = "[[tokens=16]][[ascii]][[chaos:rst_before_headers only=a]]"
ASKED: dict[str, dict[str, Any]] = {
    "a grammar": {"response_format": {"type": "json_object"}},
    "two choices": {"n": 2},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.5},
}


@pytest.mark.parametrize("asked", ASKED)
async def test_what_cannot_be_exact_is_marked_once_begun_and_begun_anew_before(no_leaks: NoLeaks, asked: str) -> None:
    async with fleet(no_leaks, "vllm", timeouts=QUICK, failures=STEADY) as place:
        answer = await place.ask(CUT, **ASKED[asked])
        assert answer.error is not None
        assert not answer.done
        assert answer.text
        assert not [seen for seen in place.since_last() if len(seen.prompt) > len(place.since_last()[0].prompt)]
        place.served.gateway.registry.set_ready("a", True)
        answer = await place.ask(UNBEGUN, **ASKED[asked])
        assert answer.done
        assert answer.text == text_of(said(place)) * ASKED[asked].get("n", 1) or asked == "two choices"
        assert place.record["attempts"] > ASKED[asked].get("n", 1)


@pytest.mark.parametrize("why", ["off", "other weights", "one engine", "no retry"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_place_that_cannot_go_on_marks_the_answer(no_leaks: NoLeaks, kind: Kind, why: str) -> None:
    failures = {**STEADY, "resume": "off" if why == "off" else "exact"}
    async with fleet(no_leaks, kind, 1 if why == "one engine" else 2, timeouts=QUICK, failures=failures) as place:
        registry = place.served.gateway.registry
        if why == "other weights":
            registry.add(replace(registry.members["a"], weights="Q4"))
            registry.add(replace(registry.members["b"], weights="Q8"))
        header = b"\r\nx-no-retry: 1\r\n\r\n" if why == "no retry" else b"\r\n\r\n"
        answer = await sent(place, CUT, header)
        marked(place, answer, "engine_broke")
        assert len(place.since_last()) == 1
        registry.set_ready("a", True)
        answer = await sent(place, UNBEGUN, header)
        attempts = 1 if why in ("one engine", "no retry") else 2
        assert answer.status == 502 if attempts == 1 else place.whole(answer)
        assert place.record["attempts"] == attempts
        calls = place.since_last()
        assert len(calls) == attempts + calls[0].kept, "one more where the first went out on a kept connection"


async def sent(place: Fleet, text: str, header: bytes) -> Answer:
    """The answer to a request whose head ends so."""
    place._before = len(place.seen)
    answer = Answer()
    async with asyncio.timeout(LIMIT_S), connected(place.served.url) as client:
        await client.send(place.request(text).replace(b"\r\n\r\n", header, 1))
        await client.read(answer)
    place.leaks.shown(bytes(answer.raw))
    answer.check()
    return answer


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_takes_two_engines_down_gets_no_third(no_leaks: NoLeaks, kind: Kind, begun: bool) -> None:
    async with fleet(no_leaks, kind, 3, timeouts=QUICK, failures=STEADY) as place:
        mode = "reset_mid_stream after=4" if begun else "rst_before_headers"
        answer = await place.ask(f"[[tokens=16]][[ascii]][[chaos:{mode}]]")
        assert answer.error is not None
        assert answer.error["code"] == "poison_request"
        assert answer.status == (200 if begun else 502)
        assert all(place.engines[name].seen for name in "ab")  # maybe twice, where the first time was on a kept connection
        assert not place.engines["c"].seen
        assert answer.text == text_of(said(place)[:8]) if begun else True


@pytest.mark.parametrize("kind", KINDS)
async def test_two_engines_that_fall_late_in_an_answer_are_enough(no_leaks: NoLeaks, kind: Kind) -> None:
    waits = {**QUICK, "between_tokens_s": 5}
    async with fleet(no_leaks, kind, 4, timeouts=waits, failures={**STEADY, "attempts": 4}) as place:
        for engine in place.engines.values():
            engine._token_s = 0.1
        answer = await place.ask("[[tokens=40]][[ascii]][[chaos:die s=9 after=12]]")
        marked(place, answer, "poison_request")
        assert [name for name in place.engines if place.engines[name].seen] == ["a", "b"]


@pytest.mark.parametrize("mode", ["400", "404", "context_length"])
@pytest.mark.parametrize("engines", [2, 3])
async def test_what_the_next_engine_has_against_the_request_is_no_fault_of_the_client(
    no_leaks: NoLeaks, engines: int, mode: str
) -> None:
    async with fleet(no_leaks, "vllm", engines, timeouts=QUICK, failures=STEADY) as place:
        answer = await place.ask(f"{CUT}[[chaos:{mode} only=b]]")
        assert len(place.since_last()) == engines
        if engines == 3:
            assert place.whole(answer)
        else:
            marked(place, answer, "engine_broke")
            assert place.record["outcome"] == "upstream_error"


async def test_no_time_is_left_for_an_answer_whose_time_is_over(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "vllm", timeouts={"total_s": 0.4}, failures=STEADY) as place:
        answer = await place.ask("[[tokens=16]][[ascii]][[chaos:hang_mid_stream after=6 only=a]]")
        marked(place, answer, "engine_timeout")
        assert len(place.since_last()) == 1


async def test_a_client_that_leaves_while_its_retry_waits_leaves_no_room_taken(no_leaks: NoLeaks) -> None:
    """One retry at a time: the first holds its room, until it fails, on an engine that does not begin."""
    failures = {**STEADY, "retries": 1, "retry_share": 0}
    async with fleet(no_leaks, "vllm", 3, timeouts=QUICK, failures=failures) as place:
        held = "[[chaos:error_mid_stream after=6 only=a]][[chaos:hang_before_first only=b]]"
        first = asyncio.create_task(place.ask(f"[[tokens=16]]{held}"))
        while not [seen for seen in place.seen if seen.fault == "hang_before_first"]:
            await asyncio.sleep(0.005)
        for _ in range(5):
            answer = Answer()
            async with connected(place.served.url) as client:
                await client.send(place.request("[[tokens=16]][[ascii]][[chaos:error_mid_stream after=6 only=a]] waits"))
                await client.read(answer, until=b'content":"')
                await asyncio.sleep(0.02)
                client.leave()
        assert (await first).done
        answer = await place.ask("[[tokens=16]][[chaos:error_mid_stream after=6 only=a]] last", limit_s=5)
        assert place.whole(answer)


@pytest.mark.parametrize(
    ("kind", "penalty"),
    [
        ("vllm", "repetition_penalty"),
        ("llamacpp", "repetition_penalty"),
        ("llamacpp", "presence_penalty"),
        ("llamacpp", "frequency_penalty"),
    ],
)
async def test_a_penalty_that_counts_the_prompt_too_is_gone_on_with(no_leaks: NoLeaks, kind: Kind, penalty: str) -> None:
    async with fleet(no_leaks, kind, timeouts=QUICK, failures=STEADY) as place:
        assert place.whole(await place.ask(CUT, **{penalty: 1.1}))
        assert len(place.since_last()) == 2
