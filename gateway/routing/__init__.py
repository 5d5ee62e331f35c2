"""Routing decisions as pure functions over frozen views of the fleet."""
