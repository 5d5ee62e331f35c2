"""Grammars: what they admit satisfies the schema, and what the schema plainly wants is admitted."""

import contextlib
import json
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.gbnf import Grammar

from engines.gbnf import GrammarCache, gbnf
from engines.grammar.values import Limits
from gateway.errors import BadRequest
from gateway.request import CallAnswer, JsonAnswer, ToolSpec

Json = Any
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node", "description": "d"}},
            },
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/node",
}
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]}
OPTIONAL = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}}

# schema, texts of its language, texts that are not
CASES: list[tuple[Json, list[str], list[str]]] = [
    ({"type": "null"}, ["null"], ["nul", "", " null", "null "]),
    ({"type": "boolean"}, ["true", "false"], ["1"]),
    ({"type": "integer"}, ["0", "-1", "1234567890123456789"], ["-0", "01", "1.0", "1e3", "+1"]),
    ({"type": "number"}, ["0", "-0.5", "1e-7", "12.5E+10"], [".5", "1.", "1e", "01", "1e100", "NaN"]),
    ({"type": "number", "minimum": 0}, ["0.5"], ["-0.5"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.5"], ["-0.5"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.25", "1", "1.0"], ["1.01", "-0.1", "2", "10", "01", "0.", "1e3"]),
    ({"type": "number", "minimum": -2, "maximum": 10}, ["-2.0", "-1.99", "-0.5", "0", "9.99", "10"], ["-2.1", "10.5", "11"]),
    ({"type": "number", "minimum": -5, "maximum": -3}, ["-5", "-3", "-3.5"], ["-2.9", "-5.1", "3", "0"]),
    ({"type": "number", "minimum": 12}, ["12", "12.5", "400"], ["11.9", "-12", "0"]),
    ({"type": "number", "maximum": 12.5}, ["-1000.5", "0.1", "12.5", "13"], ["13.1", "14"]),
    ({"type": "number", "minimum": -1e300, "maximum": 1e300}, ["1e5", "-1"], ["x"]),
    ({"type": "integer", "minimum": 0}, ["0", "99"], ["-1"]),
    ({"type": "integer", "minimum": 2, "exclusiveMaximum": 11}, ["2", "9", "10"], ["1", "11", "20", "02"]),
    ({"type": "integer", "exclusiveMinimum": -12.5, "maximum": -3}, ["-12", "-3"], ["-13", "-2", "0", "12"]),
    ({"type": "integer", "minimum": 7}, ["7", "10", "8000"], ["6", "-7"]),
    ({"type": "integer", "maximum": 7}, ["7", "-8000", "0"], ["8", "10"]),
    ({"type": "string"}, ['""', '"aé🦙"', r'"\n\"\\\u00e9\uD7ff"'], ['"', r'"\x"', r'"\ud800"', '"\n"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', r'"\n\n\n"'], ['"a"', '"abcd"']),
    ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    ({"enum": ["a", 1, None, {"k": [1, "é"]}]}, ['"a"', "1", "null", '{"k":[1,"é"]}'], ['"b"', "2"]),
    ({"const": 'q"\n'}, [r'"q\"\n"'], ['"q"']),
    ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    ({"enum": [1, 2], "const": 2}, ["2"], ["1"]),
    ({"type": "integer", "enum": [1.0, 1.5, True]}, ["1.0"], ["1.5", "true"]),
    ({"type": "array", "enum": [[1], "x"]}, ["[1]"], ['"x"']),
    ({"type": ["boolean", "object"], "enum": [False, {}, 0]}, ["false", "{}"], ["0"]),
    ({"type": ["boolean", "string"], "enum": [None, [], 1.5, "a", False]}, ['"a"', "false"], ["null", "[]", "1.5"]),
    ({"type": "null", "enum": [None, 0]}, ["null"], ["0"]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"type": ["integer", "number"]}, ["1", "1.5"], ["null"]),
    ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1]", "[1,2, 3]"], ["[1 ,2]", "[1,]", "[null]", "[1,  2]"]),
    ({"items": {"type": "null"}, "minItems": 2, "maxItems": 3}, ["[null,null]", "[null,null,null]"], ["[]", "[null]"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 1}, ["[null]"], ["[]", "[null,null]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}}, ["[1,2]", "[1,2,3,3]"], ["[1]", "[1,3]"]),
    ({"prefixItems": [{"const": 1}], "minItems": 2}, ['[1,"x"]'], ["[1]"]),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1}, ["[1]"], ["[1,2]"]),
    ({"prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 2}, ["[1]", "[1,2]"], ["[1,2,2]"]),
    ({"prefixItems": [{"const": 1}], "items": False}, ["[1]"], ["[1,1]"]),
    ({"items": [{"const": 1}], "additionalItems": {"const": 2}}, ["[1,2]"], ["[2]"]),
    ({"type": "array"}, ['[1,[2,{"a": []}]]'], ["[[[[[[[1]]]]]]]"]),
    (PAIR, ['{"b":null}', '{"a": 1, "b": null}'], ["{}", '{"b":null,"a":1}', '{"a":1}', '{"b":null,}']),
    (OPTIONAL, ["{}", '{"a":1,"c":3}', '{"b":2}', '{"a":1,"b":2,"c":3}'], ["{,}", '{"c":3,"a":1}', '{"a":1,"a":1}']),
    ({"properties": {"a": False, "b": True}}, ['{"b":{"x":1}}', "{}"], ['{"a":1}']),
    ({"properties": {}, "required": ["x"], "additionalProperties": {"type": "null"}}, ['{"x":null}'], ["{}", '{"x":1}']),
    ({"required": ["x"]}, ['{"x":[1]}'], ["{}"]),
    ({"type": "object", "properties": {}}, ["{}"], ['{"x":1}']),
    ({"type": "object"}, ["{}", '{"x":1, "y":[{}]}'], ["[]", "{x:1}"]),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"x":1}']),
    ({"additionalProperties": {"const": 1}, "minProperties": 1, "maxProperties": 2}, ['{"a":1,"b":1}'], ["{}", '{"a":2}']),
    ({"patternProperties": {"^x": {"const": 1}}}, ['{"xa":1}'], ['{"xa":2}']),
    ({"type": "object", "maxProperties": 0}, ["{}"], ['{"a":1}']),
    ({"properties": {'q"\\\n': {"const": 1}}, "required": ['q"\\\n']}, [r'{"q\"\\\n":1}'], ["{}"]),
    ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, ["null", "1"], ['"x"']),
    ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1}'], ["{}", "null"]),
    (
        {"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {"const": 1}}}]},
        ['{"a":5}', '{"b":1}', '{"a":5,"b":1}', "{}"],
        ['{"a":"x"}'],
    ),
    (
        {"allOf": [{"properties": {"a": {"minimum": 3}}}, {"properties": {"a": {"type": "integer", "maximum": 4}}}]},
        ['{"a":3}', '{"a":4}', "{}"],
        ['{"a":2}', '{"a":5}'],
    ),
    ({"type": "integer", "minimum": 1, "maximum": 9, "allOf": [{"minimum": 3, "maximum": 12}]}, ["3", "9"], ["2", "10"]),
    ({"allOf": [{"type": ["integer", "string"]}, {"type": ["number", "null"]}]}, ["1"], ["1.5", '"x"', "null"]),
    ({"allOf": [{"enum": [1, 2, True]}, {"enum": [2, True, 3]}]}, ["2", "true"], ["1", "3"]),
    ({"allOf": [{"items": {"minimum": 1}}, {"items": {"type": "integer"}, "maxItems": 1}]}, ["[1]"], ["[0]", "[1,1]"]),
    ({"allOf": [{"prefixItems": [{"enum": [1, 2]}]}, {"prefixItems": [{"enum": [2]}, {"const": 5}]}]}, ["[2,5]"], ["[1,5]"]),
    ({"allOf": [{"items": True}, {"items": {"const": 1}}, {"items": {"const": 1}}, {"items": True}]}, ["[1]"], ["[2]"]),
    ({"allOf": [{"items": False}, {"items": {"const": 1}}]}, ["[]"], ["[1]"]),
    ({"allOf": [True, {"const": 1}]}, ["1"], ["2"]),
    ({"anyOf": [False, {"const": 1}]}, ["1"], ["2"]),
    ({"anyOf": [{"allOf": [{"type": "null"}, {"type": "string"}]}, {"const": 1}]}, ["1"], ["null"]),
    (TREE, ['{"v":1}', '{"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]}'], ['{"kids":[]}', '{"v":1,"kids":[1]}']),
    ({"properties": {"next": {"$ref": "#"}}}, ["{}", '{"next":{"next":{}}}'], ['{"next":1}']),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, ["null"], ["1"]),
    ({"definitions": {"a/b~c d": {"const": 1}}, "$ref": "#/definitions/a~1b~0c%20d"}, ["1"], ["2"]),
    ({"anyOf": [{"const": 1}, {"$ref": "#/anyOf/0"}]}, ["1"], ["2"]),
    ({"type": "integer", "exclusiveMinimum": True, "minimum": 3}, ["3", "4"], ["2"]),
    ({"description": "anything"}, ["null", '{"a":[1]}', '"x"'], ["undefined"]),
    ({"type": "string", "pattern": "^x$", "format": "date"}, ['"anything"'], ["1"]),
    ({"type": "string", "maxLength": 100_000}, ['"x"'], ["1"]),
    ({"minItems": 300, "items": {"const": 1}}, ["[" + "1," * 299 + "1]"], ["[1]"]),
]


@pytest.mark.parametrize(("schema", "inside", "outside"), CASES, ids=[json.dumps(case[0])[:60] for case in CASES])
def test_schema(schema: Json, inside: list[str], outside: list[str]) -> None:
    grammar = Grammar.read(gbnf(JsonAnswer(schema)))
    assert [text for text in inside if not grammar.accepts(text)] == []
    assert [text for text in outside if grammar.accepts(text)] == []


# What validation is for: a grammar does not hold these.
LOOSE = ("pattern", "format", "exclusiveMinimum", "12.5", "oneOf", "300", "100000", "additionalItems", "patternProperties")


@pytest.mark.parametrize("schema", [case[0] for case in CASES if not any(word in json.dumps(case[0]) for word in LOOSE)])
def test_whatever_a_grammar_admits_satisfies_the_schema(schema: Json) -> None:
    drawn_satisfy(schema, 30)


def drawn_satisfy(schema: Json, count: int) -> None:
    grammar = Grammar.read(gbnf(JsonAnswer(schema)))
    validator = jsonschema_rs.validator_for(schema)
    chance = random.Random(0)
    for _ in range(count):
        text = grammar.draw(chance)
        assert grammar.accepts(text)
        assert validator.is_valid(json.loads(text)), text


LEAVES = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("null", "boolean", "integer", "string", "number")]),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.one_of(st.integers(-9, 9), st.text(max_size=3), st.none()), min_size=1)
    ),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-(10**6), 10**6),
        st.integers(0, 10**6),
    ),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, st.integers(0, 4), st.integers(0, 4)
    ),
)


def _objects(children: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    properties = st.dictionaries(st.text(max_size=4), children, max_size=4)
    return properties.flatmap(
        lambda given: (
            st.lists(st.sampled_from(sorted(given)), unique=True).map(
                lambda names: {"type": "object", "properties": given, "required": names, "additionalProperties": False}
            )
            if given
            else st.just({"type": "object", "properties": {}})
        )
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        _objects(children),
        st.builds(
            lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": low + 2},
            children,
            st.integers(0, 2),
        ),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(children, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(SCHEMAS)
def test_any_schema_of_the_supported_kind(schema: Json) -> None:
    drawn_satisfy(schema, 5)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**8), 10**8), st.integers(0, 10**8), st.integers(-2, 2))
def test_integer_bounds_are_exact(low: int, size: int, off: int) -> None:
    high = low + size
    grammar = Grammar.read(gbnf(JsonAnswer({"type": "integer", "minimum": low, "maximum": high})))
    for number in {low + off, high + off, (low + high) // 2, -low, -high}:
        assert grammar.accepts(str(number)) is (low <= number <= high)


@settings(max_examples=100, deadline=None)
@given(st.integers(-200, 200), st.integers(0, 200), st.integers(-4500, 4500).map(lambda number: number / 10))
def test_bounds_of_numbers_are_exact_where_they_are_whole(low: int, size: int, number: float) -> None:
    grammar = Grammar.read(gbnf(JsonAnswer({"type": "number", "minimum": low, "maximum": low + size})))
    for near in (number, float(low), float(low + size), low - 0.1, low + size + 0.1):
        assert grammar.accepts(f"{near:.1f}") is (low <= near <= low + size)


JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3)
    ),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(
            st.sampled_from(
                (
                    *(
                        "type",
                        "enum",
                        "const",
                        "properties",
                        "required",
                        "items",
                        "prefixItems",
                        "anyOf",
                        "allOf",
                        "oneOf",
                        "$ref",
                    ),
                    *(
                        "minLength",
                        "maxLength",
                        "minimum",
                        "maxItems",
                        "additionalProperties",
                        "patternProperties",
                        "minProperties",
                    ),
                )
            ),
            st.one_of(children, st.sampled_from(["object", "string", "#", "#/type", ["object", "null"]])),
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["type", "properties", "items", "anyOf", "allOf", "$ref", "enum", "required"]), JUNK, max_size=4
    )
)
def test_any_value_as_a_schema_gives_a_grammar_or_a_bad_request(schema: Json) -> None:
    with contextlib.suppress(BadRequest):
        Grammar.read(gbnf(JsonAnswer(schema)))


REFUSED: list[tuple[Json, str]] = [
    ({"$ref": "http://example.com/x"}, "does not point into the schema itself"),
    ({"$ref": 5}, "does not point into the schema itself"),
    ({"$ref": "#/none"}, "points to nothing"),
    ({"$ref": "#/$ref/0"}, "points to nothing"),
    ({"$ref": "#"}, "admits no value"),
    ({"properties": {"a": False}, "required": ["a"]}, "admits no value"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "admits no value"),
    ({"type": "number", "minimum": 5, "maximum": 4}, "admits no value"),
    ({"type": "number", "minimum": -4, "maximum": -5}, "admits no value"),
    ({"type": "string", "minLength": 5, "maxLength": 4}, "admits no value"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "admits no value"),
    ({"allOf": [{"enum": [1]}, {"enum": [2]}]}, "admits no value"),
    ({"type": "text"}, "'type' cannot be 'text'"),
    ({"type": []}, "'type' cannot be"),
    ({"type": {}}, "'type' cannot be"),
    ({"required": "a"}, "'required' cannot be"),
    ({"minLength": True}, "'minLength' cannot be"),
    ({"minItems": 1.5}, "'minItems' cannot be"),
    ({"minimum": "0"}, "'minimum' cannot be"),
    ({"exclusiveMinimum": "0"}, "'exclusiveMinimum' cannot be"),
    ({"enum": 5}, "'enum' cannot be 5"),
    ({"properties": []}, "'properties' cannot be"),
    ({"items": 5}, "'items' cannot be 5"),
    ({"properties": {"a": 5}}, "is not a schema"),
    ({"anyOf": {}}, "'anyOf' is not a list"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED)
def test_what_cannot_be_held_is_refused(schema: Json, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        gbnf(JsonAnswer(schema))
    assert caught.value.param == "response_format"
    assert said in caught.value.message


def deep(levels: int) -> Json:
    schema: Json = {"type": "null"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def doubling(levels: int) -> Json:
    """Each level is twice the next, and none has a value."""
    levelled = {str(level): {"allOf": [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(levels)}
    return {"$defs": {**levelled, str(levels): {"type": "null"}}, "$ref": "#/$defs/0"}


def chain(levels: int) -> Json:
    linked = {str(level): {"$ref": f"#/$defs/{level + 1}"} for level in range(levels)}
    return {"$defs": {**linked, str(levels): {"type": "null"}}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (deep(40), "nested more than 32 deep"),
        (doubling(40), "references and combinations are nested too deep"),
        (chain(100), "references and combinations are nested too deep"),
        ({"allOf": [{"anyOf": [{"minimum": low} for low in range(12)]}] * 2}, "combine to more"),
        ({"properties": {f"p{number}": {"const": number} for number in range(3000)}}, "more than 4000 rules"),
        ({"enum": [f"{number}" + "x" * 1000 for number in range(300)]}, "longer than"),
        ({"prefixItems": [{"minLength": low, "maxLength": 256} for low in range(100)]}, "repetitions come to more"),
    ],
)
def test_a_schema_that_is_too_large_is_refused(schema: Json, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        gbnf(JsonAnswer(schema))


def calls(**changes: Any) -> CallAnswer:
    tools = (
        ToolSpec("now"),
        ToolSpec("f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        ToolSpec("free", parameters={}),
    )
    fields: dict[str, Any] = {
        "tools": tools,
        "opener": "<call>\n",
        "closer": "\n</call>",
        "separator": "\n",
        "name_key": "name",
        "arguments_key": "arguments",
        "or_text": False,
    }
    return CallAnswer(**{**fields, **changes})


NOW = '<call>\n{"name": "now", "arguments": {}}\n</call>'
F = '<call>\n{"name":"f","arguments":{"a":5}}\n</call>'
FREE = '<call>\n{"name":"free","arguments":{"any":[1]}}\n</call>'


@pytest.mark.parametrize(
    ("answer", "inside", "outside"),
    [
        (calls(), [NOW, F, FREE, f"{NOW}\n{F}\n{F}"], ["", "text", f"text {F}", f"{F} ", F + F, F.replace("5", '"x"')]),
        (calls(), [], [F.replace('"f"', '"g"'), NOW.replace("{}", '{"a":1}'), FREE.replace('{"any":[1]}', "[]")]),
        (calls(max_calls=1), [F], [f"{F}\n{F}"]),
        (calls(max_calls=2), [F, f"{F}\n{NOW}"], [f"{F}\n{F}\n{F}"]),
        (calls(separator=""), [F, F + F], [f"{F}\n{F}"]),
        (calls(or_text=True), ["", "Hello <b> <cal", F, f"Let me see.\n{F}", f"{F}\n{F}", "<<call" + F, "\n\n" + NOW], []),
        (calls(or_text=True), [], ["<call>", "x <call> y", f"{F} and {F}", f"x{F}y", F.replace("5", '"x"'), "<c<call>"]),
        (calls(or_text=True, opener="aab"), ["aaa", "abab", "a" + F.replace("<call>\n", "aab")], ["aab", "aaab", "caabc"]),
        (calls(or_text=True, opener=""), ["text", F.removeprefix("<call>\n")], ["{", "te{xt"]),
        (calls(opener="[é]^-\\\n", or_text=True), ["[é]^", F.replace("<call>", "[é]^-\\")], ["x [é]^-\\ y"]),
        (calls(name_key="n", arguments_key='a"'), [r"<call>" + '\n{"n":"now","a\\"":{}}\n</call>'], [NOW]),
    ],
)
def test_calls(answer: CallAnswer, inside: list[str], outside: list[str]) -> None:
    grammar = Grammar.read(gbnf(answer))
    assert [text for text in inside if not grammar.accepts(text)] == []
    assert [text for text in outside if grammar.accepts(text)] == []


BAD = ToolSpec("bad", parameters={"type": "object", "properties": {"a": {"$ref": "x"}}})


@pytest.mark.parametrize(
    ("declared", "param"),
    [
        ((), "tools[1].function.parameters"),
        ((ToolSpec("not allowed"), ToolSpec("fine"), ToolSpec("other"), BAD), "tools[3].function.parameters"),
    ],
)
def test_the_tool_whose_schema_cannot_be_held_is_named_by_its_place(declared: tuple[ToolSpec, ...], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        gbnf(calls(tools=(ToolSpec("fine"), BAD)), declared=declared)
    assert caught.value.param == param
    assert f"'{param}' cannot be enforced: the reference" in caught.value.message


def test_what_all_tools_are_too_large_for_is_told_of_the_tools() -> None:
    with pytest.raises(BadRequest, match="more than 20 rules") as caught:
        gbnf(calls(or_text=True, opener="0123456789abcdefghij"), Limits(rules=20))
    assert caught.value.param == "tools"


THOUGHTS = ["", "Hm {} <think> </think", "<</thin", "a\n\n", F]


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize(
    ("answer", "inside", "outside"),
    [
        (JsonAnswer({"type": "integer"}), ["1", "\n12", "\n\n3"], ["", "x", " 1", "\n\n\n1", "1</think>", "</think>1"]),
        (calls(), [F, f"\n\n{F}\n{NOW}"], ["", "text", f"text {F}"]),
        (calls(or_text=True), ["", "text", F, f"\n\nSee:\n{F}"], ["<call>", F.replace("5", '"x"')]),
    ],
)
def test_an_open_thought_ends_before_the_answer(
    answer: JsonAnswer | CallAnswer, inside: list[str], outside: list[str], thought: str
) -> None:
    grammar = Grammar.read(gbnf(replace(answer, thought_closer="</think>")))
    assert not grammar.accepts(thought)
    assert [text for text in inside if not grammar.accepts(f"{thought}</think>{text}")] == []
    assert [text for text in outside if grammar.accepts(f"{thought}</think>{text}")] == []


def test_arguments_that_cannot_be_an_object_are_refused() -> None:
    with pytest.raises(BadRequest, match="admits no value"):
        gbnf(calls(tools=(ToolSpec("bad", parameters={"type": "string"}),)))


def test_a_grammar_is_built_once_for_equal_constraints_and_the_oldest_is_dropped() -> None:
    cache = GrammarCache(size=2)
    first = cache.grammar(calls())
    assert cache.grammar(calls()) is first
    assert cache.grammar(JsonAnswer({"type": "null"})) != first
    assert cache.grammar(calls()) is first
    cache.grammar(JsonAnswer({"type": "string"}))
    assert cache.grammar(calls()) is first
    cache.grammar(JsonAnswer({"type": "string"}))
    cache.grammar(JsonAnswer({"type": "boolean"}))
    assert cache.grammar(calls()) is not first


def test_limits_are_settings() -> None:
    schema = deep(3)
    assert GrammarCache().grammar(JsonAnswer(schema))
    with pytest.raises(BadRequest, match="nested more than 2"):
        GrammarCache(limits=Limits(depth=2)).grammar(JsonAnswer(schema))
