"""docs/formats.md is true: its made-up family works as it stands there, and so is what it argues with the public suite."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.errors import BadRequest
from gateway.formats import registry
from gateway.formats.base import Format
from gateway.parsing import Case, chunking, parse, read_tools

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
ARGUED = yaml.safe_load((ROOT / "tests" / "conformance" / "argued.yaml").read_text(encoding="utf-8"))["argued"]
TOOLS = read_tools(b'[{"name": "look", "parameters": {"properties": {"path": {"type": "string"}}}}]')


def made_up() -> dict[str, Format]:
    """The guide's family: its file as it stands there."""
    code = GUIDE.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  our own document
    return dict(registry.by_name([names["FORMAT"]]))


@pytest.mark.parametrize("chunks", ["one", "char", "random:1"])
def test_the_guide_s_family_works(chunks: str) -> None:
    raw = '<think>hm</think>Hi<call>{"name": "look", "arguments": {"path": "a"}}</call>'
    case = Case(raw=raw, format="made_up", tools=TOOLS)
    assert parse(case, made_up(), chunking(chunks)) == {
        "reasoning": "hm",
        "content": "Hi",
        "tool_calls": [{"id": "call_0", "name": "look", "arguments": '{"path": "a"}'}],
        "failures": [],
        "finish_reason": "tool_calls",
    }
    with pytest.raises(BadRequest, match="no format; known: made_up"):
        parse(Case(raw=raw, format="hermes"), made_up(), chunking(chunks))


@pytest.mark.parametrize("case", ARGUED)
def test_what_is_argued_is_what_is_given(case: str) -> None:
    said = ARGUED[case]
    asked = Case(raw=said["raw"], format=said["format"], tools=TOOLS, finish_reason=said.get("finish_reason", "stop"))
    given = parse(asked, registry.load(), chunking("one"))
    answer = {"content": given["content"], "calls": [call["name"] for call in given["tool_calls"]]}
    assert answer == said["ours"] != said["suite"]
