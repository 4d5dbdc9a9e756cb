"""How each elementwise operation is spelled inside a kernel. Arithmetic is in float32, whatever the arrays hold: not
every chip has bfloat16 vector units, and the compiler refuses 8-bit arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aka.fuse.sizes import NoFit

CALLS = {
    "exp": "jnp.exp", "log": "jnp.log", "tanh": "jnp.tanh", "logistic": "jax.nn.sigmoid", "rsqrt": "lax.rsqrt",
    "sqrt": "jnp.sqrt", "abs": "jnp.abs", "erf": "lax.erf", "sin": "jnp.sin", "cos": "jnp.cos", "tan": "jnp.tan",
    "floor": "jnp.floor", "ceil": "jnp.ceil", "exp2": "jnp.exp2", "log1p": "jnp.log1p", "sign": "jnp.sign",
    "round": "jnp.round", "max": "jnp.maximum", "min": "jnp.minimum", "pow": "jnp.power", "rem": "lax.rem",
    "shift_left": "lax.shift_left", "shift_right_arithmetic": "lax.shift_right_arithmetic",
    "shift_right_logical": "lax.shift_right_logical", "atan2": "jnp.arctan2",
}  # fmt: skip
SIGNS = {
    "add": "+", "add_any": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip


def phrase(op: str, operands: Sequence[str], params: Mapping[str, Any], dtypes: Sequence[str]) -> str:
    """Python for one elementwise operation; `dtypes` are the operands'. Raises NoFit for one that has no spelling."""
    if op in SIGNS:
        return f"{operands[0]} {SIGNS[op]} {operands[1]}"
    if op in CALLS:
        return f"{CALLS[op]}({', '.join(operands)})"
    x = operands[0]
    whole = "int" in dtypes[0]
    special = {
        "neg": lambda: f"-{x}",
        "not": lambda: f"~{x}",
        "div": lambda: f"lax.div({x}, {operands[1]})" if whole else f"{x} / {operands[1]}",
        "square": lambda: f"{x} * {x}",
        "integer_pow": lambda: _power(x, int(params["y"])),
        "is_finite": lambda: f"jnp.abs({x}) < jnp.inf",
        # Mosaic has neither erfc nor expm1 nor a cube root.
        "erfc": lambda: f"1.0 - lax.erf({x})",
        "expm1": lambda: f"jnp.exp({x}) - 1.0",
        "cbrt": lambda: f"jnp.sign({x}) * jnp.power(jnp.abs({x}), 1 / 3)",
        "clamp": lambda: f"jnp.minimum(jnp.maximum({operands[1]}, {x}), {operands[2]})",
        "reduce_precision": lambda: x,
    }
    if op == "select_n" and dtypes[:2] == ["bool", "bool"] and len(operands) == 3:
        # The vector unit has no choice between masks.
        return f"({x} & {operands[2]}) | (~{x} & {operands[1]})"
    if op == "select_n" and len(operands) == 3 and dtypes[0] == "bool":
        return f"jnp.where({x}, {operands[2]}, {operands[1]})"
    if op not in special:
        raise NoFit(f"{op} of {len(operands)} operands has no spelling in a kernel")
    return special[op]()


def _power(x: str, y: int) -> str:
    if 1 <= y <= 4:
        return " * ".join([x] * y)
    return f"1.0 / ({' * '.join([x] * -y)})" if -4 <= y <= -1 else f"lax.integer_pow({x}, {y})"


def converted(name: str, before: str, after: str) -> str:
    """The value in what a kernel computes with for its new dtype; `before` and `after` are the op's own dtypes."""
    if before == after:
        return name
    if before == "bool":
        return f"jnp.where({name}, {'1, 0' if 'int' in after else '1.0, 0.0'})"
    if after == "bool":
        return f"{name} != 0"
    if "int" in before and "int" not in after:
        return f"{name}.astype(jnp.float32)"
    if "int" in after and "int" not in before:
        return f"{name}.astype(jnp.int32)"
    if "float8" in after:
        return f"{name}.astype(jnp.{after}).astype(jnp.float32)"
    return name


def working(dtype: str) -> str:
    """The dtype that values of a dtype have inside a kernel."""
    if dtype == "bool":
        return dtype
    if "int" in dtype:
        return dtype if dtype == "uint32" else "int32"
    return "float32"
