"""Rules on code: sizes, `Any`, docstrings, asserts, swallowed errors, stubs, unfinished work."""

import ast
import re
from collections.abc import Iterator

from tests.tidy.tree import Finding, Source, Tree

MODULE_LINES = 600
FUNCTION_LINES = 70
PUBLIC_METHODS = 25
ANY_BUDGET = 125
WITHOUT_ANY = ("log", "replication/core", "cluster/client")
PRODUCT = frozenset({"log", "sm", "replication", "cluster", "pipeline"})
SHIPPED = frozenset({"log", "sm", "replication", "cluster", "pipeline", "src"})
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
BROAD = frozenset({"Exception", "BaseException"})

# Written apart, so that this module does not find itself.
MARKS = [mark.replace("-", "") for mark in ["TO-DO", "FIX-ME", "XX-X", "HA-CK"]]
UNFINISHED = re.compile(rf"\b({'|'.join(MARKS)})\b")

# A character class or an escaped character holds no quantifier. (CPython issue 106052.)
CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
POSSESSIVE = re.compile(r"[*+?}]\+|\(\?>")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sizes(tree: Tree) -> Iterator[Finding]:
    """No module has over 600 lines, no function over 70."""
    for source in tree.modules:
        lines = len(source.text.splitlines())
        if lines > MODULE_LINES:
            yield Finding(source.path, 1, f"{lines} lines; no module has over {MODULE_LINES}")
        for node in source.nodes:
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield Finding(
                        source.path, node.lineno, f"{node.name}: {lines} lines; none has over {FUNCTION_LINES}"
                    )


def class_sizes(tree: Tree) -> Iterator[Finding]:
    """No class of the product has over 25 public methods and properties, those of its bases in the product included."""
    product = [source for source in tree.modules if source.folder in PRODUCT]
    named: dict[str, list[ast.ClassDef]] = {}
    for source in product:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(node)
    for source in product:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and (count := len(_public_methods(node, named))) > PUBLIC_METHODS:
                text = f"{node.name}: {count} public methods; no class has over {PUBLIC_METHODS}"
                yield Finding(source.path, node.lineno, text)


def uses_of_any(tree: Tree) -> Iterator[Finding]:
    """Signatures say what they take and give: `Any` is in none of some packages, and in few of the others."""
    found = [(source, line) for source in tree.modules if source.folder in PRODUCT for line in _uses_of_any(source)]
    for source, line in found:
        if any(source.path.is_relative_to(room) for room in WITHOUT_ANY):
            yield Finding(source.path, line, f"Any in an annotation; there is none in {', '.join(WITHOUT_ANY)}")
        elif len(found) > ANY_BUDGET:
            yield Finding(source.path, line, f"Any, one of {len(found)} in annotations; allowed are {ANY_BUDGET}")


def docstrings(tree: Tree) -> Iterator[Finding]:
    """Every module says what it holds, and every public class and function of the packages what the caller gets."""
    for source in tree.modules:
        if source.text.strip() and not source.is_test and ast.get_docstring(source.syntax) is None:
            yield Finding(source.path, 1, "the module has no docstring")
        if source.folder not in SHIPPED:
            continue
        for node in source.syntax.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                if ast.get_docstring(node) is None and not _decorated_as(node, {"overload"}):
                    yield Finding(source.path, node.lineno, f"{node.name} is public and has no docstring")


def bare_asserts(tree: Tree) -> Iterator[Finding]:
    """A broken invariant is raised with its values: `assert` is for tests."""
    for source in tree.modules:
        for node in source.nodes:
            if isinstance(node, ast.Assert) and not source.is_test:
                yield Finding(
                    source.path, node.lineno, "a bare assert outside the tests: raise an error with its values"
                )


def swallowed_errors(tree: Tree) -> Iterator[Finding]:
    """Whoever catches everything raises, calls something, or uses what was caught."""
    for source in tree.modules:
        for node in source.nodes:
            if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _does_something(node):
                yield Finding(source.path, node.lineno, "catches everything and drops it")
            if isinstance(node, ast.Call) and _name(node.func) == "suppress" and any(map(_is_broad, node.args)):
                yield Finding(source.path, node.lineno, "catches everything and drops it")


def journal_kinds(tree: Tree) -> Iterator[Finding]:
    """The text of a journal line is its kind, which has a rate: it holds no value, which is in a field."""
    for source in tree.modules:
        if source.folder not in PRODUCT or "structlog" not in source.text:
            continue
        for node in source.nodes:
            if isinstance(node, ast.Call) and _is_journal(node.func) and not all(map(_is_text, node.args)):
                yield Finding(source.path, node.lineno, "a journal line whose text is not a constant; use a field")


def _is_journal(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LEVELS
        and isinstance(function.value, ast.Name)
        and function.value.id in ("log", "journal", "logger")
    )


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.Constant)


def stubs(tree: Tree) -> Iterator[Finding]:
    """What no issue has reached is absent, not a stub."""
    for source in tree.modules:
        declared = {
            id(member)
            for node in source.nodes
            if isinstance(node, ast.ClassDef) and any(_name(base) == "Protocol" for base in node.bases)
            for member in node.body
        }
        for node in source.nodes:
            if isinstance(node, ast.Raise) and _name(node.exc) == "NotImplementedError":
                yield Finding(source.path, node.lineno, "a stub: NotImplementedError")
            if isinstance(node, Function) and id(node) not in declared and _is_empty(node):
                if not _decorated_as(node, {"overload", "abstractmethod"}):
                    yield Finding(source.path, node.lineno, f"a stub: {node.name} has no body")


def unfinished(tree: Tree) -> Iterator[Finding]:
    """Nothing is left for later in a comment: it is done, or it is an issue."""
    for source in tree.texts:
        for number, line in enumerate(source.text.splitlines(), 1):
            if UNFINISHED.search(line):
                yield Finding(source.path, number, f"unfinished: {line.strip()[:80]}")


def possessive_patterns(tree: Tree) -> Iterator[Finding]:
    """No pattern is possessive: Python before 3.11.5 matches some of those wrongly, so two nodes could differ."""
    for source in tree.modules:
        for node in source.nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re")),
                    args=[ast.Constant(value=str() | bytes() as value), *_],
                ):
                    pattern = value if isinstance(value, str) else value.decode("latin-1")
                    if POSSESSIVE.search(CLASS.sub("_", pattern)):
                        yield Finding(source.path, node.lineno, f"a possessive pattern: {pattern[:80]}")
                case _:
                    pass


def _public_methods(node: ast.ClassDef, named: dict[str, list[ast.ClassDef]]) -> set[str]:
    """The names of a class's public methods and properties, with those of bases whose names are unique."""
    names = {each.name for each in node.body if isinstance(each, Function) and not each.name.startswith("_")}
    for base in map(_name, node.bases):
        if len(bases := named.get(base, [])) == 1 and bases[0] is not node:
            names |= _public_methods(bases[0], named)
    return names


def _uses_of_any(source: Source) -> Iterator[int]:
    """The lines of `Any` in annotations, quoted ones included, and in the values of type aliases."""
    for node in source.nodes:
        match node:
            case ast.arg(annotation=ast.expr() as stated) | ast.AnnAssign(annotation=ast.expr() as stated):
                yield from _any_within(stated)
            case ast.FunctionDef(returns=ast.expr() as stated) | ast.AsyncFunctionDef(returns=ast.expr() as stated):
                yield from _any_within(stated)
            case ast.Assign(value=ast.Subscript() | ast.BinOp() | ast.Name() as stated):
                yield from _any_within(stated)
            case _:
                pass
        if isinstance(node, ast.AnnAssign) and node.value is not None and _name(node.annotation) == "TypeAlias":
            yield from _any_within(node.value)


def _any_within(stated: ast.expr) -> Iterator[int]:
    for node in ast.walk(stated):
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                yield node.lineno
            case ast.Constant(value=str() as quoted) if "Any" in quoted:
                yield from (node.lineno for _ in _any_within(_parsed(quoted)))
            case _:
                pass


def _parsed(quoted: str) -> ast.expr:
    """A quoted annotation; a constant if it is only words."""
    try:
        return ast.parse(quoted, mode="eval").body
    except SyntaxError:
        return ast.Constant(None)


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return caught is None or _name(caught) in BROAD


def _does_something(handler: ast.ExceptHandler) -> bool:
    for statement in handler.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Raise | ast.Call):
                return True
            if isinstance(node, ast.Name) and node.id == handler.name:
                return True
    return False


def _is_empty(function: Function) -> bool:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return bool(body) and all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis
        for node in body
    )


def _decorated_as(node: Function | ast.ClassDef, names: set[str]) -> bool:
    return any(_name(decorator) in names for decorator in node.decorator_list)


def _name(node: ast.AST | None) -> str:
    """The last name of an expression such as a.b.c, a.b.c() or a.b.c[d]; empty for any other."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _name(function)
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""
