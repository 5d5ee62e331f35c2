"""Bytes to values and back, without I/O: JSON, server-sent events, text."""
