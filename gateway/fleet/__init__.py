"""The engines known now, with their health and load. One writer: the registry."""
