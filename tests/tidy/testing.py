"""Rules on tests: they never sleep, and they always run."""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Finding, Source, Tree

LEAVES_OUT = frozenset({"skip", "skipif", "xfail", "importorskip", "skipTest", "skipIf", "skipUnless"})
LEAVES_OUT_OF = frozenset({"pytest", "mark", "unittest", "self"})
SLEEPS_IN = frozenset({"time", "asyncio", "anyio", "trio"})


def sleeps(tree: Tree) -> Iterator[Finding]:
    """A test waits for what it waits for, with a deadline; it never sleeps. (`sleep(0)` only lets others run.)"""
    for source in _tests(tree):
        bare = _imported_names(source, SLEEPS_IN, frozenset({"sleep"}))
        for node in source.nodes:
            if isinstance(node, ast.Call) and _is_sleep(node.func, bare) and not _is_zero(node):
                yield Finding(source.path, node.lineno, "a test that sleeps")


def always_run(tree: Tree) -> Iterator[Finding]:
    """A test that may not run proves nothing."""
    for source in _tests(tree):
        for node in source.nodes:
            match node:
                case ast.Attribute(attr=name, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
                    if name in LEAVES_OUT and owner in LEAVES_OUT_OF:
                        yield Finding(source.path, node.lineno, f"a test that may not run: {owner}.{name}")
                case ast.ImportFrom(module="pytest" | "unittest", names=names):
                    for alias in names:
                        if alias.name in LEAVES_OUT:
                            yield Finding(source.path, node.lineno, f"a test that may not run: {alias.name}")
                case _:
                    pass


def _tests(tree: Tree) -> Iterator[Source]:
    return (source for source in tree.modules if source.is_test)


def _imported_names(source: Source, modules: frozenset[str], names: frozenset[str]) -> set[str]:
    return {
        alias.asname or alias.name
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.module in modules
        for alias in node.names
        if alias.name in names
    }


def _is_sleep(function: ast.expr, bare: set[str]) -> bool:
    match function:
        case ast.Attribute(attr="sleep", value=ast.Name(id=owner)):
            return owner in SLEEPS_IN
        case ast.Name(id=name):
            return name in bare
        case _:
            return False


def _is_zero(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
