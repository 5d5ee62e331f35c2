"""A model whose template is hostile to some conversations: what the last message says names the trick."""

from collections.abc import Mapping
from pathlib import Path

from support.gguf_writer import gguf
from support.vocabulary import template_text, tokenizer_fields

SLOW = "{% set a = 'a' * 15000000 %}{% for i in range(100000) %}{% if 'b' in a %}x{% endif %}{% endfor %}"
TRICKS: Mapping[str, str] = {
    "loops": "{% for a in range(3000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
    "repeat": "{{ 'abc' * 100000000 }}",
    "join": "{{ ('x' * 60000).join(range(60000) | map('string')) }}",
    "replace": "{{ ('a' * 9000).replace('a', 'b' * 9000).replace('b', 'c' * 9000) }}",
    "grow": "{% set ns = namespace(t='ab') %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
    "macros": "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}",
    "indent": "{{ [[[1]]] | tojson(indent=100000000) }}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "slow": SLOW,
    "compare": "{% set a = 'a' * 15000000 %}{% set b = a ~ 'b' %}{% set c = a ~ 'c' %}{{ c in [b] * 20000 }}",
    "double": "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}"
    "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "search": "{{ ('a' * 1600000).rfind('a' * 400000 ~ 'b' ~ 'a' * 400000) }}",
    "number": "{{ ('1' * 1000000) | replace(1, 'x' * 10000) }}",
    "fields": "{{ ('%(a)9999d' * 120000) % {'a': 1} }}",
    "key": "{% set ns = namespace(a=(1,)) %}{% for i in range(40) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ {ns.a: 1} }}",
    "surrogate": "{{ '\\ud800' }}",
    "refusal": "{{ raise_exception('\\ud800') }}",
}


def hostile_model(folder: Path, context_tokens: int = 1_000_000) -> Path:
    """Its file, with a vocabulary of bytes and no weights. To every other message the template is harmless."""
    tricks = "".join(f"{{% if messages[-1].content == '{name}' %}}{source}{{% endif %}}" for name, source in TRICKS.items())
    fields = tokenizer_fields(template=tricks + template_text("echo"))
    file = folder / "hostile.gguf"
    file.write_bytes(gguf({"general.architecture": "tiny", "tiny.context_length": context_tokens, **fields}))
    return file
