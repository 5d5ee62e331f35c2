"""Checks the calls of an engine that parses them itself, by the same rules as ours."""

from collections.abc import Callable, Sequence

from gateway.formats.schema import Parameters
from gateway.request import FailureKind, ToolSpec
from gateway.wire.jsonio import JsonError, decode


def call_check(tools: Sequence[ToolSpec]) -> Callable[[str, str], list[FailureKind]]:
    """A check of a whole call's name and arguments text, which gives the kinds of failure. Schemas are read when first needed."""
    known = {tool.name: tool for tool in tools}
    parameters: dict[str, Parameters] = {}

    def check(name: str, arguments: str) -> list[FailureKind]:
        if name not in known:
            return ["unknown_tool"]
        try:
            value = decode(arguments)
        except JsonError:
            return ["invalid_json"]
        if not isinstance(value, dict):
            return ["not_an_object"]
        if name not in parameters:
            parameters[name] = Parameters(known[name].parameters)
        return [] if parameters[name].accepts(arguments) else ["schema_mismatch"]

    return check
