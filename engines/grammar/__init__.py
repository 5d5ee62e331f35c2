"""From a JSON Schema to the rules of a grammar, in steps that are tested apart: cases, values, text."""
