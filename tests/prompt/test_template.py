import time
from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import Any

import pytest
from support.vocabulary import fixed_clock

from gateway.dialects.checks import RESERVED_KWARGS
from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.budget import Limits
from gateway.prompt.template import MAX_TEMPLATE_CHARS, ChatTemplate


def render(source: str, limits: Limits | None = None, **variables: Any) -> str:
    return ChatTemplate(source, fixed_clock, limits).render(variables)


def refusal(source: str, limits: Limits | None = None, **variables: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        render(source, limits, **variables)
    assert caught.value.param == "messages"
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{% for i in 'abc' %}{% if i == 'a' %}{% continue %}{% endif %}{{ i }}{% break %}{% endfor %}", "b"),
        ("a{% generation %}{% set x = 1 %}b{{ x }}{% endgeneration %}c{{ x }}", "ab1c"),
        ("{{ m | tojson }}", '{"é": "<\'&>", "n": null, "l": [1, 2.5, true]}'),
        ("{{ m.l | tojson(indent=2) }}", "[\n  1,\n  2.5,\n  true\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ m | tojson(ensure_ascii=true) }}", '{"\\u00e9": "<\'&>", "n": null, "l": [1, 2.5, true]}'),
        ("{{ strftime_now('%d %B %Y') }}", "14 March 2026"),
        ("{% set ns = namespace(x=1) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "4"),
        ("{{ dict(a=1).a }}{{ dict({'b': 2}, c=3) | tojson }}{{ dict([('d', 4)]).d }}", '1{"b": 2, "c": 3}4'),
        ("{{ 'a' ~ 1 ~ none ~ missing }}|{{ missing }}", "a1None|"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}x{% endcall %}", "[x]"),
        ("{% for x in 'abcd' if x != 'b' %}{{ loop.index }}{{ x }}{{ loop.last }} {% endfor %}", "1aFalse 2cFalse 3dTrue "),
        ("{{ m.l | map('string') | join('-') }}", "1-2.5-True"),
        ("{{ ', '.join(m.l | map('string')) }}", "1, 2.5, True"),
        ("{{ 'x=%s' % 3 }}{{ '{:>3}'.format(4) }}{{ 'ab' * 2 }}{{ 2 * 'c' }}", "x=3  4ababcc"),
        ("{{ 2 * 3 }}{{ [1] * 2 }}{{ 2 ** 3 }}{{ true }}", "6[1, 1]8True"),
        ("{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 1 + 1 }}{{ 5 % 3 }}", "[1, 2]ab22"),
        ("{{ 'a-b'.split('-')[1].upper() }}{{ m.get('n') }}{{ m.items() | list | length }}", "BNone3"),
        ("{{ 'aXb' | replace('X', '--') }}{{ 'a' | indent(2, true) }}{{ 'l'.center(3) }}", "a--b  a l "),
        ("{% filter upper %}x{{ 'y' }}{% endfilter %}", "XY"),
        ("{{ [3, 1] | sort | first }}{{ [1, 2] | sum }}{{ ['b', 'a'] | join(attribute='x') }}", "13"),
        ("{{ '' ~ [1, {'a': 'b'}] }}", "[1, {'a': 'b'}]"),
    ],
)  # fmt: skip
def test_renders_as_models_were_trained(source: str, text: str) -> None:
    assert render(source, m={"é": "<'&>", "n": None, "l": [1, 2.5, True]}) == text


def test_every_name_of_the_sandbox_is_refused_to_clients() -> None:
    names = {*ChatTemplate("", fixed_clock)._template.globals, "self", "loop", "caller", "varargs", "kwargs"}
    assert names <= RESERVED_KWARGS


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "does not compile"),
        ("{% include 'x' %}", "uses include"),
        ("{% extends 'x' %}", "uses extends"),
        ("{% import 'x' as y %}", "uses import"),
        ("{% from 'x' import y %}", "uses fromimport"),
        ("{% block x %}{% endblock %}", "uses block"),
        ("{{ x | no_such_filter }}", "No filter named"),
        ("{{ x | random }}", "No filter named"),
        ("a\n{{ x is test }}", "line 2: No test named 'test'"),
        ("{% autoescape true %}{% endautoescape %}", "line 1 uses autoescape"),
        ("{{ 1e999 }}", "line 1 has a number that is too large"),
        ("{{ a }}" * 5000, "more than 5000 parts"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "does not compile"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), f"{MAX_TEMPLATE_CHARS + 1} characters"),
    ],
)
def test_what_does_not_compile_is_a_fault_of_the_model(source: str, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        ChatTemplate(source, fixed_clock)


def test_the_template_s_own_words_reach_the_client() -> None:
    assert refusal("{{ raise_exception('Only user, please: ' ~ x) }}", x="é") == (
        "The model's chat template refuses these messages: Only user, please: é"
    )
    assert refusal("{{ raise_exception('x' * 1000) }}").endswith("xxx…")


@pytest.mark.parametrize("source", ["{{ x | unique }}", "{% if x %}{{ x | unique }}{% endif %}"])
def test_what_templates_may_not_use_is_named(source: str) -> None:
    with pytest.raises((BadRequest, ModelFileError), match="No filter named 'unique'"):
        render(source, x=[1])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ 'a'.expandtabs(2) }}", "'expandtabs' of str is not among what chat templates may use"),
        ("{{ [].append(1) }}", "'append' of list is not among"),
        ("{{ {}.fromkeys('a') }}", "'fromkeys' of dict is not among"),
        ("{{ dict.fromkeys('a') }}", "'fromkeys' of type is not among"),
        ("{{ range(3).count(1) }}", "'count' of range is not among"),
        ("{{ '\\ud800' }}", "it writes a lone surrogate, which is half a character"),
        ("{{ x }}", "it writes a lone surrogate, which is half a character"),
    ],
)
def test_what_is_refused_is_named(source: str, says: str) -> None:
    assert f"cannot render this: {says}" in refusal(source, x="\ud800")


def test_a_refusal_can_be_sent() -> None:
    assert refusal("{{ raise_exception('a\\ud800b') }}").endswith("refuses these messages: a?b")


@pytest.mark.parametrize(
    "source",
    [
        "{{ none + 1 }}",
        "{{ missing.field.other }}",
        "{{ messages[0].content.nothing() }}",
        "{{ [].append(1) }}",
        "{{ {}.update({}) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ lipsum() }}",
        "{{ namespace(_x=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ (1).to_bytes(9, 'big') }}",
        "{{ 'a'.encode() }}",
        "{{ missing | tojson }}",
        "{{ 1 / 0 }}",
        "{{ [1][none] + 1 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ cycler() }}",
        "{{ strftime_now(1) }}",
    ],
)
def test_faults_and_forbidden_things_are_bad_requests(source: str) -> None:
    assert refusal(source, messages=[{"content": "x"}])


SMALL = Limits(steps=2000, message_steps=10, made_bytes=20_000, value_bytes=4000, items=500, number_bits=64, padding=100)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for a in range(100) %}{% for b in range(100) %}{% endfor %}{% endfor %}", "more than 2000 steps"),
        ("{% for a in range(3000) if false %}{% endfor %}", "more than 2000 steps"),
        ("{% macro m() %}{% endmacro %}{% for a in range(900) %}{{ m() }}{% endfor %}", "more than"),
        ("{{ range(3000) | map('string') | list | length }}", "more than"),
        ("{{ 'x'.join(range(3000) | map('string')) }}", "more than"),
        ("{% for a in range(100) %}" + "x" * 50 + "{% endfor %}", "writes more than 4000 bytes"),
        ("{% set x %}{% for a in range(600) %}" + "y" * 50 + "{% endfor %}{% endset %}", "more than 20000 bytes"),
        ("{% macro m() %}" + "x" * 50 + "{% endmacro %}{% for a in range(500) %}{{ m() }}{% endfor %}", "writes more than 4000"),
        ("{{ 'ab' * 2001 }}", "more than 4000 bytes"),
        ("{{ 2001 * 'ab' }}", "more than 4000 bytes"),
        ("{{ [1, 2] * 251 }}", "more than 500 items"),
        ("{{ [1] * 400 + [1] * 400 }}", "more than 500 items"),
        ("{{ range(600) | list }}", "more than 500 items"),
        ("{{ x + x }}", "more than 4000 bytes"),
        ("{{ x ~ x }}", "more than 4000 bytes"),
        ("{{ [x, x] }}", "more than 4000 bytes"),
        ("{{ [x, x] | join }}", "more than 4000 bytes"),
        ("{{ [x, x] | tojson }}", "more than 4000 bytes"),
        ("{{ {x: x} | string }}", "more than 4000 bytes"),
        ("{{ '%s%s' % (x, x) }}", "more than 4000 bytes"),
        ("{{ '{}{}'.format(x, x) }}", "more than 4000 bytes"),
        ("{{ x.replace('a', 'bb') }}", "more than 4000 bytes"),
        ("{{ x | replace('a', 'bb') }}", "more than 4000 bytes"),
        ("{{ ('\\n' * 100) | indent('x' * 90) }}", "more than 4000 bytes"),
        ("{{ range(90) | list | join('x' * 90) }}", "more than 4000 bytes"),
        ("{{ range(90) | map('string') | join('x' * 90) }}", "more than 4000 bytes"),
        ("{{ ('x' * 90).join(range(90) | map('string')) }}", "more than 4000 bytes"),
        ("{% set ns = namespace(l=['x']) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "steps"),
        ("{{ 'a'.ljust(101) }}", "asked to fill more than 100 places"),
        ("{{ 'a'.center(width=101) }}", "asked to fill more than 100 places"),
        ("{{ 'a' | indent(first=true, width=101) }}", "asked to fill more than 100 places"),
        ("{% for i in range(9) %}{% set y = x[1:] %}{% endfor %}", "more than 20000 bytes"),
        ("{{ ('é' * 2000).upper() ~ '€' }}", "more than 4000 bytes"),
        ("{{ [3] | sum(start='') }}", "sum adds numbers only"),
        ("{{ [[1]] | map(attribute='x' * 201) | list }}", "a name is not a text of up to 200 characters"),
        ("{{ ['a'] | map(' charge') | list }}", "a name is not a text of up to 200 characters"),
        ("{{ {9223372036854775807: 1}[9223372036854775807 + 0] }}", "a key is a number of more than 60 bits"),
        ("{{ '%99999d' % 1 }}", "unbounded width"),
        ("{{ '%*d' % (9, 1) }}", "unbounded width"),
        ("{{ '{:99999}'.format(1) }}", "unbounded width"),
        ("{{ '{:{w}}'.format(1, w=9) }}", "unbounded width"),
        ("{{ '%99999d' | format(1) }}", "unbounded width"),
        ("{{ 2 ** 65 }}", "number of more than 64 bits"),
        ("{{ 9007199254740993 * 9007199254740993 }}", "number of more than 64 bits"),
        ("{{ 9223372036854775808 + 9223372036854775808 }}", "number of more than 64 bits"),
        ("{{ [1] | tojson(indent=17) }}", "spacing of more than 16"),
        ("{{ [1] | tojson(indent='                 ') }}", "spacing of more than 16"),
        ("{{ [1] | tojson(separators=(',', '                 ')) }}", "spacing of more than 16"),
        ("{% for i in range(1000) %}{% set y = x ~ '' %}{% endfor %}", "more than 20000 bytes"),
    ],
)  # fmt: skip
def test_no_template_takes_more_than_its_budget(source: str, says: str) -> None:
    message = refusal(source, SMALL, x="a" * 3000)
    assert "was stopped" in message
    assert says in message


def test_a_long_conversation_has_more_steps() -> None:
    source = "{% for m in messages %}{% for i in range(9) %}{% endfor %}{% endfor %}"
    assert "more than 2710 steps" in refusal(source, Limits(steps=10, message_steps=9), messages=[{}] * 300)
    assert render(source, Limits(steps=10, message_steps=12), messages=[{}] * 300) == ""


@pytest.mark.parametrize(
    "source",
    ["{% for a in range(2000) %}{% for b in range(1500) %}{% endfor %}{% endfor %}", "{{ 'abc' * 100000000 }}"],
)
def test_three_million_passes_and_300_mb_are_stopped_soon(source: str) -> None:
    began_s = time.process_time()
    assert "was stopped" in refusal(source)
    assert time.process_time() - began_s < 5


def ticking(step_s: float) -> Callable[[], float]:
    moments = count(0, step_s)
    return lambda: next(moments)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('a' * 9000 + 'b') in 'a' * 9000 }}",
        "{{ 'b' not in x }}",
        "{{ x == y }}",
        "{{ x[1:] | length }}",
        "{% set z = x[:-1] %}",
        "{% if x < y < z %}{% endif %}",
        "{{ x if x != y }}",
    ],
)
def test_slow_operations_are_counted_so_that_they_end_in_time(source: str) -> None:
    """However many stand in a row, outside of any loop."""
    with pytest.raises(BadRequest, match="was stopped: it takes more than 2 s") as caught:
        ChatTemplate(source * 100, fixed_clock, None, ticking(1.0)).render({"x": "aa", "y": "ab", "z": "b"})
    assert caught.value.param == "messages"


def test_a_render_within_its_time_is_not_stopped() -> None:
    template = ChatTemplate("{% for i in range(1000) %}{{ i in [1] }}{% endfor %}", fixed_clock, None, ticking(0.001))
    assert template.render({}).count("True") == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 1 < 2 < 3 }}{{ 3 in [1] }}{{ 'a' not in 'b' }}{{ 1 == 1 and 2 }}{{ not 1 == 2 }}", "TrueFalseTrue2True"),
        ("{{ 'abc'[1:] }}{{ 'abc'[::-1].upper() }}{{ [1, 2, 3][-2:][0] }}{{ m['x'][:1] }}", "bcCBA2v"),
        ("{{ (1 if 2 in [2] else 3) ~ ('a' == 'a') ~ 'abc'[:2 if 1 < 2 else 1] }}", "1Trueab"),
        ("{% for i in [1, 2, 3][1:] if i != 2 %}{{ i }}{% endfor %}{% set a = 'xy'[0:1] %}{{ a }}", "3x"),
        ("{{ 1 < 2 > 3 }}{{ 3 >= 3 <= 4 != 5 }}{{ 1 > 2 > m.no }}", "FalseTrueFalse"),
        (
            "{{ {m.x: 1, 'b': 2}['value'] }}{{ m['x'] }}{{ [1, 2][m.x | length - 4] }}{{ (1, 2)[::2] }}{{ 'a' in m }}",
            "1value2(1,)False",
        ),
        ("{% set a %}x{{ m.x }}{% endset %}{{ a }}{% set b | upper %}y{% endset %}{{ b }}", "xvalueY"),
        ("{{ 'a' in ['b', 'a'] | map('upper') }}{{ 'A' in ['b', 'a'] | map('upper') }}{{ 2 in range(3) }}", "FalseTrueTrue"),
        ("{{ '%d%% of %(a)s'.replace('%d%% of ', '') % {'a': 1} }}{{ '{{{0}}} {a}'.format(1, a=2) }}", "1{1} 2"),
        ("{{ '%s %5.1f|%-3d|' % ('a', 2.25, 7) }}{{ '%s' | format('b') }}{{ '%(k)s' | format(k=3) }}", "a   2.2|7  |b3"),
        ("{{ 'a,b,c'.rsplit(',', maxsplit=1) }}{{ ' a b'.split() }}{{ 'a.b'.rpartition('.')[0] }}", "['a,b', 'c']['a', 'b']a"),
        ("{{ 'xay'.strip('xy') }}{{ 'aba'.rfind('a') }}{{ 'ab'.startswith(('b', 'a')) }}{{ ['a', 'b'].index('b') }}", "a2True1"),
        ("{{ [3, 1, 2] | sort(reverse=true) }}{{ [1, 2] | max }}{{ m | dictsort }}", "[3, 2, 1]2[('x', 'value')]"),
        ("{{ 7 is divisibleby 7 }}{{ 3 is odd }}{{ 'a' is lower }}{{ 1 is in [1] }}{{ 2 is gt 1 }}", "TrueTrueTrueTrueTrue"),
    ],
)
def test_counting_changes_no_value(source: str, text: str) -> None:
    assert render(source, m={"x": "value"}) == text


def test_variables_are_those_that_the_template_reads() -> None:
    source = "{% set y = x %}{{ y }}{% if enable_thinking %}{% endif %}"
    assert ChatTemplate(source, fixed_clock).variables == {"x", "enable_thinking"}


def test_each_render_reads_the_clock() -> None:
    moments = iter([datetime(2026, 1, 1), datetime(2026, 1, 2)])
    template = ChatTemplate("{{ strftime_now('%d') }}", lambda: next(moments))
    assert [template.render({}), template.render({})] == ["01", "02"]
