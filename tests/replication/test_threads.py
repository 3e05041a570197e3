"""Flushes by the kernel, where it allows them, and in a thread: each is told once, and can be waited for."""

import asyncio
import errno
import multiprocessing
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from quire.log import FileDirectory, FileStorage, MemoryDirectory, Sync
from quire.log.files import Ended
from quire.replication import threads
from quire.replication.kernel_syncs import KernelSyncs
from quire.replication.threads import Threads
from tests.replication.loopback import DEADLINE_S

Told = list[BaseException | None]


def forbidden() -> KernelSyncs:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture(params=[KernelSyncs, forbidden], ids=["as the kernel allows", "by a thread"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], KernelSyncs]:
    made: Callable[[], KernelSyncs] = request.param
    monkeypatch.setattr(threads, "KernelSyncs", made)
    monkeypatch.setattr(threads, "BY_KERNEL", True)
    return made


@asynccontextmanager
async def device() -> AsyncGenerator[Threads]:
    made = Threads()
    try:
        yield made
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await made.end()


async def flushed(device: Threads, sync: Sync) -> BaseException | None:
    """The error of a flush, or None."""
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    device.flush(sync, lambda error, took_us: ended.set_result(error if took_us >= 0 else AssertionError(took_us)))
    async with asyncio.timeout(DEADLINE_S):
        return await ended


def leads_to(descriptor: str, path: Path) -> bool:
    with suppress(OSError):  # It was that of the listing.
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    return False


def file_in(folder: Path) -> FileStorage:
    file = FileDirectory(folder).create("file")
    file.write_at(0, b"data")
    return file


pytestmark = pytest.mark.usefixtures("made")


async def test_one_flush_after_the_other_ends_without_an_error(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    async with device() as it:
        for _ in range(100):  # More than a ring has entries.
            assert await flushed(it, Sync(file)) is None
    file.close()


async def test_a_storage_that_is_no_file_is_flushed_too() -> None:
    async with device() as it:
        assert await flushed(it, Sync(MemoryDirectory().create("file"))) is None


async def test_the_error_of_the_device_is_told_and_given_to_all_who_ask_later(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    async with device() as it:
        os.close(next(int(fd) for fd in os.listdir("/proc/self/fd") if leads_to(fd, tmp_path / "file")))
        sync = Sync(file)
        error = await flushed(it, sync)
        assert isinstance(error, OSError)
        assert error.errno == errno.EBADF
        with pytest.raises(OSError, match="Bad file descriptor"):
            sync.run()


async def test_a_file_that_has_lost_its_name_is_an_error(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    (tmp_path / "file").unlink()
    async with device() as it:
        assert "file" in str(await flushed(it, Sync(file)))
    file.close()


async def test_who_needs_a_flush_at_once_waits_for_the_one_in_progress_which_is_told_later(tmp_path: Path) -> None:
    file, told = file_in(tmp_path), Told()
    async with device() as it:
        for _ in range(20):
            sync = Sync(file)
            it.flush(sync, lambda error, _: told.append(error))
            before = len(told)
            sync.run()
            sync.run()
            assert len(told) == before, "it is told on the loop"
    assert told == [None] * 20
    file.close()


async def test_the_end_waits_for_flushes_in_progress(tmp_path: Path) -> None:
    file, told = file_in(tmp_path), Told()
    it = Threads()
    it.flush(Sync(file), lambda error, _: told.append(error))
    await it.end()
    assert told == [None]
    file.close()


async def test_a_child_of_this_process_changes_nothing_for_its_flushes(tmp_path: Path) -> None:
    file, told = file_in(tmp_path), Told()
    async with device() as it:
        it.flush(Sync(file), lambda error, _: told.append(error))
        child = multiprocessing.get_context("fork").Process(target=os._exit, args=(0,))
        child.start()
        await asyncio.to_thread(child.join)
        assert await flushed(it, Sync(file)) is None
    assert told == [None]
    file.close()


async def test_a_flush_that_the_kernel_does_not_take_runs_in_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_none(*_: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    file = file_in(tmp_path)
    monkeypatch.setattr(FileStorage, "begin_sync", takes_none)
    async with device() as it:
        assert await flushed(it, Sync(file)) is None
    file.close()


async def test_a_flush_that_the_kernel_could_make_no_thread_for_runs_in_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelling:
        """The kernel's answer to a sync for which it could start no worker."""

        def __init__(self) -> None:
            self.event = os.eventfd(0, os.EFD_NONBLOCK)
            self._told: list[Callable[[], None]] = []

        @property
        def is_busy(self) -> bool:
            return bool(self._told)

        def begin(self, _: int, ended: Ended) -> None:
            self._told.append(ended(-errno.ECANCELED))
            os.eventfd_write(self.event, 1)

        def wait(self) -> None:
            raise AssertionError("its result was given")

        def complete(self) -> None:
            os.eventfd_read(self.event)
            told, self._told = self._told, []
            for each in told:
                each()

        def close(self) -> None:
            os.close(self.event)

    file = file_in(tmp_path)
    monkeypatch.setattr(threads, "KernelSyncs", Cancelling)
    async with device() as it:
        assert await flushed(it, Sync(file)) is None
        sync = Sync(file)
        it.flush(sync, lambda *_: None)
        sync.run()
    file.close()


async def test_the_end_comes_even_if_what_a_flush_is_told_to_fails(tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    file = file_in(tmp_path)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    it = Threads()
    it.flush(Sync(file), fails)
    async with asyncio.timeout(DEADLINE_S):
        await it.end()
    file.close()
