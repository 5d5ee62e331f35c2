"""PromQL expressions as trees: what an alert compares, which series it reads, and over how long."""

from datetime import timedelta
from typing import cast

import promql_parser as promql

_COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})


def without_thresholds(expression: str) -> str:
    """What the expression gives before anything is compared: a comparison is its left side, and `absent(x)` is `x`."""
    return promql.transform(promql.parse(expression), post_visit=_bare).prettify()


def compared(expression: str) -> list[str]:
    """What each comparison is of, and what is asked to be absent: each must have data for the whole to mean anything."""
    return [bare.prettify() for node in _nodes(expression) if (bare := _bare(node)) is not None]


def selectors(expression: str) -> list[str]:
    """Every selection of series in it."""
    return [str(node) for node in _nodes(expression) if isinstance(node, promql.VectorSelector)]


def metrics(expression: str) -> set[str]:
    """The names of what it reads, recorded ones too."""
    return {node.name for node in _nodes(expression) if isinstance(node, promql.VectorSelector) and node.name is not None}


def windows(expression: str) -> list[timedelta]:
    """How far it looks back, by each of its ranges."""
    return [node.range for node in _nodes(expression) if isinstance(node, promql.MatrixSelector)]


def numbers(expression: str) -> list[float]:
    """The numbers that stand in it."""
    return [node.val for node in _nodes(expression) if isinstance(node, promql.NumberLiteral)]


def with_windows(expression: str, window: timedelta) -> str:
    """The same with each range this long."""

    def shorter(node: promql.Expr) -> promql.Expr | None:
        if isinstance(node, promql.MatrixSelector):
            node.range = window
            return node
        return None

    return promql.transform(promql.parse(expression), shorter).prettify()


def _bare(node: promql.Expr) -> promql.Expr | None:
    if isinstance(node, promql.BinaryExpr) and str(node.op) in _COMPARISONS:
        return node.lhs
    if isinstance(node, promql.Call) and node.func.name == "absent":
        return cast("promql.Expr", node.args[0])
    return None


def _nodes(expression: str) -> list[promql.Expr]:
    nodes: list[promql.Expr] = []
    promql.walk(promql.parse(expression), nodes.append)
    return nodes
