"""Proposers: who writes the next candidate. `catalog` works with no model, from the library and a tuner."""
