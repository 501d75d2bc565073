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

WRITE_POLL_SECONDS = (0.0001, 0.01)     # the shortest and the longest until who waits asks again
WRITE_POLLS = 8                 # while it waits as long as it lately did
WRITE_GAP_SECONDS = 0.00005     # writing again within this is back-to-back
WRITE_STREAK_SECONDS = 0.005
WRITE_REST_SECONDS = 0.0015


class WriteLock(OneThread):
    """Lets one write at a time: threads by a lock, processes by `flock` on one file.

    SQLite's own waiting starves: older waiters sleep longer. Here all ask again as often, whoever
    came first, and the more seldom the longer they lately waited: many who ask keep the processor
    from the one who writes. Who has written back-to-back for a while stays away for a moment, if
    a shared lock on the second file says that somebody waits.
    """

    def __init__(self, path: Path, clock: AnyClock) -> None:
        super().__init__(clock)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._waiting = os.open("%s.wait" % path, os.O_RDWR | os.O_CREAT, 0o600)
        self._released = self._streak = 0.0
        self._usual = 0.0               # seconds that are waited lately

    def take(self, deadline: float) -> None:
        """Wait for it, until this moment (monotonic) at most; then Busy."""
        super().take(deadline)
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
            super().give()
            raise

    def give(self) -> None:
        """Let the next one write."""
        self._flock(self._file, fcntl.LOCK_UN)
        self._released = self._clock.monotonic()
        super().give()

    def close(self) -> None:
        """Forget the files; harmless twice."""
        for file in {self._file, self._waiting} - {-1}:
            os.close(file)
        self._file = self._waiting = -1

    def _rest(self) -> None:
        """Stay away for a moment if somebody waits."""
        if not self._flock(self._waiting, fcntl.LOCK_EX):
            self._clock.sleep(WRITE_REST_SECONDS)
        self._flock(self._waiting, fcntl.LOCK_UN)
        self._streak = self._clock.monotonic()

    def _wait(self, deadline: float) -> None:
        """Ask again and again."""
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
        """False if somebody else holds it. On a host without flock SQLite's own lock must do."""
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            pass
        return True


class Bell:
    """Wakes workers that wait for tasks: a named pipe which they poll.

    1. Who has committed what others wait for writes a byte into it, and waits for nobody. So does
       a worker that begins tasks: there may be more than it takes.
    2. A worker that finds nothing to do empties it, looks once more, and waits again.

    Where there is none (a file system without pipes, an add on another machine) a worker sees the
    news when it looks by itself, within a second."""

    def __init__(self, path: Path) -> None:
        self.pipe = None
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):      # others may be as early
                os.mkfifo(path, 0o600)
            if stat.S_ISFIFO(os.stat(path).st_mode):
                # Open for both: so it never ends, and no one waits for the other side.
                self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def ring(self) -> None:
        """Wake all who wait."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):      # it is full: it rings already
                os.write(self.pipe, b".")

    def calm(self) -> None:
        """Stop ringing."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):      # somebody else was quicker
                os.read(self.pipe, 1 << 16)

    def close(self) -> None:
        """Close the pipe; harmless twice."""
        pipe, self.pipe = self.pipe, None
        if pipe is not None:
            os.close(pipe)
