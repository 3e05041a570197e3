"""What `quire session` asks of a cluster, and what it prints."""

from collections.abc import Mapping

from ...client import Client, Forbidden, NotFound, SessionClosed, SessionRow
from ...client.documents import cluster_clock
from ..connection import ClusterOptions, ask
from ..output import printable, say, to_json

CLOSED_AT_ONCE = 1_000


def open_session(cluster: ClusterOptions, name: str, *, as_json: bool, timeout_s: float) -> None:
    """Open a session and print it."""
    opened = ask(cluster, timeout_s, lambda client: client.session(), session=name, writes=True)
    _show({"session": opened.id, "name": opened.name, "sequence": opened.sequence}, as_json=as_json)


def show_session(cluster: ClusterOptions, session: int, *, as_json: bool, timeout_s: float) -> None:
    """Print a session."""
    _show(ask(cluster, timeout_s, lambda client: client.session_status(session)), as_json=as_json)


def list_sessions(cluster: ClusterOptions, prefix: str, idle_s: float, *, as_json: bool, timeout_s: float) -> None:
    """Print the sessions with a prefix that have been idle for that long, one per line."""

    async def listed(client: Client) -> list[SessionRow]:
        return await idle_sessions(client, prefix, idle_s)

    for row in ask(cluster, timeout_s, listed):
        _show(row, as_json=as_json)


def close_idle_sessions(
    cluster: ClusterOptions, prefix: str, idle_s: float, *, as_json: bool, timeout_s: float
) -> None:
    """Close the sessions with a prefix that have been idle for that long; print how many, or which as JSON."""

    async def close_all(client: Client) -> list[int]:
        found = [row["session"] for row in await idle_sessions(client, prefix, idle_s)]
        parts = [found[first : first + CLOSED_AT_ONCE] for first in range(0, len(found), CLOSED_AT_ONCE)]
        return [closed for part in parts for closed in await client.close_sessions(part)]

    closed = ask(cluster, timeout_s, close_all, writes=True)
    sentence = f"{len(closed):,} session{' is' if len(closed) == 1 else 's are'} closed"
    say(to_json({"closed": closed}) if as_json else sentence)


def close_session(
    cluster: ClusterOptions, session: int | None, name: str | None, *, as_json: bool, timeout_s: float
) -> None:
    """Close the session with that id or, without one, that name; print which."""

    async def close(client: Client) -> tuple[str | None, SessionClosed]:
        if session is None:
            return name, await client.close_session(await _session_of(client, name or ""))
        try:
            known_as = (await client.session_status(session))["name"]
        except (NotFound, Forbidden):  # Its name is only for the sentence; the close itself says what is wrong.
            known_as = None
        return known_as, await client.close_session(session)

    known_as, closed = ask(cluster, timeout_s, close, writes=True)
    of_name = "" if known_as is None else f" ({printable(known_as)})"
    say(to_json(closed) if as_json else f"session {printable(closed['session'])}{of_name} is closed")


async def _session_of(client: Client, name: str) -> int:
    """The id of the session with this name. Opening the name would tell it, too, but only to its owner."""
    async for row in client.sessions(name):
        if row["name"] == name:
            return row["session"]
    raise NotFound({"status": 404, "detail": f"no session is open under the name {name!r}; see `quire session list`"})


async def idle_sessions(client: Client, prefix: str, idle_s: float) -> list[SessionRow]:
    """The sessions whose names start with `prefix` and that have been idle for `idle_s` by the cluster's clock.

    A session whose last use is unknown does not count as idle.
    """
    rows = [row async for row in client.sessions(prefix)]
    if not idle_s:
        return rows
    used_before = cluster_clock(await client.status()) - idle_s * 1_000_000
    return [row for row in rows if 0 < row["used_at"] < used_before]


def _show(document: Mapping[str, object], *, as_json: bool) -> None:
    text = " ".join(f"{name} {printable(value)}" for name, value in document.items() if value is not None)
    say(to_json(document) if as_json else text)
