"""The class of each group of commands: what it suggests to who mistypes a command or an option."""

from difflib import get_close_matches

import typer
from typer.core import TyperGroup

NEGATIONS = ("no-", "not-", "un", "in", "de", "dis")
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


class Group(TyperGroup):
    """A group whose suggestions never include the opposite of what was asked: not `drain` for `undrian`."""

    def resolve_command(self, ctx: typer.Context, args: list[str]):  # type: ignore[no-untyped-def, override]
        """The command that the arguments name, and the arguments after it."""
        self.suggest_commands = False
        try:
            return super().resolve_command(ctx, args)
        except _USAGE_ERROR as error:
            if alike := likely(args[0], get_close_matches(args[0], self.list_commands(ctx))):
                text = f"{str(vars(error)['message']).rstrip('.')}. Did you mean {' or '.join(map(repr, alike))}?"
                vars(error)["message"] = text
            raise

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except _USAGE_ERROR as error:
            if alike := vars(error).get("possibilities"):
                vars(error)["possibilities"] = likely(vars(error)["option_name"], alike)
            raise


def likely(asked: str, alike: list[str]) -> list[str]:
    """What was meant, perhaps: the similar names without those that say the opposite."""
    return [name for name in alike if _negation(name) == _negation(asked)]


def _negation(name: str) -> str:
    bare = name.lstrip("-")
    return next((prefix for prefix in NEGATIONS if bare.startswith(prefix)), "")
