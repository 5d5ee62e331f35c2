"""Fixtures that tests of several packages share."""

from support.llamacpp import local_engine as local_engine
