"""Banned words, in identifiers, file names and flags: names that say nothing of what they name."""

import ast
import re
from collections.abc import Iterator

from tests.tidy.tree import Finding, Source, Tree

BANNED = {
    "master": "leader",
    "slave": "follower",
    "manager": "the noun of what it does",
    "utils": "the noun of what it holds",
    "helpers": "the noun of what it holds",
    "common": "the noun of what it holds",
}
FORMS = {
    **{word: word for word in BANNED},
    "masters": "master",
    "slaves": "slave",
    "managers": "manager",
    "util": "utils",
    "helper": "helpers",
}

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")


def banned_in(name: str) -> set[str]:
    """The banned words that a name is made of, split at underscores, dots, hyphens and capitals."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return {FORMS[word] for word in re.split(r"[^a-z0-9]+", spread.lower()) if word in FORMS}


def file_names(tree: Tree) -> Iterator[Finding]:
    """A file is named by the one noun it holds: no path contains a banned word."""
    for path in tree.paths:
        for word in sorted(banned_in(str(path))):
            yield Finding(path, 1, _say(word, str(path)))


def identifiers(tree: Tree) -> Iterator[Finding]:
    """No identifier defined here contains a banned word; those of dependencies may."""
    for source in tree.modules:
        for line, name in sorted(defined(source)):
            for word in sorted(banned_in(name)):
                yield Finding(source.path, line, _say(word, name))


def flags(tree: Tree) -> Iterator[Finding]:
    """No flag of the command line contains a banned word."""
    for source in tree.modules:
        if source.is_test:
            continue
        for node in source.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for flag in FLAG.findall(node.value):
                    for word in sorted(banned_in(flag)):
                        yield Finding(source.path, node.lineno, _say(word, f"--{flag}"))


def defined(source: Source) -> set[tuple[int, str]]:
    """Every name that a module gives to something, with its line."""
    names: set[tuple[int, str]] = set()
    for node in source.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add((node.lineno, name))
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add((node.lineno, name))
            case ast.alias(asname=str(name)):
                names.add((node.lineno, name))
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add((node.lineno, name))
            case _:
                pass
    return names


def _say(word: str, name: str) -> str:
    return f"{name}: the word {word!r} is banned; say {BANNED[word]}"
