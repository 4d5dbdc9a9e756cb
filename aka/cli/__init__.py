"""The command line: one file for each group of commands; composition roots, nothing else."""
