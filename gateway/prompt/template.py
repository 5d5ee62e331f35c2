"""The one place where a chat template is compiled and rendered: Jinja2's immutable sandbox, set up as `transformers` does, so
that the text is the one the model was trained on.

Templates come from model files and are untrusted code. Invariant: a render ends with a text or with `BadRequest`, within the
limits of `gateway.prompt.budget`; it reaches no file, no clock but the one it is given, and no Python object but plain JSON.

Left out on purpose: `include`, `extends`, `import` and `block` (there is nothing to load), `autoescape` (prompts are no HTML),
`lipsum` and `random` (a prompt is the same each time), and what is not in `gateway.prompt.costs`.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.budget import OVERHEAD_BYTES, Budget, Limits, OverBudget, text_bytes
from gateway.prompt.costs import FILTERS, GLOBALS, TESTS, Cost, methods_of
from gateway.prompt.format_costs import percent
from gateway.wire import jsonio

MAX_TEMPLATE_CHARS = 100_000  # the largest of 40 real templates has 16,714
MAX_TEMPLATE_NODES = 5_000  # and 1,245
_MESSAGE_CHARS = 500
_MARKS = re.compile("[\ufdd0-\ufdef]")  # of gateway.prompt.neutral
_NODES_A_STEP = 64
_JINJA_S_OWN = frozenset({"_loop_vars", "_block_vars"})  # arguments that it adds to a call in a loop
# What the template is made to call of ours. No template can name a filter that begins with a blank.
_CHARGE, _JOINED, _SLICED, _COMPARED, _KEY, _CAPTURED = " charge", " joined", " sliced", " compared", " key", " captured"
_REFUSED_NODES = (
    nodes.Include,
    nodes.Extends,
    nodes.Import,
    nodes.FromImport,
    nodes.Block,
    nodes.EvalContextModifier,
)
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "gt")},
    "gteq": operator.ge,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
# What running a template can raise, beside TemplateError: its own mistakes, met with this conversation.
_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
RENDER_FAULTS: tuple[type[Exception], ...] = (TemplateError, *_FAULTS)
"""What another renderer of the same template may raise."""


class ChatTemplate:
    """A compiled template. Renders may run in several threads at once."""

    def __init__(
        self,
        source: str,
        clock: Callable[[], datetime],
        limits: Limits | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        """`clock` tells templates the date; `seconds`, which only grows, holds renders to `Limits.wall_s`. Raises ModelFileError
        where the template does not compile."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelFileError(f"The model's chat template has {len(source)} characters, the limit is {MAX_TEMPLATE_CHARS}.")
        self._limits = limits or Limits()
        self._seconds = seconds
        environment = _Environment(clock, self._limits, seconds)
        try:
            parsed = environment.parse(source)
            _check(parsed)
            self.variables = frozenset(find_undeclared_variables(parsed))
            self._template = environment.from_string(parsed)
        except (TemplateError, SyntaxError, MemoryError, *_FAULTS) as error:
            raise ModelFileError(f"The model's chat template does not compile: {_text(error)}") from None

    def render(self, variables: Mapping[str, Any], steps: int | None = None) -> str:
        """The text. The variables are plain JSON values; `steps` are its limit in place of the usual one. Raises BadRequest, with
        the template's own words where it refused, and Stopped, which is one, at a limit."""
        try:
            context = self._template.new_context(dict(variables))
            if steps is not None:
                cast(_Context, context).budget = Budget(replace(self._limits, steps=steps), 0, self._seconds)
            return _whole("".join(self._pieces(self._template.root_render_func(context))))
        except _Refusal as error:
            raise BadRequest(f"The model's chat template refuses these messages: {_text(error)}", param="messages") from None
        except OverBudget as error:
            raise Stopped(_text(error)) from None
        except MemoryError:
            raise Stopped("it needs more memory than there is") from None
        except (TemplateError, *_FAULTS) as error:
            raise BadRequest(f"The model's chat template cannot render this: {_text(error)}", param="messages") from None

    def _pieces(self, pieces: Iterator[str]) -> Iterator[str]:
        left = self._limits.value_bytes
        for piece in pieces:
            left -= text_bytes(piece)
            if left < 0:
                raise OverBudget(f"it writes more than {self._limits.value_bytes} bytes")
            yield piece


class Stopped(BadRequest):
    """The template would use more than it may with these messages; `why` completes the sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The model's chat template was stopped: {why}.", param="messages")


class _Refusal(TemplateError):
    """The template called `raise_exception`."""


class _Context(Context):
    """A render's own state: the names of the template and the budget."""

    def __init__(self, environment: "_Environment", parent: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(environment, parent, *args, **kwargs)
        messages = parent.get("messages")
        self.budget = Budget(environment.limits, len(messages) if isinstance(messages, list) else 0, environment.seconds)


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012  the library's own attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """Counts every loop pass, macro call, filter, test, method, operator and comparison against the budget of the render."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    context_class = _Context

    def __init__(self, clock: Callable[[], datetime], limits: Limits, seconds: Callable[[], float] | None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_finalize)
        self.limits = limits
        self.seconds = seconds
        self.globals |= {
            "raise_exception": _raise,
            "namespace": _Names,
            "strftime_now": lambda pattern: clock().strftime(pattern),
        }
        self._costs = {self.globals[name]: cost for name, cost in GLOBALS.items()}
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters["dictsort"] = _dictsort
        self.filters = {name: _guarded(self.filters[name], cost) for name, cost in FILTERS.items()}
        ours = {_CHARGE: _charge, _JOINED: _joined, _SLICED: _sliced, _COMPARED: _compared, _KEY: _key, _CAPTURED: _captured}
        self.filters |= ours
        self.tests = {name: _guarded(self.tests[name], cost) if cost else self.tests[name] for name, cost in TESTS.items()}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        _instrument(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) in (_Names, LoopContext):  # the commonest by far
            return not attr.startswith("_")
        methods = methods_of(obj)
        if methods is not None:
            return attr in methods
        return isinstance(obj, LoopContext | Cycler | Macro | Namespace | Undefined) and super().is_safe_attribute(
            obj, attr, value
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        said = f"{attribute!r} of {type(obj).__name__} is not among what chat templates may use"
        return self.undefined(said, name=attribute, obj=obj, exc=SecurityError)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = cast(_Context, context).budget
        if operator == "%" and isinstance(left, str):
            percent(budget, left, right)
        else:
            budget.operate(operator, left, right)
        value = super().call_binop(context, operator, left, right)
        budget.made(value)
        return value

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = cast(_Context, context).budget
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        methods = methods_of(owner)
        cost = self._costs.get(obj) if methods is None else methods.get(obj.__name__)
        if cost is not None:
            args = tuple(map(_listed, args))
            given = {name: value for name, value in kwargs.items() if name not in _JINJA_S_OWN}
            cost(budget, *(() if methods is None else (owner,)), *args, **given)
        elif isinstance(owner, LoopContext):
            budget.read(args)
        budget.step(1 + len(args) // 8)
        value = super().call(context, obj, *args, **kwargs)
        budget.made(value)
        return value


def _check(parsed: nodes.Template) -> None:
    """Raises TemplateError for what chat templates cannot use, and for a template that takes too long to compile."""
    left, waiting = MAX_TEMPLATE_NODES, [cast(nodes.Node, parsed)]
    while waiting:
        node = waiting.pop()
        left -= 1
        if left < 0:
            raise TemplateError(f"it has more than {MAX_TEMPLATE_NODES} parts")
        if isinstance(node, _REFUSED_NODES):
            name = "autoescape" if isinstance(node, nodes.EvalContextModifier) else type(node).__name__.lower()
            raise TemplateError(f"line {node.lineno} uses {name}, which chat templates cannot")
        if isinstance(node, nodes.Const) and isinstance(node.value, float) and not math.isfinite(node.value):
            raise TemplateError(f"line {node.lineno} has a number that is too large")
        waiting += node.iter_child_nodes()


def _instrument(node: nodes.Node) -> tuple[int, int]:
    """Puts a charge at the head of each body that can run more than once; makes comparisons, slices, keys, `~` and what blocks
    capture countable. Innermost first: a node's own parts are replaced before it is. How many nodes it has, and how many bytes of
    literal text and lists one pass through it makes."""
    size, data = 1, _literal_bytes(node)
    for child in node.iter_child_nodes():
        more, written = _instrument(child)
        size, data = size + more, data + written
    for name, value in [*node.iter_fields()]:
        if isinstance(value, list):
            setattr(node, name, [_counting(item) for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _counting(value))
    charge = _ours(nodes.Const(1 + size // _NODES_A_STEP), _CHARGE, nodes.Const(data))
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
        node.body.insert(0, nodes.ExprStmt(charge))
    if isinstance(node, nodes.For) and node.test is not None:
        node.test = nodes.And(charge, node.test)
    if isinstance(node, nodes.AssignBlock) and node.filter is None:
        node.filter = _ours(None, _CAPTURED)
    return size, data


def _literal_bytes(node: nodes.Node) -> int:
    if isinstance(node, nodes.TemplateData):
        return text_bytes(node.data)
    return OVERHEAD_BYTES + 8 * len(node.items) if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) else 0


def _counting(node: Any) -> Any:
    """What stands for a node so that the budget sees its operands first."""
    match node:
        case nodes.Concat():
            return _ours(nodes.List(node.nodes), _JOINED)
        case nodes.Compare():
            pairs = [part for each in node.ops for part in (nodes.Const(each.op), each.expr)]
            return _ours(node.expr, _COMPARED, *pairs)
        case nodes.Getitem(arg=nodes.Slice(start=start, stop=stop, step=step)):
            return _ours(node.node, _SLICED, *(part or nodes.Const(None) for part in (start, stop, step)))
        case nodes.Getitem() if not isinstance(node.arg, nodes.Const):
            node.arg = _ours(node.arg, _KEY)
        case nodes.Pair() if not isinstance(node.key, nodes.Const):
            node.key = _ours(node.key, _KEY)
    return node


def _ours(value: nodes.Expr | None, name: str, *args: nodes.Expr) -> nodes.Filter:
    made = nodes.Filter(value, name, [*args], [], None, None)
    made.lineno = value.lineno if value is not None else 0
    return made


def _guarded(function: Any, cost: Cost | None) -> Callable[..., Any]:
    """A filter or test that asks the budget first."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def guarded(context: _Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = context.budget
        known: Mapping[str, Any] = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        lead = (known[wants],) if wants else ()
        if cost is None:
            budget.step()
            return function(*lead, value, *args, **kwargs)
        value, args = _listed(value), tuple(map(_listed, args))
        cost(budget, value, *args, **kwargs)
        budget.step(1 + len(args) // 8)
        made = function(*lead, value, *args, **kwargs)
        if isinstance(made, Iterator):
            return budget.drawn(made)
        budget.made(made)
        return made

    return guarded


def _listed(value: Any) -> Any:
    """A generator as a list, so that its size is known: what it yields is counted as it is drawn."""
    return [*value] if hasattr(value, "__next__") else value


@pass_context
def _charge(context: _Context, cost: int, data_bytes: int) -> bool:
    context.budget.step(cost)
    context.budget.keep(data_bytes)
    return True


@pass_context
def _joined(context: _Context, values: list[Any]) -> str:
    budget = context.budget
    budget.fit(sum(map(budget.text, values)))
    made = "".join(map(str, values))
    budget.made(made)
    return made


@pass_context
def _sliced(context: _Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    cut = slice(start, stop, step)
    context.budget.slice(value, cut)
    return value[cut]


@pass_context
def _compared(context: _Context, left: Any, name: str, right: Any, *more: Any) -> Any:
    """One comparison, or a chain of them."""
    if name in ("in", "notin"):
        right = _listed(right)
        context.budget.contain(left, right)
    else:
        context.budget.compare(left, right)
    made = _COMPARISONS[name](left, right)
    return _compared(context, right, *more) if more and made else made


@pass_context
def _key(context: _Context, value: Any) -> Any:
    context.budget.key(value)
    return value


@pass_context
def _captured(context: _Context, value: str) -> str:
    context.budget.made(value)
    return value


@pass_context
def _finalize(context: _Context, value: Any) -> Any:
    context.budget.keep(context.budget.text(value))
    return value


def _raise(message: Any = "") -> None:
    raise _Refusal(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return jsonio.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _dictsort(value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False) -> list[Any]:
    """As Jinja's, in the order of the client's own words: marks that are put into them for a while move nothing."""
    if by not in ("key", "value"):
        raise SecurityError("dictsort sorts by key or by value")

    def rank(item: tuple[Any, Any]) -> Any:
        place = item[by == "value"]
        if not isinstance(place, str):
            return place
        place = _MARKS.sub("", place)
        return place if case_sensitive else place.lower()

    return sorted(value.items(), key=rank, reverse=reverse)


class _Names(Namespace):
    """`namespace` for templates: its names do not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *values = args
        names = dict(*values, **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the name {name!r}")


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TemplateRuntimeError("it writes a lone surrogate, which is half a character") from None
    return text


def _text(error: Exception) -> str:
    """Of what went wrong, in characters that can be sent."""
    said = f"line {error.lineno}: {error.message}" if isinstance(error, TemplateSyntaxError) else str(error)
    text = (said or type(error).__name__)[: _MESSAGE_CHARS + 1].encode(errors="replace").decode()
    return text if len(text) <= _MESSAGE_CHARS else text[:_MESSAGE_CHARS] + "…"
