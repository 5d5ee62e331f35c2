"""Everything is content: models without reasoning and calls of their own."""

from gateway.formats.spec import FormatSpec

FORMAT = FormatSpec(name="plain", aliases=("none",))
