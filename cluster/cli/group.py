"""The class of each group of commands: what it suggests to who mistypes a command or an option."""

from difflib import get_close_matches

import typer
from typer.core import TyperCommand, TyperGroup

NEGATIONS = ("no-", "not-", "un", "in", "de", "dis")
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""click's, which typer has inside itself and does not export."""


class Words(TyperCommand):
    """A command whose arguments may begin with a hyphen, as -5 does. What begins with two comes after `--`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Refuse an option that the command does not have, and what is not text, before they are taken as data."""
        own = {option for each in self.params for option in (*each.opts, *each.secondary_opts)}
        own.update(ctx.help_option_names)
        for word in args[: args.index("--")] if "--" in args else args:
            if word.startswith("--") and word.partition("=")[0] not in own:
                alike = likely(word, get_close_matches(word, own))
                hint = f" Did you mean {' or '.join(alike)}?" if alike else " As text, it comes after `--`."
                ctx.fail(f"No such option: {word}.{hint}")
        for word in args:
            if not _is_text(word):
                ctx.fail(f"{word!r} is not text in UTF-8")
        return super().parse_args(ctx, args)


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


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
