"""Single faults of a reference kernel, made from its syntax tree: each edits one place of what runs on the chip.

Edited are the functions that pallas_call runs, those that they call, and index maps; never `reference`, nor the
arithmetic of VMEM and search spaces, nor the tests by which Python chooses a form while it traces: both forms are right
as often as not. An edit replaces the text of one node, so every other line stays as it is. The
order is that of the file, and an id tells file, operator, line and number: `softmax/row_blocks.py:axis:63:0`.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

NARROW = """

def _narrowed(x):
    return x.astype(jnp.bfloat16).astype(jnp.float32) if x.dtype == jnp.float32 else x
"""
"""What the dtype fault calls: an array that is not float32 stays as it is, and then the mutant is equal."""
REDUCTIONS = frozenset(
    {"sum", "max", "min", "mean", "prod", "any", "all", "cumsum", "argmax", "flip", "stack", "concatenate"}
)
FUNCTIONS = {
    "exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log", "rsqrt": "sqrt", "sqrt": "rsqrt", "sin": "cos",
    "cos": "sin", "tanh": "sin", "floor": "ceil", "ceil": "floor", "round": "floor", "abs": "negative", "erf": "tanh",
    "logistic": "tanh", "sigmoid": "tanh", "silu": "sigmoid",
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
ONE_SIDED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
DROPPED = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitAnd, ast.BitOr)
SKIPPED = ("annotation", "returns", "args", "test")
FILLS = frozenset({"zeros_like", "full_like", "zeros", "full", "ones_like", "ones"})


@dataclass(frozen=True)
class Mutant:
    """One fault. `line` is the kernel file's; `was` and `now` are the edited node's text."""

    file: str
    operator: str
    line: int
    number: int
    was: str
    now: str
    source: str

    @property
    def id(self) -> str:
        return f"{self.file}:{self.operator}:{self.line}:{self.number}"


@dataclass(frozen=True)
class Edit:
    """`node` is replaced by the expression or statement `now`."""

    operator: str
    node: ast.AST
    now: str


def mutants(file: str, source: str) -> list[Mutant]:
    """Every mutant of a kernel's file, in the order of the file; no two have the same text."""
    tree = ast.parse(source)
    edits = [edit for node in places(tree) for operator in OPERATORS for edit in operator(node)]
    edits.sort(key=lambda e: (e.node.lineno, e.node.col_offset, e.operator))  # type: ignore[attr-defined]
    made: list[Mutant] = []
    count: dict[tuple[str, int], int] = {}
    seen = {source}
    for edit in edits:
        text, was = _edited(source, edit)
        if text in seen:
            continue
        seen.add(text)
        key = (edit.operator, edit.node.lineno)  # type: ignore[attr-defined]
        made.append(Mutant(file, *key, count.setdefault(key, 0), was, edit.now, text))
        count[key] += 1
    return made


def chosen(made: Sequence[Mutant], limit: int, seed: str = "") -> list[Mutant]:
    """Up to `limit` mutants, the operators in turn, each operator's own in an order that only hashes decide."""
    left: dict[str, list[Mutant]] = {}
    for mutant in sorted(made, key=lambda m: hashlib.sha256((seed + m.id).encode()).digest()):
        left.setdefault(mutant.operator, []).append(mutant)
    found: list[Mutant] = []
    while len(found) < limit and any(left.values()):
        found += [queue.pop(0) for _, queue in sorted(left.items()) if queue]
    return found[:limit]


def _edited(source: str, edit: Edit) -> tuple[str, str]:
    lines = source.encode().splitlines(keepends=True)
    node = edit.node
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    whole = b"".join(lines)
    now = edit.now if isinstance(node, ast.stmt) else f"({edit.now})"
    text = (whole[:start] + now.encode() + whole[end:]).decode()
    return text + (NARROW if "_narrowed(" in now else ""), whole[start:end].decode()


# Where faults are made


def places(tree: ast.Module) -> list[ast.AST]:
    """The nodes of everything that runs on the chip: kernel bodies with what they call, and index maps."""
    tops = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    maps = _index_maps(tree)
    names = {
        n.id
        for call in _calls(tree, "pallas_call")
        for a in call.args[:1]
        for n in ast.walk(a)
        if isinstance(n, ast.Name)
    }
    names |= {n.id for m in maps for n in ast.walk(m) if isinstance(n, ast.Name)}
    todo, found = [n for n in names if n in tops], dict[str, ast.FunctionDef]()
    while todo:
        name = todo.pop()
        if name not in found and name not in ("kernel", "reference"):
            found[name] = tops[name]
            todo += [n.id for n in ast.walk(tops[name]) if isinstance(n, ast.Name) and n.id in tops]
    roots: list[ast.AST] = [statement for f in found.values() for statement in f.body]
    return [n for root in [*roots, *maps] for n in _own(root)]


def _own(root: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it but annotations, arguments, and what decides when Python traces it."""
    yield root
    for name, value in ast.iter_fields(root):
        if name in SKIPPED and not isinstance(root, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _own(child)


def _index_maps(tree: ast.Module) -> list[ast.AST]:
    """The second arguments of BlockSpecs: lambdas, and functions by name."""
    given = [call.args[1] for call in _calls(tree, "BlockSpec") if len(call.args) > 1]
    names = {a.id for a in given if isinstance(a, ast.Name)}
    made: list[ast.AST] = [a for a in given if isinstance(a, ast.Lambda)]
    made += [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    for found in made:
        found.is_index_map = True  # type: ignore[attr-defined]
    return made


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _called(n) == name]


def _called(node: ast.AST) -> str:
    """The last part of a called function's name."""
    if not isinstance(node, ast.Call):
        return ""
    f = node.func
    return f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""


# The faults


def axis(node: ast.AST) -> Iterator[Edit]:
    """A reduction, or the numbers of an iota, along another axis."""
    if isinstance(node, ast.Call) and _called(node) in REDUCTIONS:
        given = [k.value for k in node.keywords if k.arg == "axis"]
    elif isinstance(node, ast.Call) and _called(node) == "broadcasted_iota":
        given = node.args[2:3]
    else:
        return
    for value in given:
        number = _integer(value)
        if number is not None:
            yield Edit("axis", value, {0: "1", 1: "0", -1: "-2", -2: "-1"}.get(number, str(number - 1)))


def when(node: ast.AST) -> Iterator[Edit]:
    """The condition of a `pl.when` always or never met. A flush at every step is no fault: the last one stands."""
    if _called(node) == "when" and isinstance(node, ast.Call) and node.args:
        condition = node.args[0]
        yield Edit("when_never", condition, "False")
        if not _is_last(condition):
            yield Edit("when_always", condition, "True")


def index_map(node: ast.AST) -> Iterator[Edit]:
    """An index one too small, the ids of the grid swapped, or an axis held at its first block."""
    if not getattr(node, "is_index_map", False):
        return
    body = (
        node.body
        if isinstance(node, ast.Lambda)
        else next((s.value for s in node.body if isinstance(s, ast.Return)), None)
    )  # type: ignore[attr-defined]
    if not isinstance(body, ast.Tuple):
        return
    moving = [e for e in body.elts if not isinstance(e, ast.Constant)]
    for element in moving:
        yield Edit("index_map_off_by_one", element, f"jnp.maximum(({ast.unparse(element)}) - 1, 0)")
        yield Edit("index_map_held", element, "0")
    for i, j in itertools.combinations([body.elts.index(e) for e in moving], 2):
        swapped = list(body.elts)
        swapped[i], swapped[j] = body.elts[j], body.elts[i]
        yield Edit("index_map_swapped", body, ast.unparse(ast.Tuple(swapped, ast.Load()))[1:-1])


def dropped_init(node: ast.AST) -> Iterator[Edit]:
    """A reference that is never filled before it is added to."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) and _called(node.value) in FILLS:
        yield Edit("dropped_init", node, "pass")


def overwritten(node: ast.AST) -> Iterator[Edit]:
    """`+=` as `=`."""
    if isinstance(node, ast.AugAssign):
        yield Edit("overwritten", node, f"{ast.unparse(node.target)} = {ast.unparse(node.value)}")


def swapped(node: ast.AST) -> Iterator[Edit]:
    """The operands of what does not commute, or the branches of a `where`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ONE_SIDED):
        yield Edit("swapped", node, ast.unparse(ast.BinOp(node.right, node.op, node.left)))
    elif isinstance(node, ast.Call) and _called(node) in ("dot", "dot_general", "matmul"):
        yield Edit("swapped", node, _call(node, [node.args[1], node.args[0], *node.args[2:]]))
    elif isinstance(node, ast.Call) and _called(node) == "where":
        yield Edit("swapped", node, _call(node, [node.args[0], node.args[2], node.args[1]]))


def unmasked(node: ast.AST) -> Iterator[Edit]:
    """A `where` that lets everything pass."""
    if isinstance(node, ast.Call) and _called(node) == "where":
        condition, *branches = map(ast.unparse, node.args)
        yield Edit("unmasked", node, f"jnp.where(({condition}) | True, {', '.join(branches)})")


def narrowed(node: ast.AST) -> Iterator[Edit]:
    """A float32 intermediate rounded to bfloat16."""
    value = getattr(node, "value", None)
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Return) and isinstance(value, ast.Call | ast.BinOp):
        if _called(value) in FILLS or _called(value) == "broadcasted_iota":
            return
        inner = value.func.value if _called(value) == "astype" and isinstance(value.func, ast.Attribute) else value  # type: ignore[union-attr]
        yield Edit("narrowed", inner, f"_narrowed({ast.unparse(inner)})")


def compared(node: ast.AST) -> Iterator[Edit]:
    """`<` as `<=`, `==` as `!=`, and back."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        yield Edit(
            "compared", node, ast.unparse(ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators))
        )


def extreme(node: ast.AST) -> Iterator[Edit]:
    """The largest for the smallest, and back."""
    other = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}
    if isinstance(node, ast.Attribute) and node.attr in other and ast.unparse(node.value) in ("jnp", "lax"):
        yield Edit("extreme", node, f"{ast.unparse(node.value)}.{other[node.attr]}")


def dropped_term(node: ast.AST) -> Iterator[Edit]:
    """One side of a sum, difference, product or quotient alone."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, DROPPED):
        yield Edit("dropped_term", node, ast.unparse(node.left))
        if not isinstance(node.op, ast.Sub | ast.Div):
            yield Edit("dropped_term", node, ast.unparse(node.right))


def function(node: ast.AST) -> Iterator[Edit]:
    """Another elementary function, or a sign that is lost."""
    if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS and ast.unparse(node.value) in ("jnp", "lax"):
        yield Edit("function", node, f"jnp.{FUNCTIONS[node.attr]}" if node.attr != "rsqrt" else "jnp.sqrt")
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and not isinstance(node.operand, ast.Constant | ast.Attribute)
    ):
        yield Edit("function", node, ast.unparse(node.operand))


def constant(node: ast.AST) -> Iterator[Edit]:
    """A float constant twice as large (1 for 0), or another axis of the grid asked for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield Edit("constant", node, repr(2 * node.value if node.value else 1.0))
    if isinstance(node, ast.Call) and _called(node) in ("program_id", "num_programs"):
        number = _integer(node.args[0])
        if number is not None:
            yield Edit("constant", node.args[0], str(number - 1 if number else 1))


OPERATORS: tuple[Callable[[ast.AST], Iterator[Edit]], ...] = (
    axis, when, index_map, dropped_init, overwritten, swapped, unmasked, narrowed, compared, extreme, dropped_term,
    function, constant,
)  # fmt: skip


def _call(node: ast.Call, args: list[ast.expr]) -> str:
    return ast.unparse(ast.Call(node.func, args, node.keywords))


def _integer(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_last(condition: ast.expr) -> bool:
    """`step == steps - 1`, `step == last`: the end of a reduction."""
    text = ast.unparse(condition)
    return (
        isinstance(condition, ast.Compare)
        and isinstance(condition.ops[0], ast.Eq)
        and ("last" in text or "steps - 1" in text or "num_programs" in text)
    )
