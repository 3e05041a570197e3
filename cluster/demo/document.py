"""The fields of a node's documents that the demos show, each checked to have its type."""

from .nodes import DemoFailed


def part(document: object, *path: str | int) -> object:
    """What is at a path of keys and positions. Raises DemoFailed if there is nothing."""
    found = document
    for step in path:
        match found, step:
            case dict() as fields, str() if step in fields:
                found = fields[step]
            case list() as items, int() if step < len(items):
                found = items[step]
            case _:
                raise DemoFailed(f"a status has no {_named(path)}")
    return found


def number(document: object, *path: str | int) -> int:
    """The whole number at a path. Raises DemoFailed if there is none."""
    found = part(document, *path)
    if not isinstance(found, int):
        raise DemoFailed(f"{_named(path)} is {found!r}, not a number")
    return found


def measure(document: object, *path: str | int) -> float:
    """The number at a path, whole or not. Raises DemoFailed if there is none."""
    found = part(document, *path)
    if not isinstance(found, int | float):
        raise DemoFailed(f"{_named(path)} is {found!r}, not a number")
    return found


def text(document: object, *path: str | int) -> str:
    """The text at a path. Raises DemoFailed if there is none."""
    found = part(document, *path)
    if not isinstance(found, str):
        raise DemoFailed(f"{_named(path)} is {found!r}, not a text")
    return found


def _named(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
