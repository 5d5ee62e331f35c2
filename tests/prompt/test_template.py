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
        ("{{ dict(a=1).a }}{{ dict.fromkeys('ab') | length }}", "12"),
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
        ("{{ 'aXb' | replace('X', '--') }}{{ 'a' | indent(2, true) }}{{ 'l' | center(3) }}", "a--b  a l "),
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
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "does not compile"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), "1000001 characters"),
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


SMALL = Limits(steps=2000, message_steps=10, made_chars=20_000, value_chars=4000, items=500, number_bits=64, padding=100)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for a in range(100) %}{% for b in range(100) %}{% endfor %}{% endfor %}", "more than 2000 steps"),
        ("{% for a in range(3000) if false %}{% endfor %}", "more than 2000 steps"),
        ("{% macro m() %}{% endmacro %}{% for a in range(1500) %}{{ m() }}{% endfor %}", "more than 2000 steps"),
        ("{{ range(3000) | map('string') | list | length }}", "more than 2000 steps"),
        ("{{ 'x'.join(range(3000) | map('string')) }}", "more than"),
        ("{% for a in range(100) %}" + "x" * 50 + "{% endfor %}", "writes more than 4000 characters"),
        ("{% set x %}{% for a in range(600) %}" + "y" * 50 + "{% endfor %}{% endset %}", "more than 20000 characters"),
        ("{% macro m() %}" + "x" * 50 + "{% endmacro %}{% for a in range(500) %}{{ m() }}{% endfor %}", "writes more than 4000"),
        ("{{ 'ab' * 2001 }}", "more than 4000 characters"),
        ("{{ 2001 * 'ab' }}", "more than 4000 characters"),
        ("{{ [1, 2] * 251 }}", "more than 500 items"),
        ("{{ [1] * 400 + [1] * 400 }}", "more than 500 items"),
        ("{{ range(600) | list }}", "more than 500 items"),
        ("{{ x + x }}", "more than 4000 characters"),
        ("{{ x ~ x }}", "more than 4000 characters"),
        ("{{ [x, x] }}", "more than 4000 characters"),
        ("{{ [x, x] | join }}", "more than 4000 characters"),
        ("{{ [x, x] | tojson }}", "more than 4000 characters"),
        ("{{ {x: x} | string }}", "more than 4000 characters"),
        ("{{ '%s%s' % (x, x) }}", "more than 4000 characters"),
        ("{{ '{}{}'.format(x, x) }}", "more than 4000 characters"),
        ("{{ x.replace('a', 'bb') }}", "more than 4000 characters"),
        ("{{ x | replace('a', 'bb') }}", "more than 4000 characters"),
        ("{{ ('\\n' * 100) | indent('x' * 90) }}", "more than 4000 characters"),
        ("{{ range(90) | list | join('x' * 90) }}", "more than 4000 characters"),
        ("{{ range(90) | map('string') | join('x' * 90) }}", "more than 4000 characters"),
        ("{{ ('x' * 90).join(range(90) | map('string')) }}", "more than 4000 characters"),
        ("{% set ns = namespace(l=['x']) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "steps"),
        ("{{ 'a'.ljust(101) }}", "ljust is asked for more than 100"),
        ("{{ 'a' | center(101) }}", "center is asked for more than 100"),
        ("{{ [1] | batch(101, 0) | list }}", "batch is asked for more than 100"),
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
        ("{% for i in range(1000) %}{% set y = x ~ '' %}{% endfor %}", "more than 20000 characters"),
    ],
)  # fmt: skip
def test_no_template_takes_more_than_its_budget(source: str, says: str) -> None:
    message = refusal(source, SMALL, x="a" * 3000)
    assert "was stopped" in message
    assert says in message


def test_a_long_conversation_has_more_steps() -> None:
    source = "{% for m in messages %}{% for i in range(9) %}{% endfor %}{% endfor %}"
    assert "more than 2710 steps" in refusal(source, Limits(steps=10, message_steps=9), messages=[{}] * 300)
    assert render(source, Limits(steps=10, message_steps=11), messages=[{}] * 300) == ""


@pytest.mark.parametrize(
    "source",
    ["{% for a in range(2000) %}{% for b in range(1500) %}{% endfor %}{% endfor %}", "{{ 'abc' * 100000000 }}"],
)
def test_three_million_passes_and_300_mb_are_stopped_soon(source: str) -> None:
    began_s = time.perf_counter()
    assert "was stopped" in refusal(source)
    assert time.perf_counter() - began_s < 5


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
