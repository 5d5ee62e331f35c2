"""Templates that would take for ever, or all memory, and what comes of one in a process with limits."""

import resource
import signal
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.budget import Limits
from gateway.prompt.template import ChatTemplate

MOST_S = 20  # the process ends itself: a bomb that is stopped takes two seconds at the most
MOST_BYTES = 2 << 30


def _doubled(then: str, times: int = 40, start: str = "[1]", pair: str = "[{0}, {0}]") -> str:
    """`ns.a` and `ns.b` are equal, small, and larger than any memory as text."""
    grown = "".join(f"{{% set ns.{name} = {pair.format(f'ns.{name}')} %}}" for name in "ab")
    return f"{{% set ns = namespace(a={start}, b={start}) %}}{{% for i in range({times}) %}}{grown}{{% endfor %}}{then}"


def _long(then: str) -> str:
    """`b` and `c` are of 15 MB, alike but for their ends; `d` is another `c`."""
    texts = "{% set b = a ~ 'y' %}{% set c = a ~ 'z' %}{% set d = a ~ 'z' %}"
    return f"{{% set a = 'x' * 15000000 %}}{texts}{then}"


_NEEDLE = "'a' * 400000 ~ 'b' ~ 'a' * 400000"
_GATHER = "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l, "
STOPPED: Mapping[str, str] = {
    # One step that does not end.
    "in a list": _long("{{ c in [b] * 20000 }}"),
    "in what is generated": _long("{{ c in ([b] * 20000) | map('default', 1) }}"),
    "test in": _long("{{ (c is in([b] * 20000)) }}"),
    "lists are equal": _long("{{ [c] * 20000 == [d] * 20000 }}"),
    "count": _long("{{ ([b] * 20000).count(c) }}"),
    "index": _long("{{ ([b] * 20000).index(c) }}"),
    "loop.changed": _long("{% for i in range(100000) %}{{ loop.changed(c if i is odd else d) }}{% endfor %}"),
    "nested ==": _doubled("{{ ns.a == ns.b }}"),
    "nested <": _doubled("{{ ns.a < ns.b }}"),
    "nested in": _doubled("{{ ns.a in [ns.b] }}"),
    "nested test": _doubled("{{ ns.a is eq ns.b }}"),
    "nested select": _doubled("{{ [ns.a] | select('eq', ns.b) | list | length }}"),
    "nested sort": _doubled("{{ [ns.a, ns.b] | sort | length }}"),
    "nested max": _doubled("{{ [ns.a, ns.b] | max | length }}"),
    "nested dictsort": _doubled("{{ {'a': ns.a, 'b': ns.b} | dictsort(by='value') | length }}"),
    **{f"nested {name}": _doubled(f"{{{{ ns.a | {name} | length }}}}") for name in ("upper", "capitalize", "title", "e", "trim")},
    **{f"nested is {name}": _doubled(f"{{{{ ns.a is {name} }}}}") for name in ("lower", "upper")},
    "nested %": _doubled("{{ '%s' % [ns.a] }}"),
    "nested format": _doubled("{{ '{}'.format(ns.a) }}"),
    "nested refusal": _doubled("{{ raise_exception(ns.a) }}"),
    "nested output": _doubled("{{ ns.a }}"),
    "rfind": f"{{{{ ('a' * 1600000).rfind({_NEEDLE}) }}}}",
    "rsplit": f"{{{{ ('a' * 1600000).rsplit({_NEEDLE}) | length }}}}",
    "rpartition": f"{{{{ ('a' * 1600000).rpartition({_NEEDLE}) | length }}}}",
    "find at the end": "{{ ('a' * 4000000).find('a' * 1999000 ~ 'b' ~ 'a' * 1999000) }}",
    "strip": "{% set c = range(100000) | map('string') | join %}{{ ('x' * 15000000 ~ 'z').strip(c ~ 'xyz') | length }}",
    "sum of lists": "{{ ([[1] * 1000] * 3000) | sum(start=[]) | length }}",
    "sort": "{{ (range(100000) | list * 9) | map('string') | sort | length }}",
    "indent of levels": _doubled("{{ ([ns.a] * 900000) | tojson(indent=0) | length }}", 300, pair="[{}]"),
    "rounding": "{{ 1 | round(-100000000) }}",
    "a name that is none": _doubled("{{ [1] | map(ns.a) | list }}"),
    # More memory than there is.
    "replace a number": "{{ (('1' * 1000000) | replace(1, 'x' * 10000)) | length }}",
    "replace in a list": "{{ (['a' * 10] * 100000) | replace('a', 'x' * 10000) | length }}",
    "replace": "{{ ('a' * 100000).replace('', 'x' * 10000) | length }}",
    "join": "{{ ([{'x': 'a'}] * 100000) | join(attribute='x', d='y' * 100000) | length }}",
    "indent": "{{ ('\\n' * 1000000) | indent(9999, true, true) | length }}",
    "indent by a text": "{{ ('\\n' * 100000) | indent('x' * 9999) | length }}",
    "format": "{{ ('{0:9999}' * 120000).format('x') | length }}",
    "format one value often": "{{ ('{0}' * 100000).format('x' * 10000) | length }}",
    "format in other digits": "{{ '{:٩٩٩٩٩٩٩٩٩}'.format(1) }}",
    "format nested": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "% by name": "{{ ('%(a)9999d' * 120000) % {'a': 1} }}",
    "% one value often": "{{ ('%(a)s' * 100000) % {'a': 'x' * 10000} }}",
    "% hidden in a key": "{{ ('%5%(%9999d)' * 100000) % {'x': 1} }}",
    "% with a key of keys": "{{ ('%((a))9999d' * 120000) % {'(a)': 1} }}",
    "% precision": "{{ '%.999999999f' % 1.5 }}",
    "% filter": "{{ ('%9999s' * 100000) | format(*(['x'] * 100000)) | length }}",
    "split": "{{ ('a ' * 7000000).split(' ') | length }}",
    "splitlines": "{{ ('\\n' * 15000000).splitlines() | length }}",
    "list of characters": "{{ ('a' * 15000000) | list | length }}",
    "escape": "{{ ('&' * 15000000) | e | length }}",
    "escaped by +": "{{ ('x' | safe) + ('&' * 15000000) }}",
    "escaped by join": "{{ ('x' | safe).join(['&' * 1000000] * 10) | length }}",
    "slices": _GATHER + "('x' * 9000000)[1:]] %}{% endfor %}",
    "cyclers": "{% set b = [1] * 1000000 %}" + _GATHER + "cycler(*b)] %}{% endfor %}",
    "lists": _GATHER + "[" + "0, " * 4000 + "]] %}{% endfor %}",
    "texts": _GATHER + "'😀' * 100000 ~ i] %}{% endfor %}",
    "a captured block": "{% set x %}{% for i in range(100) %}{{ 'x' * 2500000 }}{% endfor %}{% endset %}{{ x | length }}",
    "a date": "{{ strftime_now('%9999999Y' ~ 'x' * 5000000) | length }}",
    "a number": "{{ ('1' * 5000) | int }}",
}  # fmt: skip
FAULTY: Mapping[str, str] = {
    "a text as a number": "{{ '%999999999d' is odd }}",
    "a tuple as key": _doubled("{{ {ns.a: 1} }}", start="(1,)", pair="({0}, {0})"),
    "a tuple looked up": _doubled("{{ {}.get(ns.a) }}", start="(1,)", pair="({0}, {0})"),
    "a tuple in a dict": _doubled("{{ ns.a in {} }}", start="(1,)", pair="({0}, {0})"),
    "a dict of tuples": _doubled("{{ dict([(ns.a, 1)]) }}", start="(1,)", pair="({0}, {0})"),
    "a tuple as item": _doubled("{{ {}[ns.a] }}", start="(1,)", pair="({0}, {0})"),
    "a list that is no item": _doubled("{{ {}[ns.a].x }}"),
    "keys less others": "{{ dict(a=1).keys() - [1] }}",
    "expandtabs": "{{ ('\\t' * 1000000).expandtabs(9999) | length }}",
    "a surrogate": "{{ '\\ud800' }}",
    "a surrogate's number": "{{ '%c' % 55296 }}",
}
HARMLESS: Mapping[str, str] = {
    "a list as number": _doubled("{{ ns.a | int }}"),
    "a namespace": _doubled("{{ ns }}{{ [ns] }}"),
    "infinity": "{{ 1e308 / 1e-5 }}{{ -1e308 - 1e308 }}{{ 1e308 * 10 }}",
    "deep": _doubled("{{ ns.a | tojson(indent=0) }}", 500, pair="[{}]"),
}
UNCOMPILED: Mapping[str, str] = {
    "digits": "{{ " + "1" * 5000 + " }}",
    "other digits": "{{ 0x" + "f" * 50000 + " }}",
    "a number without end": "{{ 1e999 }}",
    "a surrogate of its own": "{{ a\ud800 }}\ud800",
    "branches": "{% if a %}" + "{% elif b %}" * 4900 + "{% endif %}",
    "many branches": "{% if a %}" + "{% elif b %}" * 30000 + "{% endif %}",
    "expressions": "{{ a.b }}" * 100000,
    "fewer expressions": "{{ a.b }}" * 10000,
    "sums": "{{ " + "+".join(["1"] * 20000) + " }}",
    "parentheses": "{{ " + "(" * 4000 + "1" + ")" * 4000 + " }}",
    "conditions": "{% if x %}" * 1000 + "{% endif %}" * 1000,
    "loops": "{% for x in y %}" * 25 + "{% endfor %}" * 25,
    "escaping": "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    **{name: f"{{{{ ('(' * 100000) | {name} }}}}" for name in ("urlize", "striptags", "wordwrap", "pprint", "random", "unique")},
}


def confine() -> None:
    """This process, for good."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def outcome(source: str, limits: Limits | None = None) -> tuple[str, str, int]:
    """How the render ended: the kind of error, its text, and the most bytes of memory that the process has held so far."""
    signal.alarm(MOST_S)
    kind = said = ""
    try:
        template = ChatTemplate(source, lambda: datetime(2026, 3, 14), limits, time.monotonic)
        template.render({"messages": [{"role": "user", "content": "hi"}]})
    except BadRequest as error:
        kind, said = "BadRequest", error.message
    except ModelFileError as error:
        kind, said = "ModelFileError", str(error)
    signal.alarm(0)
    return kind, said, most_held_bytes()


def most_held_bytes() -> int:
    """The most memory of this program: what a process was before it became this one, which `getrusage` counts, is left out."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
