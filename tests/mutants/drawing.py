"""Mistakes drawn by cosmic-ray's operators: a line of the packages at random, and on it one of its mutations.

Nothing is drawn where a mistake means nothing when the program runs: in annotations, what `dataclass` and `TypeVar` are
told, log texts, f-strings, unions of types and `if TYPE_CHECKING`.
"""

import ast
import difflib
import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutants.covering import SOURCES
from tests.mutants.mistake import BY_TOOL, Mistake
from tests.planted.mistake import TOP

LEFT_OUT = ("log/simulated/",)
"""The tests' own disk."""
WITHOUT = ("NoOp", "Variable", "RemoveDecorator")
"""Operators that change nothing, need an argument, or break every import."""

Place = tuple[str, int]
"""An operator and which of its occurrences in a file."""


def modules() -> list[Path]:
    """What mistakes are drawn in."""
    found = [path for folder in SOURCES for path in sorted((TOP / folder).rglob("*.py"))]
    names = [path.relative_to(TOP).as_posix() for path in found]
    return [path for path, name in zip(found, names, strict=True) if not name.startswith(LEFT_OUT)]


def _spans_left_out(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.FunctionDef(returns=ast.expr() as returns) | ast.AsyncFunctionDef(returns=ast.expr() as returns):
                yield returns
            case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.JoinedStr():
                yield node
            case ast.Call(func=ast.Attribute(value=ast.Name("journal")) | ast.Name("TypeVar" | "dataclass")):
                yield node
            case ast.BinOp(left=ast.Name(left), op=ast.BitOr()) if left[0].isupper():
                yield node
            case _:
                pass


def _is_left_out(position: tuple[int, int], spans: list[tuple[tuple[int, int], tuple[int, int]]]) -> bool:
    return any(start <= position < end for start, end in spans)


def places(source: str) -> dict[int, list[Place]]:
    """Where mistakes can be made in a file, by line."""
    spans = [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in _spans_left_out(ast.parse(source))
        if isinstance(node, ast.expr | ast.stmt)
    ]
    nodes = list(ast_nodes(get_ast(source)))
    found: defaultdict[int, list[Place]] = defaultdict(list)
    for name in operator_names():
        if any(word in name for word in WITHOUT):
            continue
        operator = get_operator(name)()
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(positions):
            if not _is_left_out(start, spans):
                found[start[0]].append((name, occurrence))
    return found


def _made(path: Path, source: str, place: Place) -> Mistake | None:
    name, occurrence = place
    changed = mutate_code(source, get_operator(name)(), occurrence)
    if changed is None or changed == source:
        return None
    try:
        compile(changed, path.name, "exec")
    except SyntaxError:
        return None
    before, after = source.split("\n"), changed.split("\n")
    for tag, at, end, to, to_end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "replace" and before[at].strip() not in ("*,", "/,"):  # cosmic-ray takes that for a product.
            old, new = "\n".join(before[at:end]), "\n".join(after[to:to_end])
            return Mistake(path.relative_to(TOP).as_posix(), at + 1, old, new, BY_TOOL, name.partition("/")[2])
    return None


def draw(number: int, seed: int) -> list[Mistake]:
    """So many different mistakes: a module by its lines with code, one of those lines, one of its mutations."""
    chance = random.Random(seed)
    sources = {path: path.read_text() for path in modules()}
    by_line = [(path, line, those) for path in sources for line, those in sorted(places(sources[path]).items())]
    weights: list[int] = []
    for source in sources.values():  # By all lines of a module, so that one with many constants does not weigh more.
        weights.append((weights[-1] if weights else 0) + source.count("\n"))
    paths, drawn = list(sources), dict[tuple[str, int], Mistake]()
    while len(drawn) < number:
        path = paths[bisect(weights, chance.randrange(weights[-1]))]
        lines = [(line, those) for where, line, those in by_line if where == path]
        if not lines:
            continue
        _, those = chance.choice(lines)
        mistake = _made(path, sources[path], chance.choice(those))
        if mistake is not None:
            drawn.setdefault((mistake.file, mistake.line), mistake)
    return list(drawn.values())
