"""`interlock simulate` as its user meets it: what it prints, and the exit code (0 ok, 1 failed, 2 usage or a bad trace)."""

import json
import re
import sys
from pathlib import Path

import pytest

from gateway import cli

DATA = Path(__file__).parent.parent / "data" / "traces"
ENGINES = ("--engines", "2", "--blocks", "100")


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["interlock", "simulate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def test_it_says_what_people_compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(monkeypatch, capsys, DATA / "agents.jsonl", *ENGINES, "--policy", "sglang_like")
    assert code == 0
    assert out.startswith("agents, sglang_like, 2 engines: 174 requests in ")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["TTFT", "TPOT", "hit", "imbalance", "prefill", "pre-empted"]
    assert "174 requests simulated in" in err


def test_the_examples_of_the_documentation_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    examples = re.findall(r"```(?:json|csv)\n(.*?)```", text, re.DOTALL)
    hits = []
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.trace"
        file.write_text(example)
        code, out, _ = call(monkeypatch, capsys, file, "--engines", "2", "--json")
        assert code == 0
        report = json.loads(out)
        assert report["requests"] == (3, 3, 2)[number]
        hits.append(report["hit_rate"] > 0)
    assert hits == [True, True, False]


def test_json_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = (DATA / "agents.jsonl", *ENGINES, "--json", "--limit", "100", "--speed", "2", "--copies", "2", "--seed")
    one, same, other = (call(monkeypatch, capsys, *run, seed)[1] for seed in (1, 1, 2))
    assert one == same != other
    report = json.loads(one)
    assert report["requests"] == 200
    assert report["policy"] == "cost"
    assert report["ttft"].keys() == report["tpot"].keys() == {"mean", "p50", "p95", "p99"}
    assert 0 < report["hit_rate"] < 1 <= report["imbalance"]


def test_an_open_loop_and_a_cautious_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = (DATA / "agents.jsonl", *ENGINES, "--json")
    made = [json.loads(call(monkeypatch, capsys, *run, *more)[1]) for more in ((), ("--loop", "open"), ("--reserve", "output"))]
    assert len({each["span_s"] for each in made}) == 3
    assert made[2]["preempted"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((DATA / "none.jsonl", *ENGINES), 2, "none.jsonl: No such file"),
        ((Path(__file__), *ENGINES), 2, "test_simulate_command.py:1: neither"),
        ((DATA / "chats.jsonl",), 2, "--engines"),
        ((DATA / "chats.jsonl", "--engines", "0"), 2, "--engines"),
        ((DATA / "chats.jsonl", *ENGINES, "--policy", "best"), 2, "--policy"),
        ((DATA / "chats.jsonl", *ENGINES, "--speed", "0"), 2, "--speed"),
        ((DATA / "agents.jsonl", *ENGINES, "--sessions-per-s", "-1"), 2, "--sessions-per-s"),
        ((DATA / "chats.jsonl", *ENGINES, "--loop", "wide"), 2, "--loop"),
        ((DATA / "chats.jsonl", *ENGINES, "--copies", "1000000"), 2, "copies are more than"),
        ((DATA / "lengths.csv", "--engines", "1", "--blocks", "1", "--limit", "2"), 1, "every request is longer"),
    ],
)
def test_what_is_wrong_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], code: int, said: str
) -> None:
    ended, out, err = call(monkeypatch, capsys, *arguments)
    assert ended == code
    assert not out
    assert said in " ".join(err.split())


def test_nothing_of_the_lab_is_loaded_by_the_gateway() -> None:
    """It is the entry point that brings the command."""
    assert not [name for name, module in sys.modules.items() if name.startswith("gateway.") and "lab" in vars(module)]
