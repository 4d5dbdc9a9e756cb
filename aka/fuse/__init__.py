"""Fusion templates: from the program of an op itself to Pallas kernels, as readable source. Worker side.

`graph` reads the op's program at several sizes, `axes` finds which dimensions of its values are one and the same loop,
`cuts` splits it where one kernel cannot hold it, `plan` chooses the grid, `body` and `source` write it down.
"""
