"""A constraint as a grammar in GBNF, the language of llama.cpp.

Invariant: what the grammar admits is one JSON value, or calls that hold one each, and it satisfies every part of the schema that
a grammar can say. The rest is left to validation of the answer: `pattern`, `format`, the fractions in bounds of numbers,
`multipleOf`, `uniqueItems`, `contains`, `not`, `if`/`then`/`else`, `propertyNames`, the exclusiveness of `oneOf`, and repetitions
over `Limits.repeat`. An object that declares properties gets no others: narrower than JSON Schema, but within it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engines.grammar.budget import SchemaError
from engines.grammar.text import avoiding, literal
from engines.grammar.values import COLON, COMMA, Limits, Rules, Values
from gateway.errors import BadRequest
from gateway.request import CallAnswer, Constraint, JsonAnswer, ToolSpec
from gateway.wire.jsonio import encode

_NEWLINES = r'"\n"{0,2}'  # as templates write them after a thought


class GrammarCache:
    """Grammars by the value of their constraint; over `size`, the least recently used is dropped."""

    def __init__(self, size: int = 64, limits: Limits | None = None) -> None:
        self._size = size
        self._limits = limits or Limits()
        self._grammars: OrderedDict[bytes, str] = OrderedDict()

    def grammar(self, constraint: Constraint, declared: Sequence[ToolSpec] = ()) -> str:
        """The grammar, built once for equal constraints. Raises BadRequest, as `gbnf` does."""
        key = hashlib.blake2b(encode([type(constraint).__name__, constraint])).digest()
        grammar = self._grammars.get(key)
        if grammar is None:
            grammar = self._grammars[key] = gbnf(constraint, self._limits, declared)
            if len(self._grammars) > self._size:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(key)
        return grammar


def gbnf(constraint: Constraint, limits: Limits | None = None, declared: Sequence[ToolSpec] = ()) -> str:
    """The grammar of a constraint. Raises BadRequest where a schema is too large, points to nothing, or admits nothing.

    `declared` are the request's tools, of which the constraint may hold some: an error names the tool by its place there.
    """
    rules = Rules(limits or Limits())
    with _about("tools" if isinstance(constraint, CallAnswer) else "response_format"):
        root = _calls(rules, constraint, declared) if isinstance(constraint, CallAnswer) else _json(rules, constraint)
        if constraint.thought_closer is not None:
            root = _text(rules, constraint.thought_closer, f"{_NEWLINES} {rules.add(root)}")
        return rules.text(root)


@contextmanager
def _about(param: str) -> Iterator[None]:
    """A schema that cannot be held is the client's fault in this field."""
    try:
        yield
    except SchemaError as error:
        raise BadRequest(f"The schema in '{param}' cannot be enforced: {error}.", param=param) from None


def _json(rules: Rules, answer: JsonAnswer) -> str:
    schema = {"type": "object"} if answer.schema is None else answer.schema
    return Values(rules, schema).rule(schema)


def _calls(rules: Rules, answer: CallAnswer, declared: Sequence[ToolSpec]) -> str:
    """Calls; with `or_text`, text comes first that nowhere holds the opener, so that each call in an answer is a whole one."""
    places = {tool.name: place for place, tool in enumerate(declared or answer.tools)}
    ways = []
    for tool in answer.tools:
        with _about(f"tools[{places[tool.name]}].function.parameters"):
            ways.append(_call(rules, answer, tool))
    tools = " | ".join(ways)
    head = literal(f"{answer.opener}{{{encode(answer.name_key).decode()}")
    call = rules.add(f"{head} {COLON} ({tools}) {literal('}' + answer.closer)}")
    calls = call
    if answer.max_calls is None:
        calls += f" ({literal(answer.separator)} {call})*"
    elif answer.max_calls > 1:
        calls += f" ({literal(answer.separator)} {call}){{0,{answer.max_calls - 1}}}"
    if not answer.or_text:
        return calls
    return f"{_text(rules, answer.opener.strip() or '{')} ({calls})?"


def _text(rules: Rules, marker: str, after: str | None = None) -> str:
    """The rule for text without a marker; with `after`, the marker and this body follow it."""
    text = avoiding(marker, rules.new_name, after)
    for name, body in text.items():
        rules.put(name, body)
    return next(iter(text))


def _call(rules: Rules, answer: CallAnswer, tool: ToolSpec) -> str:
    """From the name's value to the end of the arguments. A tool that declares no parameters takes no arguments."""
    schema = {"properties": {}} if tool.parameters is None else tool.parameters
    arguments = Values(rules, schema).rule({"allOf": [schema, {"type": "object"}]})
    return rules.add(f"{rules.json_literal(tool.name)} {COMMA} {rules.json_literal(answer.arguments_key)} {COLON} {arguments}")
