"""The flags of `quire serve`, derived from the fields of its models. With argparse: `serve` does not import typer."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import PydanticUndefined

from ..config.serve import ServeConfig
from ..config.settings import Settings, flag_of, unit_of

EXAMPLE = """example, one of three nodes:
  quire secret new ./peer-secret
  quire serve --node n1 --listen 127.0.0.1:7001 --data-dir ./n1 --peer-secret-file ./peer-secret \\
      --members n1=127.0.0.1:7001,n2=127.0.0.1:7002,n3=127.0.0.1:7003

Each flag can also be given as a variable (QUIRE_DATA_DIR) or as a key of a TOML file (data_dir = "./n1").
Flags override variables, variables override the file."""

STANDALONE = "--standalone"
STANDALONE_EXAMPLE = """example:
  quire serve --standalone --listen 127.0.0.1:7000 --data-dir ./log

Each flag can also be given as a variable (QUIRE_DATA_DIR) or as a key of a TOML file (data_dir = "./log").
Flags override variables, variables override the file."""

REPEATED = frozenset({"link", "allow"})


def serve_parser() -> argparse.ArgumentParser:
    """The parser of a node's flags; flags that are not given are absent from the namespace."""
    parser = _parser(ServeConfig, "quire serve", "Run one node of a cluster.", EXAMPLE)
    parser.add_argument(
        STANDALONE, action="store_true", help="Serve one log without a cluster: quire serve --standalone --help."
    )
    return parser


def _parser(model: type[Settings], prog: str, description: str, example: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with any of the keys below.")
    for name, field in model.model_fields.items():
        is_switch = field.annotation is bool
        parser.add_argument(
            flag_of(name),
            metavar=unit_of(name).upper() or "VALUE",
            action="append" if name in REPEATED else "store",
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
            help=_help(field.description or "", unit_of(name), field.default).replace("%", "%%"),
        )
    return parser


def parse_serve(arguments: Sequence[str]) -> tuple[dict[str, object], Path | None]:
    """The given flags, by field name, and the configuration file, if one is named."""
    return _parsed(serve_parser(), arguments)


def parse_standalone(model: type[Settings], arguments: Sequence[str]) -> tuple[dict[str, object], Path | None]:
    """`parse_serve` for a standalone server with this model."""
    description = "Serve one log without a cluster."
    parser = _parser(model, f"quire serve {STANDALONE}", description, STANDALONE_EXAMPLE)
    return _parsed(parser, [argument for argument in arguments if argument != STANDALONE])


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[dict[str, object], Path | None]:
    flags = vars(parser.parse_args(arguments))
    named = flags.pop("config", None) or os.environ.get("QUIRE_CONFIG")
    return flags, Path(named) if named else None


def _help(description: str, unit: str, default: object) -> str:
    if default is PydanticUndefined or default is None:
        return description
    return f"{description} Default: {default}{' ' + unit if unit else ''}."
