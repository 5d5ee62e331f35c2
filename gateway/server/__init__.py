"""HTTP: what clients and operators reach."""
