"""How arguments are written: one module a way."""
