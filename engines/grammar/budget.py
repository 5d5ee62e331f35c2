"""What making one grammar may cost, counted in work and not in time, so that a schema is refused or held the same everywhere.

Invariant: whoever goes through something whose size a client chose pays for it here. A unit is about a tenth of a microsecond.
"""

from collections.abc import Mapping

from gateway.wire.jsonio import encode

_BYTES_A_UNIT = 16
_CALL = 5


class SchemaError(ValueError):
    """A schema that no grammar can hold. The message ends a sentence."""


class Budget:
    """The work that is left."""

    def __init__(self, units: int) -> None:
        self._left = units

    def spend(self, units: int) -> None:
        """Raises SchemaError where it is more than is left."""
        self._left -= units
        if self._left < 0:
            raise SchemaError("it is too large, or its parts combine in too many ways")

    def json(self, value: object) -> bytes:
        """The value's JSON, which says of two of them whether they are the same."""
        data = encode(value)
        self.spend(_CALL + len(data) // _BYTES_A_UNIT)
        return data

    def key(self, value: object) -> bytes:
        """The same bytes for values that are equal to JSON: 1 is 1.0 but not true, and keys have no order."""
        return self.json(self._normal(value))

    def _normal(self, value: object) -> object:
        self.spend(_CALL)
        match value:
            case float() if value.is_integer():
                return int(value)
            case Mapping():
                return {name: self._normal(value[name]) for name in sorted(value)}
            case list() | tuple():
                return [self._normal(one) for one in value]
        return value
