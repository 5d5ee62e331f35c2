"""What is learned from real traffic: traces, and the simulation of a fleet under them. Nothing in `gateway` imports it."""
