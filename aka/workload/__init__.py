"""op.py and candidate files, read by syntax tree only: the parent never imports them."""
