"""The flags of `quire serve`, made from the fields of `ServeConfig`. argparse: `serve` does without typer."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from ..config import ServeConfig, flag_of, unit_of

EXAMPLE = """example, one of three nodes:
  quire serve --node n1 --listen 127.0.0.1:7001 --data-dir ./n1 \\
      --members n1=127.0.0.1:7001,n2=127.0.0.1:7002,n3=127.0.0.1:7003

Each flag can also be given as a variable (QUIRE_DATA_DIR) or as a key of a TOML file (data_dir = "./n1").
Flags win over variables, variables over the file."""

REPEATED = frozenset({"link"})


def serve_parser() -> argparse.ArgumentParser:
    """The parser; what is not given stays out of its namespace."""
    parser = argparse.ArgumentParser(
        prog="quire serve",
        description="Run one node of a cluster.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with any of the keys below.")
    for name, field in ServeConfig.model_fields.items():
        parser.add_argument(
            flag_of(name),
            metavar=unit_of(name).upper() or "VALUE",
            action="append" if name in REPEATED else "store",
            help=_help(field.description or "", unit_of(name), field.default).replace("%", "%%"),
        )
    return parser


def parse_serve(arguments: Sequence[str]) -> tuple[dict[str, Any], Path | None]:
    """The flags that were given, by field name, and the configuration file if one is named."""
    flags = vars(serve_parser().parse_args(arguments))
    named = flags.pop("config", None) or os.environ.get("QUIRE_CONFIG")
    return flags, Path(named) if named else None


def _help(description: str, unit: str, default: Any) -> str:
    if default is PydanticUndefined or default is None:
        return description
    return f"{description} Default: {default}{' ' + unit if unit else ''}."
