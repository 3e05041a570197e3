"""A small file that is whole or not there at all."""

from contextlib import closing

from quire.log import Directory


def write_whole_file(directory: Directory, name: str, data: bytes) -> None:
    """Write it under another name, sync, rename; durable and whole on return, or not there at all."""
    temporary = name + ".tmp"
    if temporary in directory.list():
        directory.remove(temporary)
    with closing(directory.create(temporary)) as storage:
        storage.write_at(0, data)
        storage.sync()
    directory.rename(temporary, name)
    directory.sync()
