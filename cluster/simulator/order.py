"""Linearizability, where the history names its own order.

Every acknowledged write says where it stands in the log, and every read how far it had applied it. So the order to
check is given, and no search is needed (Wing and Gong's is exponential): operations take effect in the log's order,
and it has to agree with real time. An operation that began after another had ended must not stand before it.

That each one's answer follows from what stands before it is the model's part (`machine.Model`).
"""


class NotLinearizable(Exception):
    """An operation took effect before one that had ended when it began."""


class Order:
    """Holds the highest place of all that ended. A write at `index` lies in [index, index + 1), a read at its end."""

    def __init__(self) -> None:
        self._ended = 0

    def began(self) -> int:
        """What an operation that begins now must not stand before; keep it until it ends."""
        return self._ended

    def wrote(self, began: int, index: int) -> None:
        """A write that took effect as record `index` ended.

        Raises:
            NotLinearizable: something that stands behind it had ended before it began.
        """
        if index < began:
            raise NotLinearizable(f"a write took effect at {index}; when it began, {began} had been seen")
        self._ended = max(self._ended, index + 1)

    def read(self, began: int, applied_index: int) -> None:
        """A read that saw every record below `applied_index`, and no other, ended.

        Raises:
            NotLinearizable: it misses what had ended before it began.
        """
        if applied_index < began:
            raise NotLinearizable(f"a read saw what is below {applied_index}; when it began, {began} had been seen")
        self._ended = max(self._ended, applied_index)
