"""Where answers go: how prompts become keys, and what a route charges and gives back."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.wiring import fleet

from engines.base import EngineInfo
from gateway.request import GenerateRequest, Message, Prompt, ToolSpec
from gateway.route import Asked, Guide, Guides, Route
from gateway.routing.chain import packed, root_key, token_chain
from gateway.routing.choice import Tuning
from gateway.routing.view import EngineView, FleetView
from gateway.server.completions import AFFINITY, _affinity

CHUNK = 16
ALONE = FleetView((EngineView("a", ready=True),))
AB = FleetView((EngineView("a", ready=True), EngineView("b", ready=True)))


class Clock:
    """Time stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def guide(model: str = "m", **tuning: Any) -> Guide:
    return Guide(model, Tuning(**{"chunk_tokens": CHUNK, **tuning}), Clock(), random.Random(1))


def prompt(ids: range) -> Prompt:
    return Prompt("", tuple(ids), frozenset())


def said(*texts: str, **fields: Any) -> GenerateRequest:
    return GenerateRequest("m", tuple(Message("user", text) for text in texts), **fields)


# ---- keys -----------------------------------------------------------------------------------------------------------------


def test_a_rendered_prompt_is_known_by_its_tokens() -> None:
    asked = guide().asked(said("hello"), prompt(range(100)), "session")
    assert asked.keys == token_chain(range(100), CHUNK, root_key("m"))
    assert (len(asked.keys), asked.tokens, asked.unit_tokens, asked.affinity) == (6, 100, None, "session")


def test_models_share_no_keys() -> None:
    one, other = (guide(model).asked(said("x"), prompt(range(100)), None) for model in ("m", "n"))
    assert not {*one.keys} & {*other.keys}


def test_what_an_engine_templates_is_known_by_its_text() -> None:
    asked = guide().asked(said("x" * 2000, "y"), None, None)
    assert asked.data == b""
    assert asked.tokens == int(asked.text_bytes / 4)
    assert asked.unit_tokens == 512 / 4
    assert (len(asked.ends), asked.ends[-1]) == (len(asked.keys), asked.tokens)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 5000])
def test_a_conversation_that_grows_keeps_its_keys(length: int) -> None:
    our, tools = guide(), (ToolSpec("f", "what it does", {"type": "object"}),)
    turns = ["x" * length, "first answer", "go on " * 300, "é" * length, "again"]
    keys: tuple[int, ...] = ()
    for count in range(1, len(turns) + 1):
        asked = our.asked(said(*turns[:count], tools=tools), None, None)
        assert asked.keys[: len(keys)] == keys
        assert len(asked.keys) > len(keys)
        keys = asked.keys


def test_text_shares_keys_only_with_the_same_tools_and_the_same_template_arguments() -> None:
    our, tools = guide(), (ToolSpec("f", "what it does", {"type": "object"}),)
    plain, tooled, thinking, other = (
        our.asked(each, None, None).keys
        for each in (
            said("x"),
            said("x", tools=tools),
            said("x", template_kwargs={"enable_thinking": True}),
            said("x", tools=(replace(tools[0], name="g"),)),
        )
    )
    assert len({plain[0], tooled[0], other[0]}) == 3
    assert len({plain[-1], tooled[-1], thinking[-1], other[-1]}) == 4


def test_what_decides_nothing_of_the_prompt_changes_no_key() -> None:
    our = guide()
    assert our.asked(said("x", max_tokens=5, n=2, stream=True), None, None).keys == our.asked(said("x"), None, None).keys


def test_a_prompt_without_messages_has_keys_too() -> None:
    asked = guide().asked(said(), None, None)
    assert asked.keys
    assert asked.tokens >= 1


def test_how_long_tokens_are_is_learned_of_engines_that_make_the_prompt() -> None:
    our = guide()
    text = said("x" * 8000)
    for _ in range(200):
        asked = our.asked(text, None, None)
        our.counted(asked, round(asked.text_bytes / 2.5), None)
    assert our.asked(text, None, None).tokens == pytest.approx(asked.text_bytes / 2.5, rel=0.01)


def test_nothing_is_learned_of_prompts_of_our_own_nor_of_engines_that_do_not_count() -> None:
    our = guide()
    text, before = said("x" * 8000), guide().asked(said("x" * 8000), None, None).tokens
    for _ in range(50):
        assert our.counted(our.asked(said("x"), prompt(range(100)), None), 3, 2) == 2
        assert our.counted(our.asked(text, None, None), 0, 5) == 5
    assert our.asked(text, None, None).tokens == before


def test_the_next_turn_begins_with_the_prompt_and_its_answer() -> None:
    our = guide()
    asked = our.asked(said("x"), prompt(range(100)), None)
    answer = list(range(500, 541))
    after = our.after(asked, answer)
    assert after is not None
    assert after == token_chain([*range(100), *answer[:-1]], CHUNK, root_key("m"))  # no engine has worked on the last
    following = our.asked(said("x"), prompt(range(100)), None)
    longer = token_chain([*range(100), *answer, *range(900, 950)], CHUNK, root_key("m"))
    assert longer[: len(after)] == after
    assert after[: len(following.keys)] == following.keys


def test_an_answer_that_a_stop_id_ended_was_worked_on_to_its_end() -> None:
    our = guide()
    asked, answer = our.asked(said("x"), prompt(range(100)), None), list(range(500, 544))
    assert our.after(asked, answer, len(answer) + 1) == token_chain([*range(100), *answer], CHUNK, root_key("m"))
    assert our.after(asked, answer, len(answer)) == token_chain([*range(100), *answer[:-1]], CHUNK, root_key("m"))


@pytest.mark.parametrize("answer", [(), (7,)])
def test_an_answer_of_no_known_length_is_followed_by_nothing_known(answer: tuple[int, ...]) -> None:
    our = guide()
    assert our.after(our.asked(said("x"), prompt(range(100)), None), answer) is None


def test_an_answer_to_text_is_followed_by_nothing_known() -> None:
    our = guide()
    assert our.after(our.asked(said("x"), None, None), range(50)) is None


# ---- whose session it is --------------------------------------------------------------------------------------------------


def test_the_first_header_that_says_something_names_the_session() -> None:
    assert AFFINITY == (b"x-session-affinity", b"x-session-id", b"x-claude-code-session-id")
    headers = {name: name.split(b"-")[1] + b"\xe9" for name in AFFINITY}
    for gone, word in enumerate(("session\xe9", "session\xe9", "claude\xe9")):
        left = {name: headers[name] for name in AFFINITY[gone:]}
        assert _affinity(left) == word
        assert _affinity({**dict.fromkeys(AFFINITY, b""), **left}) == word
    assert _affinity({}) is None
    assert _affinity(dict.fromkeys(AFFINITY, b"")) is None


# ---- all models -----------------------------------------------------------------------------------------------------------


def test_what_an_engine_can_hold_is_told_to_its_own_model() -> None:
    guides = Guides(("m", "n"), Tuning(chunk_tokens=CHUNK), Clock(), random.Random(1))
    guides.told("m", "a", EngineInfo(kv_tokens=1600))
    guides.told("n", "a", EngineInfo())
    guides.told("unknown", "a", EngineInfo(kv_tokens=1600))
    believed = {model: guides.of(model).router.snapshot("a").capacity_tokens for model in "mn"}
    assert believed == {"m": 1600, "n": 512 * 1024}
    with pytest.raises(KeyError):
        guides.of("unknown")


def test_an_engine_that_was_taken_out_and_named_again_is_believed_empty_though_nobody_asked_meanwhile() -> None:
    our, registry = guide(), fleet()
    member = fleet("a").members["a"]
    registry.add(member)
    registry.set_ready("a", True)
    route = routed(our, range(160), "r")
    route.first(registry.view("m"))
    route.served(160, 9, None, ())
    registry.leave("a")
    registry.remove("a")
    registry.add(member)
    registry.set_ready("a", True)
    again = routed(our, range(160), "s")
    assert again.first(registry.view("m")).cached_tokens == 0
    registry.set_ready("a", False)
    registry.set_ready("a", True)
    assert again.first(registry.view("m")).cached_tokens == 0


# ---- a route --------------------------------------------------------------------------------------------------------------


def routed(our: Guide, ids: range, name: str) -> Route:
    return Route(our, our.asked(said("x"), prompt(ids), None), name)


def test_a_route_charges_as_it_chooses_and_gives_back_once() -> None:
    our = guide()
    route = routed(our, range(1000), "r")
    assert route.enters(AB).engine in ("a", "b")
    assert our.router.open == 1
    for _ in range(3):
        route.close()
        assert our.router.idle


def test_one_that_never_chose_has_nothing_to_give_back() -> None:
    our = guide()
    routed(our, range(1000), "r").close()
    assert our.router.idle


def test_it_is_charged_once_however_often_it_chooses() -> None:
    our = guide()
    route = routed(our, range(1000), "r")
    for choose in (route.enters, route.first, lambda view: route.next(view, {"b"}), route.enters):
        choose(AB)
        assert our.router.open == 1
    assert sum(our.router.pending_s(engine) > 0 for engine in "ab") == 1
    route.close()
    assert our.router.idle


def test_what_failed_is_passed_over_and_another_is_charged() -> None:
    our = guide()
    route = routed(our, range(1000), "r")
    failed = route.first(AB).engine
    assert failed is not None
    choice = route.next(AB, {failed})
    assert (choice.why, {failed, choice.engine}) == ("elsewhere", {"a", "b"})
    assert our.router.pending_s(failed) == 0
    assert route.next(AB, {"a", "b"}).engine is None
    assert route.forecast is None
    assert our.router.idle


@pytest.mark.parametrize("prefilled", [True, False])
def test_what_was_served_is_believed_cached_with_its_answer_and_is_over(prefilled: bool) -> None:
    our = guide()
    route = routed(our, range(160), "r")
    route.first(ALONE)
    if prefilled:
        route.prefilled()
    answer = tuple(range(700, 733))
    route.served(160, 33, None, answer)
    assert our.router.idle
    assert our.router.entries == 12
    route.close()
    assert our.router.entries == 12, "what was served is cancelled by nobody"
    turn = Route(our, our.asked(said("x"), Prompt("", (*range(160), *answer, *range(900, 950)), frozenset()), None), "s")
    assert turn.first(ALONE).cached_tokens == 192


def test_one_that_was_cut_before_its_first_token_left_nothing_and_after_it_its_prompt() -> None:
    our = guide()
    for prefilled, entries in ((False, 0), (True, 10)):
        route = routed(our, range(160), f"r{prefilled}")
        route.first(ALONE)
        if prefilled:
            route.prefilled()
        route.close()
        assert (our.router.idle, our.router.entries) == (True, entries)


def test_a_first_token_of_an_attempt_that_is_over_says_nothing() -> None:
    our = guide()
    route = routed(our, range(160), "r")
    route.first(ALONE)
    route.close()
    route.prefilled()
    assert our.router.idle
    assert our.router.entries == 0


def test_several_answers_of_a_request_are_several_charges() -> None:
    our = guide()
    routes = [routed(our, range(160), f"r/{choice}") for choice in range(3)]
    for route in routes:
        route.first(AB)
    assert our.router.open == 3
    for route in routes:
        route.close()
    assert our.router.idle


def held(our: Guide) -> Iterator[Route]:
    """Routes on one engine, until one is held."""
    for number in range(500):
        route = routed(our, range(number << 16, (number << 16) + 16_000), f"r{number}")
        yield route
        if route.enters(ALONE).hold:
            return
    pytest.fail("none is held")


def test_one_that_is_held_charges_nothing_and_knows_what_is_expected() -> None:
    our = guide()
    *running, last = held(our)
    assert our.router.open == len(running) > 0
    assert last.forecast is not None
    assert last.forecast.ttft_s > 1.0
    last.close()
    assert last.first(ALONE).engine == "a", "it goes now, if it must"
    for route in (*running, last):
        route.close()
    assert our.router.idle


def test_one_that_was_let_go_is_never_held_again() -> None:
    our = guide(hold_s=0.0)
    first = routed(our, range(16_000), "first")
    first.first(ALONE)
    route = routed(our, range(1 << 20, (1 << 20) + 16_000), "r")
    assert route.enters(ALONE).hold
    assert [route.first(ALONE).hold, route.next(ALONE, ()).hold] == [False, False]


def test_a_text_that_was_served_teaches_its_tokens_and_brings_its_prompt_alone() -> None:
    our = guide()
    text = said("x" * 8000, "go on")
    asked = our.asked(text, None, None)
    route = Route(our, asked, "r")
    route.first(ALONE)
    route.prefilled()
    route.served(4000, 20, None, ())
    assert our.asked(text, None, None).tokens > asked.tokens
    assert our.router.entries == len(asked.keys)
    turn = our.asked(said("x" * 8000, "go on", "an answer", "more"), None, None)
    cached = Route(our, turn, "s").first(ALONE).cached_tokens
    assert cached == turn.ends[len(asked.keys) - 1]


def test_what_an_engine_had_of_a_text_is_compared_as_a_part_of_it() -> None:
    """Its tokens are twice as many as were estimated, of which it had half."""
    our = guide()
    asked = our.asked(said("x" * 8000), None, None)
    assert our.counted(asked, 2 * asked.tokens, asked.tokens) == round(asked.tokens / 2)


def test_a_long_text_after_short_ones_is_known_by_its_bytes() -> None:
    our, turns = guide(), [f"turn {number}" for number in range(30)]
    short = our.asked(said(*turns), None, None)
    route = Route(our, short, "r")
    route.first(ALONE)
    route.prefilled()
    route.served(short.tokens, 20, None, ())
    long = our.asked(said(*turns, "x" * 60_000), None, None)
    assert Route(our, long, "s").first(ALONE).cached_tokens == short.tokens


def test_packed_ids_are_what_is_kept_of_a_prompt() -> None:
    asked = guide().asked(said("x"), prompt(range(100)), None)
    assert asked.data == packed(range(100))
    assert isinstance(asked, Asked)
