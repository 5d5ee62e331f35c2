"""What is read out of an engine's scrape, and what is made of one that is none."""

import random
import time

import pytest

from engines.base import MAX_LOAD_BYTES, EngineLoad
from engines.exposition import LoadScrape, Scrape, added, count, fullest, number, of_rank

PLAIN = LoadScrape(running="e:running", waiting="e:waiting", prompt_tokens="e:prompts", kv_usage="e:kv", rank="engine")
COPIES = LoadScrape(
    running="e:running", waiting="e:waiting", prompt_tokens="e:prompts", kv_usage="e:kv", rank="dp_rank", copies=True
)
NOTHING = EngineLoad()


def scraped(*lines: str) -> bytes:
    return "\n".join(["# HELP e:running Requests.", "# TYPE e:running gauge", *lines, "process_threads 9", ""]).encode()


def test_it_tells_by_what_an_engine_is_known_again() -> None:
    body = scraped("process_start_time_seconds 1.79612783139e+09", 'e:prompts{engine="0"} 7', 'e:prompts{engine="1"} 5')
    for rank in (None, 1):  # it is one server
        assert PLAIN.load(body, rank) == EngineLoad(prompt_tokens=12, started_s=1796127831.39)
    for start in ("NaN", "0", "-1", "Inf", "1e300", "x"):
        assert PLAIN.load(scraped(f"process_start_time_seconds {start}"), None) == NOTHING


def test_each_form_of_a_line_is_read() -> None:
    scrape = Scrape("a", "b:c")
    body = b'a 1\na{} 2 \r\na{x="1",y="}, \\" \\\\",} 3.5 1700000000000\n b:c 4\nb:c\t5\na_total 6\nb:c{z="\xff"} +Inf\na'
    assert [(each.name, dict(each.labels), each.value) for each in scrape.samples(body)] == [
        ("a", {}, 1.0),
        ("a", {}, 2.0),
        ("a", {"x": "1", "y": '}, \\" \\\\'}, 3.5),
        ("b:c", {}, 5.0),
        ("b:c", {"z": "\ufffd"}, float("inf")),
    ]


def test_series_of_ranks_are_added_and_the_fullest_cache_counts() -> None:
    body = scraped(
        'e:running{engine="0"} 2.0',
        'e:running{engine="1"} 3.0',
        'e:waiting{engine="0"} 0',
        'e:waiting{engine="1"} 7',
        'e:kv{engine="0"} 0.25',
        'e:kv{engine="1"} 0.5',
        'e:waiting_by_reason{engine="1"} 100',
    )
    assert PLAIN.load(body, None) == EngineLoad(5, 7, 0.5)
    assert PLAIN.load(body, 0) == EngineLoad(2, 0, 0.25)
    assert PLAIN.load(body, 1) == EngineLoad(3, 7, 0.5)
    assert PLAIN.load(body, 2) == NOTHING


def test_a_rank_is_not_that_of_series_that_do_not_say_theirs() -> None:
    assert PLAIN.load(scraped("e:running 2", "e:waiting 1", "e:kv 0.5"), 0) == NOTHING
    assert of_rank(Scrape("a").samples(b"a 1\n"), None, 0) == []


def test_requests_that_several_series_of_a_rank_tell_are_counted_once() -> None:
    body = scraped(
        'e:running{dp_rank="0",tp_rank="0",priority=""} 5',
        'e:running{dp_rank="0",tp_rank="0",priority="1"} 2',
        'e:running{dp_rank="0",tp_rank="0",priority="2"} 3',
        'e:running{dp_rank="0",tp_rank="1",priority=""} 5',
        'e:running{dp_rank="1",tp_rank="2",priority=""} 1',
        'e:waiting{tp_rank="0"} 4',
        'e:waiting{tp_rank="1"} 4',
    )
    assert COPIES.load(body, None) == EngineLoad(6, 4, None)
    assert COPIES.load(body, 0) == EngineLoad(5, None, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "2.5", "x", "", "9" * 40, "1e-400x", "0x10"])
def test_a_figure_that_cannot_be_is_none_and_spoils_its_sum_alone(value: str) -> None:
    body = scraped('e:running{engine="0"} 1', f'e:running{{engine="1"}} {value}', "e:waiting 3", "e:kv 0.5")
    assert PLAIN.load(body, None) == EngineLoad(None, 3, 0.5)
    assert COPIES.load(body, None) == EngineLoad(None, 3, 0.5)


@pytest.mark.parametrize("value", ["1.01", "-0.1", "NaN", "Inf", "50%"])
def test_a_share_that_cannot_be_is_none(value: str) -> None:
    assert PLAIN.load(scraped("e:running 1", f"e:kv {value}"), None) == EngineLoad(running=1)


def test_nothing_is_not_zero() -> None:
    assert PLAIN.load(scraped(), None) == NOTHING
    assert PLAIN.load(scraped("e:running 0"), None) == EngineLoad(running=0)
    assert added([]) is None
    assert added([0.0]) == 0
    assert fullest([]) is None
    assert fullest([0.0]) == 0.0


def test_a_line_that_is_too_long_is_not_left_out_of_a_sum() -> None:
    long = 'e:running{engine="1",a="' + "x" * 3000 + '"} 4'
    assert PLAIN.load(scraped('e:running{engine="0"} 1', long, "e:waiting 3"), None) == EngineLoad(None, 3, None)
    assert PLAIN.load(scraped('e:running{engine="0"} 1', "e:running " + "1" * 2048 + "0"), None) == NOTHING


def test_numbers() -> None:
    assert [count(value) for value in (0.0, 3.0, -1.0, 0.5, 2.0**40, 2.0**41, float("nan"))] == [
        0,
        3,
        None,
        None,
        2**40,
        None,
        None,
    ]
    assert number("12") == 12.0
    assert number("None") != number("None")


WHOLE = scraped('e:running{engine="0"} 2', 'e:waiting{engine="0"} 1', 'e:kv{engine="0"} 0.5')
HOSTILE = {
    "empty": b"",
    "zeros": b"\0" * 4096,
    "not_text": bytes(range(256)) * 64,
    "html": b"<html>e:running 1</html>",
    "json": b'{"e:running": 1}',
    "too_large": WHOLE + b"#" * MAX_LOAD_BYTES,
    "fifty_mb": b"e:running 1\n" * (50_000_000 // 12),
    "too_many": b"e:running 1\n" * 600,
    "endless_line": b'e:running{a="' + b"x" * 1_000_000 + b'"} 1',
    "braces": b"e:running{" + b"} " * 500_000,
    "open_quotes": (b"e:running{" + b'a="\\' * 500 + b"\n") * 600,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_scrape_says_nothing_and_costs_little(name: str) -> None:
    began_s = time.process_time()
    assert PLAIN.load(HOSTILE[name], None) == NOTHING
    assert COPIES.load(HOSTILE[name], 0) == NOTHING
    assert time.process_time() - began_s < 5  # a tenth of a second at the most; what is not linear takes minutes


def test_any_damage_to_a_scrape_is_a_figure_or_none() -> None:
    chance = random.Random(6)
    for _ in range(3000):
        body = bytearray(WHOLE)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(body))
            body[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        load = PLAIN.load(bytes(body), chance.choice([None, 0]))
        assert load.running is None or load.running >= 0
        assert load.kv_usage is None or 0 <= load.kv_usage <= 1
