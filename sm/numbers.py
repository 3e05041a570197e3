"""Numbers in what others wrote: in records, snapshots and their manifests."""


def number_of(value: object) -> int:
    """The value, which must be a whole number from 0 on. Raises ValueError."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a number")
    return value
