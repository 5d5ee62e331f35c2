"""Fixtures that tests of several packages share."""

from support.llamacpp import local_engine

__all__ = ["local_engine"]
