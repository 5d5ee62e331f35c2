"""What is read of recorded traffic, and what is told of a file that cannot be read."""

from pathlib import Path

import pytest

from lab import traces
from lab.traces import BLOCK_TOKENS, Prompt, Reading, Request, Trace, TraceError, multiplied, read, shared

DATA = Path(__file__).parent.parent / "data" / "traces"
ROW = '{"timestamp": 3000, "input_length": 1025, "output_length": 0, "hash_ids": [0, 7, 9]}'
SESSION = '{"id": "a", "bs": 64, "tool": 1000, "sys": 100, "r": %s}'
FIRST = "[0.0, 2048, 5, 32, -1, 0, 0, 1.0, 0]"
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


def test_mooncake(trace_file: Path) -> None:
    trace_file.write_text(ROW + "\n\n" + ROW.replace("[0, 7, 9]", "[0]") + "\n")
    trace = read(trace_file)
    assert trace.requests[0] == Request(Prompt(0, 1025, (0, 7, 9), 0), 1, 3.0)
    assert trace.requests[1].prompt.path == (0,)
    assert not trace.paced


def test_a_turn_that_goes_on_is_of_the_same_session(trace_file: Path) -> None:
    paths = ([0, 1, 2], [0, 1, 3, 4], [0, 5], [0, 1, 3, 4, 6], [0, 5])
    rows = (f'{{"timestamp": 0, "input_length": 2560, "output_length": 1, "hash_ids": {path}}}' for path in paths)
    trace_file.write_text("\n".join(rows))
    assert [each.prompt.session for each in read(trace_file).requests] == [0, 0, 1, 0, 1]


def test_azure(trace_file: Path) -> None:
    trace_file.write_text(CSV + "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,0\r\n")
    first, second = read(trace_file).requests
    assert first == Request(Prompt(0, 4808, (), 0), 10, 0.0)
    assert second.at_s == pytest.approx(0.052)
    assert (second.output_tokens, second.prompt.session) == (1, 1)


def test_sessions_keep_their_prefixes_and_thinks(trace_file: Path) -> None:
    second = "[9.0, 4096, 6, 64, 0, 24, 3.5, 1.0, 0]"
    trace_file.write_text(SESSION % f"[{FIRST}, {second}]")
    trace = read(trace_file)
    one, two = trace.requests
    assert trace.paced
    assert len(one.prompt.path) == 2048 // BLOCK_TOKENS
    assert len(two.prompt.path) == 4096 // BLOCK_TOKENS
    assert shared(two.prompt.path, set(one.prompt.path)) == 24 * 64 // BLOCK_TOKENS
    assert (two.after, two.think_s, two.at_s - one.at_s) == (0, 3.5, 9.0)


def test_equal_tools_are_shared_between_sessions_and_nothing_else(trace_file: Path) -> None:
    trace_file.write_text(
        "\n".join([SESSION % f"[{FIRST}]", SESSION % f"[{FIRST}]", (SESSION % f"[{FIRST}]").replace("1000", "900")])
    )
    paths = [each.prompt.path for each in read(trace_file).requests]
    common = sorted(shared(one, set(other)) for one, other in zip(paths, paths[1:] + paths[:1], strict=True))
    assert common == [0, 0, 1100 // BLOCK_TOKENS]


def test_the_seed_draws_the_sessions_and_the_limit_cuts_them() -> None:
    one, same, other = (read(DATA / "agents.jsonl", Reading(limit=40, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len(one.requests) == 40
    assert [each.prompt.id for each in one.requests] == list(range(40))


def test_a_session_beyond_the_context_window_is_left_out() -> None:
    every, short = read(DATA / "agents.jsonl"), read(DATA / "agents.jsonl", Reading(most_input_tokens=16_000))
    assert 0 < len(short.requests) < len(every.requests)
    assert max(each.prompt.tokens for each in short.requests) <= 16_000


def test_copies_share_nothing() -> None:
    trace = read(DATA / "agents.jsonl", Reading(limit=30))
    three = multiplied(trace, 3)
    groups = [three.requests[start : start + 30] for start in (0, 30, 60)]
    assert groups[0] == trace.requests
    blocks = [{block for each in group for block in each.prompt.path} for group in groups]
    assert all(len(each) == len(blocks[0]) for each in blocks)
    assert not blocks[0] & blocks[1] | blocks[1] & blocks[2] | blocks[0] & blocks[2]
    assert all(each.after is None or each.prompt.id - each.after == 1 for each in three.requests)
    with pytest.raises(TraceError, match="more than"):
        multiplied(Trace("x", trace.requests), 1_000_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: neither"),
        ("hello\n", "1: neither"),
        ("\xff\n", "1: neither"),
        (ROW + '\n{"timestamp": 1}', "2: .*hash_ids|2: .*input_length"),
        (ROW + "\n{", "2: "),
        (ROW + "\n" + ROW.replace("1025", "1024"), "2: hash_ids: 3 blocks of 512 for 1024 tokens"),
        (ROW + "\n" + ROW.replace("1025", "0"), "2: 0 tokens in"),
        (ROW + "\n" + ROW.replace("7", "-7"), "2: a negative"),
        (ROW + "\n" + ROW.replace("3000", '"x"'), "2: timestamp"),
        (ROW + "\n" + ROW.replace("3000", "-1"), "2: a negative"),
        (CSV, "no requests"),
        (CSV.replace("T", "X"), "neither"),
        (CSV.replace(",Gen", ",,Gen"), "1: the columns are"),
        (CSV + "2023-11-16 18:17:03,4808,10\nyesterday,1,1", "3: not a time"),
        (CSV + "2023-11-16 18:17:03,4808", "2: not a time"),
        (CSV + "2023-11-16 18:17:03,4808,-1", "2: 4808 tokens in and -1 out"),
        (CSV + "2023-11-16 18:17:03,48,1\n2023-11-16 18:17:02,48,1", "3: a time before"),
        (SESSION % "[]", "no requests"),
        ((SESSION % f"[{FIRST}]").replace('"bs": 64', '"bs": 100'), "1: blocks of 100 tokens"),
        (SESSION % f"[{FIRST.replace('-1', '0')}]", r"1: r\[0\]: 32 blocks, 0 of them from request 0"),
        (SESSION % f"[{FIRST.replace('32', '3200')}]", r"1: r\[0\]: 3200 blocks"),
        (SESSION % "[[1, 2]]", "1: r"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(trace_file: Path, text: str, said: str) -> None:
    trace_file.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError, match=said) as raised:
        read(trace_file)
    assert str(raised.value).startswith(str(trace_file))


def test_a_line_has_an_end(trace_file: Path) -> None:
    trace_file.write_bytes(ROW.encode() + b"\n" + b" " * (17 << 20))
    with pytest.raises(TraceError, match=r"t\.jsonl:2: a line of more than"):
        read(trace_file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "none.jsonl")


def test_what_is_kept_is_bounded(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_file.write_text(f"{ROW}\n{ROW}\n{ROW}\n")
    monkeypatch.setattr(traces, "MOST_REQUESTS", 2)
    with pytest.raises(TraceError, match="3: more than 2 requests"):
        read(trace_file)
    assert len(read(trace_file, Reading(limit=2)).requests) == 2
    monkeypatch.setattr(traces, "MOST_BLOCKS", 5)
    with pytest.raises(TraceError, match="2: prompts of more than 5 blocks"):
        read(trace_file, Reading(limit=2))


def test_sessions_are_kept_up_to_a_size(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_file.write_text((SESSION % f"[{FIRST}]" + "\n") * 3)
    monkeypatch.setattr(traces, "_MOST_SESSIONS_BYTES", 200)
    with pytest.raises(TraceError, match=r"\.jsonl:3: sessions of more than 200 bytes"):
        read(trace_file)


def test_a_line_that_is_no_text(trace_file: Path) -> None:
    trace_file.write_bytes(CSV.encode() + b"2023-11-16 18:17:03,\xff,1\n")
    with pytest.raises(TraceError, match="2: not a line of CSV"):
        read(trace_file)
