"""The measure-revise loop, its memory, its budget, and the optimization-dropout controller."""
