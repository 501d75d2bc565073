"""One write at a time, and the bell that wakes idle workers."""
from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.errors import Busy
from .connection import BUSY, OneThread

if TYPE_CHECKING:
    from ..base.time_and_text import AnyClock

WRITE_POLL_SECONDS = (0.0001, 0.01)     # the shortest and the longest pause between two polls
WRITE_POLLS = 8                 # polls during a wait of the usual length
WRITE_GAP_SECONDS = 0.00005     # two writes with a shorter gap are back-to-back
WRITE_STREAK_SECONDS = 0.005
WRITE_REST_SECONDS = 0.0015


class WriteLock(OneThread):
    """A lock that allows one write at a time: a lock of threads, and `flock` on a file among processes.

    SQLite's own waiting starves older waiters, because they sleep longer. Here the pause between two polls
    has a small upper limit. It begins longer after long waits, because many pollers slow the writer down. A
    process that has written back-to-back for WRITE_STREAK_SECONDS pauses if another process waits. Waiting
    processes show that by a shared lock on a second file.
    """

    def __init__(self, path: Path, clock: AnyClock) -> None:
        super().__init__(clock)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._waiting = os.open("%s.wait" % path, os.O_RDWR | os.O_CREAT, 0o600)
        self._released = self._streak = 0.0
        self._usual = 0.0               # moving average of the latest waits, in seconds

    def acquire(self, deadline: float) -> None:
        """Wait for the lock; Busy at the deadline (monotonic)."""
        super().acquire(deadline)
        try:
            now = self._clock.monotonic()
            if now - self._released > WRITE_GAP_SECONDS:
                self._streak = now
            elif now - self._streak > WRITE_STREAK_SECONDS:
                self._rest()
            if not self._flock(self._file, fcntl.LOCK_EX):
                self._wait(deadline)
            self._usual += (self._clock.monotonic() - now - self._usual) / 4
        except BaseException:
            super().release()
            raise

    def release(self) -> None:
        """Release the lock."""
        self._flock(self._file, fcntl.LOCK_UN)
        self._released = self._clock.monotonic()
        super().release()

    def close(self) -> None:
        """Close the files, unless they are closed."""
        for file in {self._file, self._waiting} - {-1}:
            os.close(file)
        self._file = self._waiting = -1

    def _rest(self) -> None:
        """Pause if another process waits."""
        if not self._flock(self._waiting, fcntl.LOCK_EX):
            self._clock.sleep(WRITE_REST_SECONDS)
        self._flock(self._waiting, fcntl.LOCK_UN)
        self._streak = self._clock.monotonic()

    def _wait(self, deadline: float) -> None:
        """Poll for the lock; Busy at the deadline."""
        self._flock(self._waiting, fcntl.LOCK_SH)
        pause, longest = WRITE_POLL_SECONDS
        pause = max(pause, min(longest, self._usual / WRITE_POLLS))
        try:
            while not self._flock(self._file, fcntl.LOCK_EX):
                if self._clock.monotonic() > deadline:
                    raise Busy(BUSY)
                self._clock.sleep(self._clock.uniform(pause / 2, pause))
                pause = min(longest, pause * 1.2)
        finally:
            self._flock(self._waiting, fcntl.LOCK_UN)

    @staticmethod
    def _flock(file: int, kind: int) -> bool:
        """Lock or unlock a file; return False if another process has the lock.

        On a host without flock, SQLite's own lock must do.
        """
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            pass
        return True


class Bell:
    """A named pipe that wakes idle workers.

    1. After a durable commit a process writes one byte into the pipe, without blocking. So does a worker
       that begins tasks, because there may be more than it takes.
    2. A worker without work empties the pipe, looks for work again, and waits.

    If no byte arrives (a file system without pipes, an add on another machine), a worker looks by itself,
    at least once a second.
    """

    def __init__(self, path: Path) -> None:
        self.pipe = None
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):      # another process may create it at the same time
                os.mkfifo(path, 0o600)
            if stat.S_ISFIFO(os.stat(path).st_mode):
                # Open for reading and writing: so it never ends, and open() does not wait for a reader.
                self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def ring(self) -> None:
        """Wake all idle workers."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):      # a full pipe is readable anyway
                os.write(self.pipe, b".")

    def calm(self) -> None:
        """Clear the wake-up."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):      # another worker has emptied it
                os.read(self.pipe, 1 << 16)

    def close(self) -> None:
        """Close the pipe, unless it is closed."""
        pipe, self.pipe = self.pipe, None
        if pipe is not None:
            os.close(pipe)
