"""How models write thoughts and tool calls: one data file a family, one machine for all."""
