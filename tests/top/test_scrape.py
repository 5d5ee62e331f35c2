"""A scrape's text becomes numbers, whatever the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.events import DONE, MADE
from support.metrics import metrics_of
from support.scrapes import text_of

from gateway.observe.group import Served
from gateway.top.scrape import FAMILIES, MAX_BYTES, NotMetrics, Scrape, read, taken

UP = 'interlock_engine_up{model="m",engine="e"}'


def test_what_is_shown_is_read_and_nothing_else() -> None:
    text = b"# HELP interlock_engine_up x\n# TYPE interlock_engine_up gauge\n" + text_of({UP: 1, "interlock_spans_waiting": 7})
    assert read(text, 2.5) == Scrape(2.5, {"interlock_engine_up": {(("engine", "e"), ("model", "m")): 1.0}})


def test_the_gateway_s_own_metrics_are_read_alike_as_text_and_as_they_are() -> None:
    metrics = metrics_of([Served("m", ("a",), ("hermes",))])
    metrics(MADE)
    metrics(DONE)
    _, text = metrics.copied()("")
    assert read(text, 1.0) == taken(metrics.moment(FAMILIES)(), 1.0)
    assert read(text, 1.0).of("interlock_completion_tokens_total") == {(("engine", "a"), ("model", "m")): 20.0}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_a_value_that_none_can_be_is_not_told(value: str) -> None:
    assert read(f"{UP} {value}\ninterlock_pressure 1\n".encode(), 0.0).of("interlock_engine_up") == {}


def test_labels_are_as_they_were_written_and_bounded() -> None:
    text = 'interlock_engine_up{model="a\\"b\\\\c\\nd\x1b[2J",engine="' + "x" * 1000 + '"} 1\n'
    ((labels, _),) = read(text.encode(), 0.0).of("interlock_engine_up").items()
    assert dict(labels) == {"model": 'a"b\\c\nd\x1b[2J', "engine": "x" * 256}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>not found</html>",
        b"other_metric 1\n",
        b"interlock_engine_up{ 1\n",
        b'interlock_engine_up{model="m} 1\n',
        b"interlock_engine_up one\n",
        b"interlock_engine_up\n",
        b'interlock_engine_up{model="' + b"x" * 5000 + b'"} 1\n',
        b"interlock_pressure 1\n" * 250_000,
        b"interlock_engine_up{" + b",".join(b'a%d="x"' % number for number in range(17)) + b"} 1\n",
        b"#" * (MAX_BYTES + 1),
    ],
)
def test_what_is_no_scrape_of_a_gateway_is_refused(text: bytes) -> None:
    with pytest.raises(NotMetrics):
        read(text, 0.0)


_PIECES = st.sampled_from(
    [
        "interlock_engine_up",
        "interlock_pressure",
        "{",
        "}",
        '"',
        "\\",
        "=",
        ",",
        " ",
        "\t",
        "\n",
        "1",
        "_",
        "#",
        "# TYPE ",
        "é",
        "\x00",
    ]
)


@given(st.lists(_PIECES | st.text(max_size=3), max_size=40).map("".join))
def test_any_text_is_a_scrape_or_refused(text: str) -> None:
    for data in (text.encode(errors="replace"), f"interlock_engine_up{text}".encode(errors="replace")):
        try:
            scrape = read(data, 0.0)
        except NotMetrics:
            continue
        assert scrape.samples.keys() <= FAMILIES
