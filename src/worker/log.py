"""The log pipe: an attempt's output on its way to the database.

An attempt prints into a pipe. The worker reads it and stores the text in pieces, each with its offset in
bytes.

Rules: no task waits long for the worker to read its output, and no output fills the worker's memory. The
beginning of a log is always stored. If output then arrives faster than it can be stored, only its latest
part is kept.
"""
from __future__ import annotations

import codecs
import os

import jobqueue
from jobqueue import NamedTuple, storable

PIECE_BYTES = 64 << 10


class LogPiece(NamedTuple):
    """A part of a log that begins at byte `start`."""

    start: int
    text: str


class LogPipe:
    """The worker's end of an attempt's pipe, and the output that is not stored yet."""

    def __init__(self, end: int | None = None) -> None:
        self.end = end                  # None before the hand-over, and after the end of the output
        self._decoder: codecs.IncrementalDecoder | None = None  # made at the first output
        self._waiting = bytearray()     # bytes not yet decoded; never more than LOG_MAX_BYTES
        self.pieces: list[LogPiece] = []        # decoded, and not known to be stored
        self.start = 0                  # offset of the next piece, in bytes
        if end is not None:
            self.attach(end)

    def attach(self, end: int) -> None:
        """Set the end of the pipe that read() reads."""
        os.set_blocking(end, False)
        self.end = end

    def read(self) -> None:
        """Read the output since the last call, at most LOG_MAX_BYTES. Close the pipe at its end."""
        for _ in range(jobqueue.LOG_MAX_BYTES // PIECE_BYTES):
            if self.end is None:
                return
            try:
                data = os.read(self.end, PIECE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.close()
            self._waiting += data
            excess = len(self._waiting) - jobqueue.LOG_MAX_BYTES
            if excess > 0 and self.start > 0:       # only the latest part is kept
                excess += jobqueue.LOG_MAX_BYTES // 2
                del self._waiting[:excess]
                self.start += excess

    def close(self) -> bool:
        """Close the pipe; return True if that was before the end of the output."""
        if self.end is None:
            return False
        os.close(self.end)
        self.end = None
        return True

    @property
    def is_full(self) -> bool:
        """Return True if the beginning of the log must be stored before more output is read."""
        return len(self._waiting) >= jobqueue.LOG_MAX_BYTES and self.start == 0

    def __bool__(self) -> bool:
        return bool(self._waiting or self.pieces)

    @property
    def has_rest(self) -> bool:
        """Return True if the decoder holds the first bytes of an incomplete character."""
        return self._decoder is not None and bool(self._decoder.getstate()[0])

    def decode_pieces(self, final: bool) -> list[LogPiece]:
        """Return the pieces to store. Unless `final`, they stay the same until `pieces` is emptied."""
        if final or not self.pieces:
            if self._decoder is None:
                self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
            text = self._decoder.decode(bytes(self._waiting), final)
            self._waiting.clear()
            self.put(storable(text))
        return self.pieces

    def put(self, text: str) -> None:
        """Append a text to the output."""
        for place in range(0, len(text), PIECE_BYTES):
            piece = text[place:place + PIECE_BYTES]
            self.pieces.append(LogPiece(self.start, piece))
            self.start += len(piece.encode("utf-8"))
