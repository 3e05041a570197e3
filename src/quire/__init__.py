"""A replicated state machine: one durable log, and the same state on every node.

`connect` and `connect_sync` open a client; docs/client.md describes it. `StateMachine` is the protocol of a machine;
docs/machines.md describes it. All names here are those of `quire.cluster.client`, `quire.sm` and `quire.log`.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quire.cluster.client import (
        Admin,
        BadRequest,
        Batch,
        BatchReply,
        BlockingAdmin,
        BlockingBatch,
        BlockingClient,
        BlockingCursors,
        Client,
        ClientError,
        CodeAccepted,
        CommandRefused,
        Consistency,
        CursorRow,
        Cursors,
        CursorTaken,
        Forbidden,
        ForkedClient,
        Halted,
        HistoryChanged,
        Members,
        NotFound,
        OutcomeUnknown,
        Problem,
        Record,
        RecordsLost,
        Refusal,
        ReplyGone,
        ReshardRefused,
        ResultsCut,
        SegmentsExpired,
        ServerFault,
        Session,
        SessionClosed,
        SessionError,
        SessionExpired,
        SessionFenced,
        SessionOwned,
        SessionRow,
        SessionStatus,
        SnapshotTaken,
        State,
        Status,
        TlsRefused,
        TokenRefused,
        Unauthorized,
        Unavailable,
        connect,
        connect_sync,
    )
    from quire.log import Bounds, PayloadInvalid, Value, pack, unpack
    from quire.sm import Context, InitialInvalid, Refused, SnapshotInvalid, StateMachine

__version__ = "0.1.0"
__all__ = [
    "Admin",
    "BadRequest",
    "Batch",
    "BatchReply",
    "BlockingAdmin",
    "BlockingBatch",
    "BlockingClient",
    "BlockingCursors",
    "Bounds",
    "Client",
    "ClientError",
    "CodeAccepted",
    "CommandRefused",
    "Consistency",
    "Context",
    "CursorRow",
    "CursorTaken",
    "Cursors",
    "Forbidden",
    "ForkedClient",
    "Halted",
    "HistoryChanged",
    "InitialInvalid",
    "Members",
    "NotFound",
    "OutcomeUnknown",
    "PayloadInvalid",
    "Problem",
    "QuireError",
    "Record",
    "RecordsLost",
    "Refusal",
    "Refused",
    "ReplyGone",
    "ReshardRefused",
    "ResultsCut",
    "SegmentsExpired",
    "ServerFault",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionExpired",
    "SessionFenced",
    "SessionOwned",
    "SessionRow",
    "SessionStatus",
    "SnapshotInvalid",
    "SnapshotTaken",
    "State",
    "StateMachine",
    "Status",
    "TlsRefused",
    "TokenRefused",
    "Unauthorized",
    "Unavailable",
    "Value",
    "__version__",
    "connect",
    "connect_sync",
    "pack",
    "unpack",
]


def exports(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package that offers names of its modules, and imports a module when it is first used.

    `modules` has the names that each module of the package offers, with spaces between them. The package imports the
    same names under `TYPE_CHECKING`; a test compares the two.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return find


# A node, a machine, a Spark worker or a tool that reads a log imports quire without the client.
_MODULES = {
    "cluster.client": (
        "Admin BadRequest Batch BatchReply BlockingAdmin BlockingBatch BlockingClient BlockingCursors Client "
        "ClientError CodeAccepted CommandRefused Consistency CursorRow CursorTaken Cursors Forbidden "
        "ForkedClient Halted HistoryChanged Members NotFound OutcomeUnknown Problem Record RecordsLost "
        "Refusal ReplyGone ReshardRefused ResultsCut SegmentsExpired ServerFault Session SessionClosed "
        "SessionError SessionExpired SessionFenced SessionOwned SessionRow SessionStatus SnapshotTaken State "
        "Status TlsRefused TokenRefused Unauthorized Unavailable connect connect_sync"
    ),
    "log": "Bounds PayloadInvalid Value pack unpack",
    "sm": "Context InitialInvalid Refused SnapshotInvalid StateMachine",
}
__getattr__ = exports(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class QuireError(Exception):
    """The base of each package's errors. A copy, even a pickled one, has the same type, text and fields."""

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.args), self.__dict__ or None


def _restored(kind: type[QuireError], arguments: tuple[object, ...]) -> QuireError:
    """An error without its fields, as `Exception` creates it: its own constructor's arguments are not in `args`."""
    error = kind.__new__(kind)
    error.args = arguments
    return error
