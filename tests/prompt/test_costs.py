"""The table of costs: each cost takes the parameters of what it stands before, so that it sees each argument under its name."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from jinja2.filters import FILTERS as JINJA_S
from support.vocabulary import fixed_clock

from gateway.errors import BadRequest
from gateway.prompt.budget import Limits
from gateway.prompt.costs import FILTERS, METHODS
from gateway.prompt.template import ChatTemplate

BY_NAME = frozenset({"map", "select", "selectattr", "reject", "rejectattr"})  # these pass arguments on
OURS = frozenset({"tojson"})  # with the parameters of transformers' own


def parameters(function: Callable[..., Any], skipped: int) -> list[tuple[str, Any]]:
    """Names and defaults, but for what comes first: the budget and the value, which are always given by place."""
    found = list(inspect.signature(function).parameters.values())[skipped:]
    return [(each.name, None if each.default is each.empty else each.default) for each in found]


@pytest.mark.parametrize("name", sorted(name for name, cost in FILTERS.items() if cost and name not in BY_NAME | OURS))
def test_a_filter_s_cost_has_its_parameters(name: str) -> None:
    function, cost = JINJA_S[name], FILTERS[name]
    assert cost is not None
    theirs = parameters(function, 2 if hasattr(function, "jinja_pass_arg") else 1)
    ours = parameters(cost, 2)
    assert [name for name, _ in ours] == [name for name, _ in theirs] or (name == "float" and theirs == [("default", 0.0)])
    assert [default for _, default in ours] == [default for _, default in theirs] or name == "float"


@pytest.mark.parametrize("name", ["split", "rsplit", "splitlines", "center"])
def test_a_method_s_cost_has_its_parameters(name: str) -> None:
    cost = METHODS[str][name]
    assert cost is not None
    assert parameters(cost, 2) == parameters(getattr(str, name), 1)


def test_all_methods_exist() -> None:
    assert [name for kind, methods in METHODS.items() for name in methods if not hasattr(kind, name)] == []


SMALL = Limits(steps=700, message_steps=0, value_bytes=100_000)


@pytest.mark.parametrize(
    "source",
    [
        "{{ x in l }}",
        "{{ l == m }}",
        "{{ l is eq m }}",
        "{{ x is in l }}",
        "{{ l.count(x) }}",
        "{{ l | sort | length }}",
        "{{ l | min | length }}",
        "{{ l | select('in', l) | list | length }}",
        "{{ x.rfind(y) }}",
        "{{ x.strip(y) }}",
        "{{ x | trim(y) }}",
        "{{ l | join(d=y) }}",
        "{{ l | join(y) }}",
        "{{ y.join(l) }}",
        "{{ x | replace(new=y, old='a') }}",
        "{{ l | replace('a', y) }}",
    ],
)
def test_work_is_counted_before_it_is_done(source: str) -> None:
    """Each would take more than 700 steps, or make more than 100,000 bytes."""
    values = {"x": "a" * 20_000, "y": "a" * 10_000 + "b" * 100, "l": ["a" * 4000] * 20, "m": ["a" * 4000] * 20}
    few = {name: value[:3] for name, value in values.items()}
    template = ChatTemplate(source, fixed_clock, SMALL)
    template.render(few)
    more = {**values, "l": ["a" * 4000 for _ in range(80)], "m": ["a" * 4000 for _ in range(80)]}
    with pytest.raises(BadRequest, match=r"was stopped: it (takes|makes)"):
        template.render(more)
