import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import formats as run

from gateway.formats import registry
from gateway.formats.codecs.nested_xml import NestedXml
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.compiled import CompiledFormat
from gateway.formats.schema import ALL_KINDS, ANY, MAX_SCHEMA_BYTES, Parameters, Types, kinds_of
from gateway.request import ToolSpec

STRING = Types(frozenset({"string"}))
NUMBERS = frozenset({"integer", "number"})


def _types(schema: Any, **root: Any) -> Types:
    return Parameters({"type": "object", "properties": {"p": schema}, **root}).types("p")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, STRING),
        ({"type": "integer"}, Types(frozenset({"integer"}))),
        ({"type": "number"}, Types(NUMBERS)),
        ({"type": ["string", "null"]}, Types(frozenset({"string", "null"}))),
        ({"type": "string", "nullable": True}, Types(frozenset({"string", "null"}))),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, Types(frozenset({"string", "array"}))),
        ({"oneOf": [{"type": "boolean"}, {"const": 3}]}, Types(frozenset({"boolean"}) | NUMBERS)),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "object"]}]}, Types(frozenset({"null"}))),
        ({"allOf": [{"type": "string"}, {"type": "object"}]}, ANY),
        ({"enum": ["a", "5", None]}, Types(frozenset({"string", "null"}), frozenset({"a", "5"}))),
        ({"enum": [1.5]}, Types(frozenset({"number"}))),
        ({"const": None}, Types(frozenset({"null"}))),
        ({"const": {}}, Types(frozenset({"object"}))),
        ({"properties": {}}, Types(frozenset({"object"}))),
        ({"items": {}}, Types(frozenset({"array"}))),
        ({"$ref": "#/$defs/s"}, STRING),
        ({"$ref": "#/$defs/list/0"}, STRING),
        ({"$ref": "#/$defs/a~1b"}, STRING),
        ({"$ref": "#/$defs/a%7E1b"}, STRING),
        ({"$ref": "#/%24defs/a%20c"}, STRING),
        ({"$ref": "#/$defs%2Flist%2f0"}, STRING),
        ({"$ref": "#/$defs/50%25"}, STRING),
        ({"$ref": "#/$defs/50%"}, STRING),
        ({"$ref": "#/$defs/list/9"}, ANY),
        ({"$ref": "#/$defs/list/x"}, ANY),
        ({"$ref": "#/$defs/s/type/no"}, ANY),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "#/nothing"}, ANY),
        ({"$ref": "http://example.invalid/s"}, ANY),
        ({"type": 5}, ANY),
        ({"type": "made-up"}, ANY),
        ({"anyOf": 5}, ANY),
        ({}, ANY),
        (True, ANY),
        (5, ANY),
    ],
)
def test_types(schema: Any, expected: Types) -> None:
    definitions = {
        "s": {"type": "string"},
        "list": [{"type": "string"}],
        "a/b": {"type": "string"},
        "a c": {"type": "string"},
        "50%": {"type": "string"},
        "loop": {"$ref": "#/$defs/loop"},
    }
    assert _types(schema, **{"$defs": definitions}) == expected


def test_parameters_behind_a_reference_and_beside_the_named_ones() -> None:
    known = Parameters(
        {
            "$ref": "#/$defs/base",
            "allOf": [{"properties": {"b": {"type": "null"}}}, 7],
            "properties": {"a": {"type": "string"}},
            "additionalProperties": {"type": "boolean"},
            "$defs": {"base": {"properties": {"a": {"type": "integer"}, "c": {"type": "array"}}, "allOf": [{"$ref": "#"}]}},
        }
    )
    assert [known.declares(key) for key in "abcd"] == [True, True, True, False]
    assert known.types("a") == STRING
    assert known.types("c") == Types(frozenset({"array"}))
    assert known.types("d") == Types(frozenset({"boolean"}))


def test_parameters_and_members_that_only_options_name_are_what_any_of_them_says() -> None:
    options = [
        {"properties": {"kind": {"const": "a"}, "size": {"type": "integer"}, "id": {"type": "integer"}}},
        {"$ref": "#/$defs/b"},
    ]
    b = {"properties": {"kind": {"const": "b"}, "size": {"type": "string"}, "id": {"type": "integer"}}}
    known = Parameters({"oneOf": options, "properties": {"id": {"type": "string"}}, "$defs": {"b": b}})
    assert known.types("kind") == Types(frozenset({"string"}), frozenset({"a", "b"}))
    assert known.types("size") == Types(frozenset({"string", "integer"}))
    assert known.types("id") == STRING
    nested = Parameters({"properties": {"p": {"anyOf": options}}, "$defs": {"b": b}}).shape("p")
    assert nested.member("size").types == Types(frozenset({"string", "integer"}))
    assert nested.member("id").types == Types(frozenset({"integer"}))


def test_parameters_of_the_first_of_many_options_are_known_too() -> None:
    options = [{"properties": {"kind": {"const": f"k{number}"}, f"of{number}": {"type": "string"}}} for number in range(40)]
    parameters = Parameters({"properties": {"one": {"anyOf": options}}, "allOf": [*options]})
    assert parameters.types("of0").kinds == {"string"}
    assert parameters.shape("one").member("of0").types.kinds == {"string"}
    assert parameters.shape("one").member("of39").types.kinds == {"string"}


def test_parameters_whose_names_match_a_pattern() -> None:
    known = Parameters(
        {
            "properties": {"n_named": {"type": "null"}},
            "patternProperties": {"^n_": {"type": ["string", "integer"]}, "_s$": {"$ref": "#/$defs/s"}},
            "additionalProperties": {"type": "boolean"},
            "$defs": {"s": {"type": "string"}},
        }
    )
    assert known.types("n_named") == Types(frozenset({"null"}))
    assert known.types("n_1") == Types(frozenset({"string", "integer"}))
    assert known.types("n_s") == known.types("a_s") == STRING
    assert known.types("other") == known.types("\ud800_s") == Types(frozenset({"boolean"}))
    assert known.shape("a_s").types == STRING
    assert not known.declares("n_1")


def test_a_name_is_any_type_where_a_pattern_cannot_be_matched() -> None:
    known = Parameters({"patternProperties": {"(": {"type": "string"}}, "additionalProperties": {"type": "boolean"}})
    assert not known.validates
    assert known.types("a") == ANY
    ignored = {"$ref": "#/definitions/a", "definitions": {"a": {}}}  # what stands beside a reference says nothing in this draft
    old = Parameters({"$schema": "http://json-schema.org/draft-04/schema#", **ignored, "patternProperties": {"(": {}}})
    assert old.validates
    assert old.types("a") == ANY


def test_a_pattern_of_names_cannot_take_forever() -> None:
    known = Parameters({"patternProperties": {"^(a+)+$": {"type": "string"}}})
    assert known.types("a" * 5000 + "!") == ANY


def test_a_reference_with_escapes_is_checked() -> None:
    known = Parameters({"$ref": "#/$defs/a%20c", "$defs": {"a c": {"required": ["x"]}}})
    assert known.validates
    assert not known.accepts("{}")


def test_a_small_schema_that_is_a_large_tree_costs_little() -> None:
    definitions = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 20} for level in range(20)}
    assert _types({"$ref": "#/$defs/d0"}, **{"$defs": definitions}) == ANY


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (None, {"null"}),
        (True, {"boolean"}),
        ("", {"string"}),
        (1, NUMBERS),
        (1.0, NUMBERS),
        (1.5, {"number"}),
        ([], {"array"}),
        ({}, {"object"}),
    ],
)
def test_kinds_of_values(value: Any, kinds: set[str]) -> None:
    assert kinds_of(value) == kinds


def test_validation() -> None:
    known = Parameters(
        {
            "properties": {
                "n": {"type": "integer", "nullable": True},
                "e": {"type": ["string"], "enum": ["a"], "nullable": True},
            },
            "required": ["n"],
        }
    )
    assert known.validates
    assert known.accepts('{"n": 1}')
    assert known.accepts('{"n": null, "e": null}')
    assert known.accepts('{"n": 123456789012345678901234567890}')
    assert not known.accepts('{"n": 1, "e": "b"}')
    assert not known.accepts("{}")
    assert not known.accepts('{"n": "\\ud800"}')
    assert not known.accepts('{"n": ')


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def _many_ways(levels: int) -> dict[str, Any]:
    """Two references a level, to the same next one: a validator would walk 2 to the power of the levels."""
    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "object"}}}


def test_references_are_checked_while_what_they_lead_to_is_small() -> None:
    known = Parameters(_many_ways(8))
    assert known.validates
    assert known.accepts("{}")
    assert not known.accepts("[]")
    recursive = {"type": "object", "properties": {"next": {"$ref": "#"}, "a": {"type": "integer"}}}
    assert Parameters(recursive).accepts('{"next": {"next": {"a": 1}}}')
    assert not Parameters(recursive).accepts('{"next": {"next": {"a": "x"}}}')


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": 5},
        {"$ref": "http://example.invalid/s"},
        {"$ref": "#/nothing"},
        {"$ref": "#/$defs/a%c3%28", "$defs": {"a": {}}},
        {"$ref": "#/$defs/50%", "$defs": {"50%": {}}},
        {"$schema": "http://example.invalid/draft"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"description": "x" * MAX_SCHEMA_BYTES},
        {"default": object()},
        {"default": "\ud800"},
        {"default": 1 << 70, "type": "object", "properties": 4},
        _many_ways(30),
        {"type": "object", "patternProperties": {f"a{n}": {} for n in range(200)}},
        {"properties": {f"a{n}": {"pattern": "x"} for n in range(200)}},
        {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
        {"properties": {"a": {"$id": "http://example.invalid/a", "type": "string"}}},
        _deep(180),
        _deep(5000),
    ],
)
def test_a_schema_that_cannot_be_checked_misses_nothing(schema: Any) -> None:
    known = Parameters(schema)
    assert not known.validates
    assert known.accepts("[]")
    assert known.types("a").kinds <= ALL_KINDS


@pytest.mark.parametrize(
    "more", [{"description": "x" * MAX_SCHEMA_BYTES}, {"default": "\ud800"}, {"$ref": "#/nothing"}, {"$defs": _deep(5000)}]
)
def test_the_types_of_a_schema_that_cannot_be_checked_are_read(more: dict[str, Any]) -> None:
    known = Parameters({**more, "properties": {"a": {"type": "string"}}})
    assert not known.validates
    assert known.types("a") == STRING


def test_a_pattern_cannot_take_forever() -> None:
    known = Parameters({"properties": {"a": {"pattern": "^(a+)+$"}}})
    assert not known.accepts('{"a": "' + "a" * 5000 + '!"}')


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "anyOf",
                        "allOf",
                        "$ref",
                        "properties",
                        "enum",
                        "const",
                        "items",
                        "nullable",
                        "additionalProperties",
                        "patternProperties",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_schema_raises(schema: Any) -> None:
    known = Parameters(schema)
    assert known.types("a").kinds <= ALL_KINDS
    assert known.accepts("{}") in (True, False)


PARAMETERS = {
    "properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "real": {"type": "number"},
        "flag": {"type": "boolean"},
        "none": {"type": "null"},
        "object": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "list": {"type": "array", "items": {"type": "integer"}},
        "nullable": {"type": "integer", "nullable": True},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "all": {"allOf": [{"type": "integer"}, {"minimum": 0}]},
        "types": {"type": ["string", "integer"]},
        "listed": {"enum": ["5", 6, None]},
        "word": {"enum": ["a", "b"]},
        "fixed": {"const": 7},
        "spelled": {"const": "7"},
        "escaped": {"$ref": "#/$defs/a~1b%20c"},
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"$ref": "#/$defs/tree"},
        "any": True,
        "never": False,
    },
    "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}},
    "additionalProperties": {"type": "boolean"},
    "$defs": {
        "a/b c": {"type": "integer"},
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
    },
}
FITS = [
    *(("text", text, json.dumps(text)) for text in ("007", "null", "true", "-1", "1e5", "", '{"a": 1}', '"q"', "None")),
    *(("whole", text, text) for text in ("0", "-12", "12345678901234567890123456789", "1e3", "1.0")),
    *(("real", text, text) for text in ("5", "-1.50E-3", "1E5", "0.10")),
    *(("flag", text, text) for text in ("true", "false")),
    ("none", "null", "null"),
    ("object", '{"n": 1,  "m": [null]}', '{"n": 1,  "m": [null]}'),
    ("list", "[1, 2]", "[1, 2]"),
    *((key, text, text) for key in ("nullable", "maybe") for text in ("5", "null")),
    *((key, "5", "5") for key in ("either", "types", "all", "escaped", "loop", "any")),
    *((key, "05", '"05"') for key in ("either", "types", "loop", "any")),
    ("listed", "5", '"5"'),
    ("listed", "6", "6"),
    ("listed", "null", "null"),
    ("word", "a", '"a"'),
    ("fixed", "7", "7"),
    ("spelled", "7", '"7"'),
    ("tree", '{"kids": [{"kids": []}]}', '{"kids": [{"kids": []}]}'),
    ("n_1", "5", "5"),
    ("s_1", "5", '"5"'),
    ("other", "true", "true"),
]
MISSES = [
    *(("whole", text, json.dumps(text)) for text in ("007", "+5", "1_000", "abc", "", "0x1", "1.", "NaN")),
    *(("whole", text, text) for text in ("1.5", "null", "true", '"5"')),
    *(("real", text, json.dumps(text)) for text in (".5", "Infinity", "1,5")),
    *(("real", text, text) for text in ("1e400", "[1]")),
    *(("flag", text, json.dumps(text)) for text in ("yes", "TRUE", "")),
    ("flag", "1", "1"),
    ("none", "nil", '"nil"'),
    ("object", "{'n': 1}", "\"{'n': 1}\""),
    ("object", '{"n": NaN}', '"{\\"n\\": NaN}"'),
    ("object", "[1]", "[1]"),
    ("object", '{"n": "1"}', '{"n": "1"}'),
    ("list", '["1"]', '["1"]'),
    ("maybe", "x", '"x"'),
    ("all", "-5", "-5"),
    ("listed", "zz", '"zz"'),
    ("word", "c", '"c"'),
    ("fixed", "8", "8"),
    ("escaped", "05", '"05"'),
    ("never", "5", "5"),
    ("n_1", "x", '"x"'),
    ("other", "5", "5"),
]
FAMILIES = {each.name: each.program for each in registry.load().values() if isinstance(each, CompiledFormat)}
TYPED = [
    name for name, each in FAMILIES.items() if any(isinstance(block.codec, Tagged | NestedXml) for block in each.spec.blocks)
]


def _call(name: str, key: str, value: str) -> str:
    """A call in the family's syntax, without what says a type."""
    block = next(each for each in FAMILIES[name].spec.blocks if isinstance(each.codec, Tagged | NestedXml))
    codec, opener, closer = block.codec, block.opener.text, block.closer.text if block.closer else ""
    if isinstance(codec, NestedXml):
        inside = "".join(codec.prefix + tag for tag in ('<invoke name="f">', f"<{key}>{value}", f"</{key}>", "</invoke>"))
        return opener + inside + closer
    assert isinstance(codec, Tagged)
    parameter = f"{codec.key_open}{key}{codec.key_end}{codec.value_open}{value}{codec.value_close}"
    return f"{opener}{codec.call_open}f{codec.name_end}{parameter}{codec.call_close if codec.call_open else ''}{closer}"


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("name", TYPED)
def test_values_are_typed_by_the_schema_in_every_family_without_types_of_its_own(name: str, fits: bool) -> None:
    tools = (ToolSpec("f", None, PARAMETERS),)
    for key, text, expected in FITS if fits else MISSES:
        found = run.fold(run.parse(FAMILIES[name], run.Case(_call(name, key, text), tools)))
        assert found.calls == (("f", f'{{"{key}": {expected}}}'),)
        assert found.failures == (() if fits else (("schema_mismatch", True),))
