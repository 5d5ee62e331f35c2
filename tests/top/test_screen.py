"""What a view looks like in a terminal."""

import io

import pytest
from rich.console import Console
from support.scrapes import UP, ended, scrape

from gateway.top import wording
from gateway.top.screen import Frame, rooms, screen
from gateway.top.view import View, view_of
from gateway.top.window import History

URL = "http://127.0.0.1:8081/metrics"


def drawn(view: View | None, width: int = 140, height: int | None = None, lost: str = "") -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=False)
    console.print(screen(view, Frame(URL, "12:00:00", width, height, lost)))
    return out.getvalue().split("\n")[:-1]


def view(**more: float) -> View:
    history = History(60)
    history.add(scrape(0.0))
    return view_of(history.add(scrape(10.0, {**UP, ended("ok"): 20}, **more)))


def fleet(count: int, models: int = 1, up: float = 1.0) -> View:
    samples: dict[str, float] = {"interlock_pressure": 0.0}
    samples |= {f'interlock_engine_up{{model="model-{n % models}",engine="engine-{n}"}}': up for n in range(count)}
    history = History(60)
    history.add(scrape(0.0, samples))
    return view_of(history.add(scrape(10.0, samples)))


def test_before_the_first_scrape_it_says_that_it_waits() -> None:
    lines = drawn(None, height=24)
    assert "waiting for the first scrape" in lines[2]
    assert "not reached" in drawn(None, height=24, lost="not reached: no")[2]


def test_the_first_scrape_shows_no_rate_and_says_why() -> None:
    text = "\n".join(drawn(view_of(History(60).add(scrape(0.0)))))
    assert "rates and times come with the second scrape" in text
    assert "3 running" in text
    assert "nothing is wrong" not in text
    (row,) = [line for line in text.split("\n") if line.startswith("m ")]
    assert row.split() == ["m", "1/1", "–", "–", "3", "0", "–", "–", "–", "–", "–", "–", "–"]


def test_what_is_known_is_shown_with_its_units() -> None:
    lines = drawn(view())
    assert lines[1].startswith("2.0 requests/s   0 tokens/s   3 running   0 waiting   – / – TTFT p50 / p95   0% fail")
    assert "✓ nothing is wrong" in lines[3]


def test_what_is_wrong_comes_before_all_tables() -> None:
    lines = drawn(view(engine_up=0))
    assert lines[3].startswith("✗ m  no engine can serve it")
    assert lines[4].startswith("✗ m e  down")
    assert next(at for at, line in enumerate(lines) if line.startswith("model")) > 4


def test_a_gateway_that_is_gone_is_told_over_what_it_said_last() -> None:
    lines = drawn(view(), lost="not reached: refused; trying again; what is shown is of 11:59:58")
    assert lines[3].startswith("✗ not reached: refused; trying again; what is shown is of 11:59:58")
    assert any(line.startswith("m ") for line in lines)


def test_the_worst_engine_is_above_the_others() -> None:
    samples = {f'interlock_engine_up{{model="m",engine="{name}"}}': float(name != "q") for name in "abcdefghijklmnopqrstuvwxyz"}
    lines = drawn(view_of(History(60).add(scrape(0.0, samples))), 80, 24)
    (head,) = [at for at, line in enumerate(lines) if line.startswith("engine")]
    assert lines[head + 1].startswith("q ")
    assert "more)" in lines[head]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [1, 3, 6, 10, 24, 60])
@pytest.mark.parametrize("shown", [fleet(0), fleet(2), fleet(300, 40), fleet(300, 40, 0.0), view(engine_up=0)])
def test_it_fits_whatever_the_terminal(width: int, height: int, shown: View) -> None:
    lines = drawn(shown, width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 3 + 2 + max(3, height // 3))  # a terminal of a few lines shows what is wrong


def test_a_narrow_terminal_shows_fewer_columns_and_cuts_none() -> None:
    samples = {'interlock_engine_up{model="' + "m" * 26 + '",engine="local-1"}': 1.0}
    seen = view_of(History(60).add(scrape(0.0, samples)))
    counts = []
    for width in (140, 110, 80, 60):
        lines = drawn(seen, width, 30)
        tables = [line for line in lines if line.startswith(("model ", "engine ", "m", "local-1"))]
        assert not [line for line in tables if "…" in line]
        counts.append(len(next(line for line in lines if line.startswith("engine ")).split()))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_all_of_it_is_printed_once() -> None:
    lines = drawn(fleet(300))
    assert sum(line.startswith("engine-") for line in lines) == 300


@pytest.mark.parametrize(
    ("sizes", "lines", "given"),
    [
        ([], 10, []),
        ([5], 0, []),
        ([5], -4, []),
        ([5], 3, [1]),
        ([5, 5], 5, [3]),
        ([5, 5], 6, [1, 1]),
        ([1, 50, 2], 20, [1, 11, 2]),
        ([1, 2], 50, [1, 2]),
    ],
)
def test_lines_are_shared_among_lists(sizes: list[int], lines: int, given: list[int]) -> None:
    assert rooms(sizes, lines) == given


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e[red]x[/red]"


def test_no_name_reaches_the_terminal_as_more_than_text() -> None:
    name = HOSTILE.replace("\n", "\\n")
    samples = {
        f'interlock_engine_up{{model="{name}",engine="{name}"}}': 0.0,
        f'interlock_engine_info{{model="{name}",engine="{name}",kind="{name}",version="{name}"}}': 1.0,
        f'interlock_parse_failures_total{{model="{name}",engine="{name}",format="{name}",kind="{name}"}}': 1.0,
        f'interlock_request_failures_total{{model="{name}",outcome="timeout",reason="{name}"}}': 1.0,
        f'interlock_build_info{{version="{name}"}}': 1.0,
        f'interlock_config_reload_failed{{origin="{name}"}}': 1.0,
    }
    text = "".join(drawn(view_of(History(60).add(scrape(0.0, samples))), 400, lost=HOSTILE))
    assert text.isprintable()
    assert "\\x1b[2J" in text
    assert "[red]x[/red]" in text  # no markup either


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (wording.seconds, None, "–"),
        (wording.seconds, 0.0, "0 ms"),
        (wording.seconds, 0.0042, "4.2 ms"),
        (wording.seconds, 0.0421, "42 ms"),
        (wording.seconds, 0.0999, "0.10 s"),
        (wording.seconds, 0.996, "1.0 s"),
        (wording.seconds, 1.23, "1.2 s"),
        (wording.seconds, 75.4, "75 s"),
        (wording.rate, None, "–"),
        (wording.rate, 0.0, "0"),
        (wording.rate, 0.0001, "<0.01"),
        (wording.rate, 0.25, "0.25"),
        (wording.rate, 12.34, "12.3"),
        (wording.rate, 12345.6, "12,346"),
        (wording.count, None, "–"),
        (wording.count, 1234.0, "1,234"),
        (wording.share, None, "–"),
        (wording.share, 0.0, "0%"),
        (wording.share, 0.001, "<1%"),
        (wording.share, 0.999, ">99%"),
        (wording.share, 1.0, "100%"),
        (wording.text, None, "–"),
        (wording.text, "", "–"),
        (wording.text, "a\tb\u200b", "a\\tb\\u200b"),
        (wording.text, "x" * 500, "x" * 199 + "…"),
    ],
)
def test_wording(write: object, value: object, text: str) -> None:
    assert callable(write)
    assert write(value) == text
