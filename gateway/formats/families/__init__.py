"""One file a family: its `FORMAT` is a `gateway.formats.spec.FormatSpec`, pure data."""
