"""Writes the reference sections of pages from docstrings: `python -m quire.cluster.reference docs/client.md ...`.

A page has such a section between two comments. The first names what the section describes, from `quire`, or as
`module:Name`; a test checks that each section is up to date:

    <!-- reference: connect Client quire.sm:OptionalMembers -->
    ...
    <!-- end of reference -->

`signatures:` in place of `reference:` gives each class its description and its signatures alone.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

SECTION = re.compile(r"(<!-- (reference|signatures): ([^>]+?) -->\n).*?(<!-- end of reference -->)", re.DOTALL)
SESSION = re.compile(r"^    >>> .*\n(?:    .*\n)*", re.MULTILINE)
ITEM = re.compile(r"    (\w+(?:, (?:other )?\w+)*(?: \(both \w+\))?): (.*)")
PLAIN_BASES = frozenset({"Protocol", "NamedTuple", "TypedDict"})
LISTED = ("Args:", "Raises:")
WIDTH = 100  # Of a signature; a longer one has one parameter per line.

Function = ast.FunctionDef | ast.AsyncFunctionDef


def page_with_reference(page: str) -> str:
    """The page, with its sections made anew."""

    def made(section: re.Match[str]) -> str:
        head, kind, names, end = section.groups()
        described = "\n".join(_described(name, signatures_only=kind == "signatures") for name in names.split())
        return f"{head}\n{described}\n{end}"

    return SECTION.sub(made, page)


def _described(name: str, *, signatures_only: bool) -> str:
    """A function or class: heading, signature or fields, description, methods."""
    module, _, attribute = name.rpartition(":")
    found = getattr(import_module(module or "quire"), attribute)
    shown = f"quire.{attribute}" if not module else f"{module}.{attribute}"
    node = _node_of(found)
    if not isinstance(node, ast.ClassDef):
        return "\n".join([f"### {shown}\n", *_code([_signature(node, shown)]), _text(node)])
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id not in PLAIN_BASES]
    parts = [f"### {shown}{f' ({bases[0]})' if bases else ''}\n", _text(node)]
    methods = [
        each
        for each in _methods(node)
        if not each.name.startswith("_") or (each.name == "__init__" and ast.get_docstring(each))
    ]
    if signatures_only:
        return "\n".join([*parts, *_code([_signature(each, each.name) for each in methods if each.name[0] != "_"])])
    for field, annotation, text in _fields(node):
        parts += [_item(f"`{field}`" if annotation is None else f"`{field}: {annotation}`", text)]
    if parts[-1].startswith("- "):
        parts.append("")
    for each in methods:
        if each.name.startswith("__") and each.name != "__init__":
            continue
        prefix = "" if attribute == each.name else f"{attribute}."
        parts += [f"#### {prefix}{each.name}\n", *_code([_signature(each, each.name)]), _text(each)]
    return "\n".join(parts)


def _node_of(found: object) -> ast.ClassDef | Function:
    """The definition of a function or class."""
    if not inspect.isclass(found) and not inspect.isfunction(found):
        raise TypeError(f"{found!r} is neither a class nor a function")
    module = ast.parse(inspect.getsource(sys.modules[found.__module__]))
    for node in module.body:
        if isinstance(node, ast.ClassDef | Function) and node.name == found.__name__:
            return node
    raise TypeError(f"{found!r} is not defined at the top of its module")


def _methods(node: ast.ClassDef) -> list[Function]:
    return [each for each in node.body if isinstance(each, Function)]


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str | None, str]]:
    """The attributes that the class or its `__init__` declares: name, type if it is written, and description."""
    constructors = [each for each in _methods(node) if each.name == "__init__"]
    for body in (node.body, *(each.body for each in constructors)):
        for statement, following in zip(body, [*body[1:], None], strict=True):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = inspect.cleandoc(str(following.value.value))
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if not name.startswith("_"):
                    yield name, ast.unparse(annotation), text
                case ast.Assign(targets=[ast.Attribute(attr=name)]) if text:
                    yield name, None, text
                case _:
                    pass


def _signature(node: Function, name: str) -> str:
    """The signature as it is written, without `self`."""
    given = node.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    parameters = [_parameter(each, default) for each, default in zip(given.args, defaults, strict=True)]
    if parameters[:1] == ["self"]:
        del parameters[0]
    if given.kwonlyargs:
        parameters.append("*")
        parameters += map(_parameter, given.kwonlyargs, given.kw_defaults)
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns).strip(chr(39))}"
    line = f"{prefix}{name}({', '.join(parameters)}){returned}"
    if len(line) <= WIDTH:
        return line
    listed = "".join(f"    {each},\n" for each in parameters)
    return f"{prefix}{name}(\n{listed}){returned}"


def _parameter(given: ast.arg, default: ast.expr | None) -> str:
    typed = given.arg if given.annotation is None else f"{given.arg}: {ast.unparse(given.annotation)}"
    return typed if default is None else f"{typed} = {_value(default)}"


def _value(default: ast.expr) -> str:
    """The default; of a named number, its value."""
    if isinstance(default, ast.Name):
        for module in ("quire.cluster.client.client", "quire.cluster.client.transport"):
            if (value := getattr(import_module(module), default.id, None)) is not None:
                return repr(value)
    return ast.unparse(default)


def _code(lines: list[str]) -> list[str]:
    return ["```pyi", *lines, "```", ""]


def _text(node: ast.ClassDef | Function) -> str:
    """The docstring as Markdown: what it raises and takes as a list, the rest as it stands."""
    lines: list[str] = []
    is_list = False
    for line in (ast.get_docstring(node) or "").splitlines():
        if line in LISTED:
            is_list = True
            lines += [line, ""]
        elif not is_list or (line and not line.startswith("    ")):
            is_list = False
            lines.append(line)
        elif item := ITEM.fullmatch(line):
            lines.append(_item(re.sub(r"\w+", _as_code, item[1]), item[2]))
        else:
            lines.append(f"  {line.strip()}" if line else "")
    return SESSION.sub(_fenced, "\n".join([*lines, ""]))


def _fenced(session: re.Match[str]) -> str:
    return f"```pycon\n{textwrap.dedent(session[0])}```\n"


def _as_code(word: re.Match[str]) -> str:
    return word[0] if word[0] in ("other", "both") else f"`{word[0]}`"


def _item(what: str, text: str) -> str:
    return textwrap.indent(f"- {what}{': ' if text else ''}{text}", "  ").removeprefix("  ")


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(page_with_reference(file.read_text()))
