"""Errors without the frames that they passed."""


def let_go_of_frames(error: BaseException | None) -> None:
    """Cut an error, and those that it came from, off the frames that they passed; for when it was dealt with.

    A frame holds what the handler held: a body, an answer of megabytes. Where a future of such a frame holds the error,
    too, they hold each other, and all of it stays until the collector comes, which under load is seconds later.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
