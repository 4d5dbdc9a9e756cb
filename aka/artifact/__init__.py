"""Exported TPU artifacts: read them, run them in NumPy, rewrite them. Worker-side: imports jax."""
