"""The judge: gates, and the sandboxed worker processes that do the work for them."""
