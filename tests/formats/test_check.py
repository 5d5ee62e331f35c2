"""Whole calls of engines that parse by themselves, checked by the rules that hold for ours."""

import pytest

from gateway.formats.check import call_check
from gateway.request import FailureKind, ToolSpec

TOOLS = (
    ToolSpec("f", None, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    ToolSpec("free"),
    ToolSpec("odd", None, {"type": "no such type"}),
)


@pytest.mark.parametrize(
    ("name", "arguments", "kinds"),
    [
        ("f", '{"a": 1}', []),
        ("f", ' {"a": 1, "b": [null]} ', []),
        ("f", '{"a": "1"}', ["schema_mismatch"]),
        ("f", "{}", ["schema_mismatch"]),
        ("free", "{}", []),
        ("free", '{"x": {"y": 1}}', []),
        ("odd", '{"x": 1}', []),
        ("f", "[1]", ["not_an_object"]),
        ("f", "null", ["not_an_object"]),
        ("f", '"{}"', ["not_an_object"]),
        ("f", "", ["invalid_json"]),
        ("f", '{"a": 1', ["invalid_json"]),
        ("f", '{"a": NaN}', ["invalid_json"]),
        ("f", "[" * 100_000, ["invalid_json"]),
        ("g", '{"a": 1}', ["unknown_tool"]),
        ("", "{}", ["unknown_tool"]),
        ("F", '{"a": 1}', ["unknown_tool"]),
    ],
)
def test_a_call_is_known_an_object_and_of_its_schema(name: str, arguments: str, kinds: list[FailureKind]) -> None:
    check = call_check(TOOLS)
    assert check(name, arguments) == kinds
    assert check(name, arguments) == kinds  # the schema is read once, the answer stays


def test_without_tools_every_call_is_unknown() -> None:
    assert call_check(())("f", "{}") == ["unknown_tool"]
