"""Generates `docs/configuration.md` from the model: `python -m quire.cluster.config.page > docs/configuration.md`."""

import sys

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .serve import ServeConfig
from .settings import ENVIRONMENT_PREFIX, Settings, flag_of, unit_of

HEAD = """# Configuration of `quire serve`

Generated from the model in `cluster/config/serve.py` by `python -m quire.cluster.config.page > docs/configuration.md`;
a test checks that it is up to date.

Each setting can be given as a flag (`--data-dir ./n1`), as a variable (`QUIRE_DATA_DIR=./n1`) or as a key of the TOML
file (`data_dir = "./n1"`) that `--config FILE` or `QUIRE_CONFIG` names. Flags override variables, and variables
override the file. An unknown key, an unknown `QUIRE_` variable and a missing file are errors. Variables that Kubernetes
or Docker set for a service named `quire` or `quire-...` are ignored and logged, such as `QUIRE_SERVICE_HOST`, or
`QUIRE_PORT` with a value such as `tcp://10.0.0.1:7001`. The other commands read `QUIRE_SERVER`, the addresses of the
cluster, `QUIRE_CA` and `QUIRE_TOKEN_FILE`; a node ignores these. Limits that are not settings are in
[limits.md](limits.md).

```toml quire.toml
data_dir = "data/n1"
election_timeout_ms = 1000

[members]
n1 = "127.0.0.1:7001"
n2 = "127.0.0.1:7002"
n3 = "127.0.0.1:7003"
```

Save this as `quire.toml`. With quire [installed](../README.md#install), this starts three nodes on one machine:

<!-- after: ../README.md#install -->

```sh
for n in 1 2 3; do
    quire serve --config quire.toml --node n$n --listen 127.0.0.1:700$n --data-dir data/n$n &
done
quire status --wait 30 --server 127.0.0.1:7001
```
"""


def config_page() -> str:
    """The whole page, as Markdown."""
    return page_of(ServeConfig, HEAD)


def page_of(model: type[Settings], head: str) -> str:
    """A page of `head` and a section for each field of the model."""
    return "\n".join([head, *(_section(name, field) for name, field in model.model_fields.items())])


def _section(name: str, field: FieldInfo) -> str:
    facts = [f"`{flag_of(name)}`", f"`{ENVIRONMENT_PREFIX}{name.upper()}`"]
    if unit := unit_of(name):
        facts.append(f"in {unit}")
    if limits := _limits(field.metadata):
        facts.append(limits)
    if field.is_required():
        facts.append("required")
    elif field.default not in (None, (), PydanticUndefined):
        facts.append(f"default `{field.default}`")
    return f"## {name}\n\n{', '.join(facts)}\n\n{field.description}\n"


def _limits(metadata: list[object]) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = [(said, getattr(bound, key, None)) for bound in metadata for key, said in words.items()]
    return ", ".join(f"{said} {value:,}" for said, value in found if value is not None)


if __name__ == "__main__":
    sys.stdout.write(config_page())
