"""Fixtures of the tests of faults."""

from faults.leaks import no_leaks

__all__ = ["no_leaks"]
