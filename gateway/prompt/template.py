"""The one place where a chat template is compiled and rendered: Jinja2's immutable sandbox, set up as `transformers` does, so
that the text is the one the model was trained on.

Templates come from model files and are untrusted code. Invariant: a render ends with a text or with `BadRequest`, within the
limits of `gateway.prompt.budget`; it reaches no file, no clock but the one it is given, and no Python object but plain JSON.

Left out on purpose: `include`, `extends`, `import` and `block` (there is nothing to load), `lipsum` and `random` (a prompt is the
same each time). What a limit in seconds has to add is named in `gateway.prompt.budget`.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.budget import Budget, Limits, OverBudget
from gateway.wire import jsonio

MAX_TEMPLATE_CHARS = 1_000_000
MAX_JSON_SPACING = 16
_MESSAGE_CHARS = 500
_CHARGE = " charge"  # no template can name a filter that begins with a space
_JOINED = " joined"
_REFUSED_NODES = (nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport, nodes.Block)
_REFUSED_METHODS = frozenset({"encode", "translate", "maketrans"})
# What running a template can raise, beside TemplateError: its own mistakes, met with this conversation.
_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


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
        environment = _Environment(clock, self._limits, seconds)
        try:
            parsed = environment.parse(source)
            self.variables = frozenset(find_undeclared_variables(parsed))
            self._template = environment.from_string(parsed)
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise ModelFileError(f"The model's chat template does not compile: {_text(error)}") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. The variables are plain JSON values. Raises BadRequest, with the template's own words where it refused."""
        try:
            context = self._template.new_context(dict(variables))
            return "".join(self._pieces(self._template.root_render_func(context)))
        except _Refusal as error:
            raise BadRequest(f"The model's chat template refuses these messages: {_text(error)}", param="messages") from None
        except OverBudget as error:
            raise stopped(_text(error)) from None
        except (TemplateError, *_FAULTS) as error:
            raise BadRequest(f"The model's chat template cannot render this: {_text(error)}", param="messages") from None

    def _pieces(self, pieces: Iterator[str]) -> Iterator[str]:
        left = self._limits.value_chars
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise OverBudget(f"it writes more than {self._limits.value_chars} characters")
            yield piece


def stopped(why: str) -> BadRequest:
    """The refusal of messages with which the template would use more than it may."""
    return BadRequest(f"The model's chat template was stopped: {why}.", param="messages")


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
    """Counts every loop pass, macro call, filter, method, operator and comparison against the budget of the render."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    context_class = _Context

    def __init__(self, clock: Callable[[], datetime], limits: Limits, seconds: Callable[[], float] | None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_finalize)
        self.limits = limits
        self.seconds = seconds
        self.globals |= {
            "raise_exception": _raise,
            "strftime_now": lambda pattern: clock().strftime(pattern),
            "dict": _Dict(),
            "namespace": _Names,
        }
        del self.globals["lipsum"]
        del self.filters["random"]
        self.filters["tojson"] = _tojson
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}
        self.filters[_CHARGE] = _charge
        self.filters[_JOINED] = _joined

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for refused in source.find_all(_REFUSED_NODES):
            raise TemplateError(f"line {refused.lineno} uses {type(refused).__name__.lower()}, which chat templates cannot")
        _instrument(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, int | float | bytes) or (isinstance(obj, str) and attr in _REFUSED_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = cast(_Context, context).budget
        budget.operation(operator, left, right)
        value = super().call_binop(context, operator, left, right)
        budget.made(value)
        return value

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = cast(_Context, context).budget
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str | list | tuple | dict):
            args = tuple(_counted(budget, value, obj.__name__) for value in args)
            budget.function(obj.__name__, owner, [*args, *kwargs.values()])
        else:
            budget.step()
        value = super().call(context, obj, *args, **kwargs)
        budget.made(value)
        return value


def _instrument(source: nodes.Template) -> None:
    """Puts a charge at the head of each body that can run more than once and before each comparison and slice, which can be slow;
    makes `~` countable."""
    bodies: list[nodes.For | nodes.Macro | nodes.CallBlock] = []
    for kind in (nodes.For, nodes.Macro, nodes.CallBlock):
        bodies += source.find_all(kind)
    for node in bodies:
        data = sum(len(piece.data) for piece in node.find_all(nodes.TemplateData))
        charge = _charged(data)
        node.body.insert(0, nodes.ExprStmt(charge))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(charge, node.test)
    _replace(source)


def _replace(node: nodes.Node) -> None:
    """Innermost first: a node's own parts are replaced before it is."""
    for child in node.iter_child_nodes():
        _replace(child)
    for name, value in [*node.iter_fields()]:
        if isinstance(value, list):
            setattr(node, name, [_counting(item) for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _counting(value))


def _counting(node: Any) -> Any:
    match node:
        case nodes.Concat():
            pieces = nodes.List(node.nodes).set_lineno(node.lineno)
            return nodes.Filter(pieces, _JOINED, [], [], None, None).set_lineno(node.lineno)
        case nodes.Compare() | nodes.Getitem(arg=nodes.Slice()):
            return nodes.And(_charged(0), node).set_lineno(node.lineno)  # the charge is true: the node's own value comes out
        case _:
            return node


def _charged(data_chars: int) -> nodes.Filter:
    return nodes.Filter(nodes.Const(data_chars), _CHARGE, [], [], None, None)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that asks the budget first."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def guarded(context: _Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = context.budget
        value = _counted(budget, value, name)
        budget.function(name, value, [*args, *kwargs.values()])
        known: Mapping[str, Any] = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        lead = (known[wants],) if wants else ()
        made = function(*lead, value, *args, **kwargs)
        budget.made(made)
        return made

    return guarded


def _counted(budget: Budget, value: Any, name: str) -> Any:
    """A generator, counted as it is drawn; for `join` drawn at once, so that its size is known."""
    if not isinstance(value, Iterator):
        return value
    return list(budget.counted(value)) if name == "join" else budget.counted(value)


@pass_context
def _charge(context: _Context, data_chars: int) -> bool:
    context.budget.step(1, max(data_chars, 0))
    return True


@pass_context
def _joined(context: _Context, values: list[Any]) -> str:
    context.budget.written(values)
    return "".join(map(str, values))


@pass_context
def _finalize(context: _Context, value: Any) -> Any:
    context.budget.written(value)
    return value


def _raise(message: Any = "") -> None:
    raise _Refusal(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    spacing = [indent if isinstance(indent, int) else len(indent or ""), *(len(text) for text in separators or ())]
    if any(size > MAX_JSON_SPACING for size in spacing):
        raise OverBudget(f"tojson is asked for spacing of more than {MAX_JSON_SPACING}")
    return jsonio.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """`dict` for templates: only what makes one."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """A dict of these keys."""
        return dict.fromkeys(keys, value)


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


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the name {name!r}")


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MESSAGE_CHARS else text[:_MESSAGE_CHARS] + "…"
