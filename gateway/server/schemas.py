"""What a request body may hold, as JSON Schema for the API's description.

Made from the type that reads the body, so that it is true.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import NODEFAULT, inspect

_PLAIN: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.DictType: "object",
}


def described(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An operation's body, as OpenAPI has it."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def schema_of(kind: type) -> dict[str, Any]:
    """The schema of a msgspec type that does not hold itself. Null, which is as good as absent, is left out."""
    return _schema(inspect.type_info(kind))


def _schema(kind: inspect.Type) -> dict[str, Any]:
    match kind:
        case inspect.StructType(fields=fields):
            properties = {field.encode_name: _schema(field.type) for field in fields}
            required = [each.encode_name for each in fields if each.default is NODEFAULT and each.default_factory is NODEFAULT]
            return {"type": "object", "properties": properties, "required": required}
        case inspect.CollectionType(item_type=item):
            return {"type": "array", "items": _schema(item)}
        case inspect.UnionType(types=types):
            schemas = [_schema(each) for each in types if not isinstance(each, inspect.NoneType)]
            return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"type": _PLAIN[type(kind)]} if type(kind) in _PLAIN else {}
