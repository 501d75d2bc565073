"""Leftovers: changes of the process by a task, which would affect the next task.

PROBES and SLOW_PROBES have a row for each kind of state in the process: its name, how it is read, and how
it is restored. If a state cannot be restored, the worker replaces the runner. Quick functions run 15,000
times a second. So the rows of PROBES, which are read after each task, use modules in C where these are
quicker. SLOW_PROBES are read after the last task of a batch, and after a task that caused an audit event in
SLOW_EVENTS. They are also read if a change could not be restored.

Rules: no probe imports a module. If a module is not imported, a probe returns the state just after the
module's import. No row sees the hidden state of an extension in C, or changed variables of the
owner's modules, such as tasks.py.
"""
from __future__ import annotations

import _locale
import _signal
import _thread
import builtins
import contextlib
import gc
import io
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from jobqueue import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

    from jobqueue import AnyTuple

LIMITS: list[int] = [getattr(resource, "RLIMIT_" + name)
                     for name in "FSIZE NOFILE AS CPU DATA NPROC STACK".split()
                     if hasattr(resource, "RLIMIT_" + name)]
SLOW_EVENTS = frozenset("resource.setrlimit resource.prlimit os.fork os.forkpty os.posix_spawn "
                    "os.system subprocess.Popen".split())
VARIABLE_EVENTS = frozenset(("os.putenv", "os.unsetenv"))
ENVIRONMENT = os.environ                # the owner's code may replace os.environ
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
SIGNALS: list[int] = [getattr(signal, "SIG" + name) for name in
                      "HUP INT QUIT ABRT ALRM TERM PIPE CHLD USR1 USR2 XCPU XFSZ VTALRM PROF".split()]
_MODULES = sys.modules
_DECIMAL = 28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0     # the values of a fresh context


class Probe(NamedTuple):
    """A kind of state in the process."""

    name: str
    read: Callable[[], Any]
    put_back: Callable[[Any], None] | None = None   # restores the value that was read before


def text_streams() -> dict[str, io.TextIOWrapper]:
    """Make the streams that functions print to, and set them as sys.stdout and sys.stderr.

    The streams are opened on a pipe, because logs are pipes. A stream that is opened on a file would say
    that it is seekable.
    """
    streams = {}
    pipe = os.pipe()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(pipe[1], descriptor)
        streams[name] = open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, streams[name])
        setattr(sys, "__%s__" % name, streams[name])
    for end in pipe:
        os.close(end)
    return streams


def _read_streams() -> AnyTuple:
    out: Any = sys.stdout
    err: Any = sys.stderr
    return (out, err, sys.__stdout__, sys.__stderr__, sys.stdin,
            out.closed, out.encoding, out.errors, out.newlines, out.line_buffering, out.write_through,
            err.closed, err.encoding, err.errors, err.newlines, err.line_buffering, err.write_through)


def _read_hooks() -> AnyTuple:
    return (sys.getprofile(), sys.gettrace(), sys.excepthook, sys.displayhook, sys.unraisablehook,
            sys.breakpointhook, threading.excepthook, getattr(threading, "_trace_hook", None),
            getattr(threading, "_profile_hook", None))


def _read_settings() -> AnyTuple:
    digits = getattr(sys, "get_int_max_str_digits", int)()
    return (sys.getrecursionlimit(), sys.getswitchinterval(), digits, socket.getdefaulttimeout(),
            gc.isenabled(), gc.get_threshold(), gc.get_debug(), sys.dont_write_bytecode,
            _thread.stack_size(), "faulthandler" in _MODULES and _MODULES["faulthandler"].is_enabled())


def _read_locale() -> AnyTuple:
    return time.tzname, _locale.setlocale(_locale.LC_ALL)


def _read_warnings() -> AnyTuple:
    warnings = _MODULES["warnings"]
    return list(warnings.filters), warnings.showwarning


def _put_warnings_back(before: AnyTuple) -> None:
    warnings: Any = _MODULES["warnings"]
    warnings.resetwarnings()
    warnings.filters.extend(before[0])
    warnings.showwarning = before[1]


def _read_logging() -> AnyTuple:
    logging = _MODULES.get("logging")
    if logging is None:
        return 0, 30, [], False, None, None
    root = logging.root
    return (root.manager.disable, root.level, list(root.handlers), root.disabled, logging.getLoggerClass()
            if logging.getLoggerClass() is not logging.Logger else None, logging.getLogRecordFactory()
            if logging.getLogRecordFactory() is not logging.LogRecord else None)


def _put_logging_back(before: AnyTuple) -> None:
    logging = _MODULES["logging"]
    root = logging.root
    logging.disable(before[0])
    root.setLevel(before[1])
    for handler in root.handlers:
        if handler not in before[2]:
            handler.close()
    root.handlers[:], root.disabled = before[2], before[3]
    logging.setLoggerClass(before[4] or logging.Logger)
    logging.setLogRecordFactory(before[5] or logging.LogRecord)


def _read_decimal() -> AnyTuple:
    decimal = _MODULES.get("decimal")
    if decimal is None:
        return (*_DECIMAL, (True, True, True))
    context = decimal.getcontext()
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp,
            tuple(context.traps[each] for each in (decimal.InvalidOperation, decimal.DivisionByZero,
                                                   decimal.Overflow)))


def _put_decimal_back(before: AnyTuple) -> None:
    decimal = _MODULES["decimal"]
    *values, traps = before
    context = decimal.Context(*values[:6])
    for each, is_set in zip((decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow), traps):
        context.traps[each] = is_set
    decimal.setcontext(context)


def _read_start_method() -> Any:
    context = _MODULES.get("multiprocessing.context")
    method = getattr(getattr(context, "_default_context", None), "_actual_context", None)
    return method and method.get_start_method()


def _put_start_method_back(before: Any) -> None:
    _MODULES["multiprocessing"].set_start_method(before, force=True)


def _read_python_functions() -> AnyTuple:
    return (os.write, os.read, os.open, os.close, os.dup, os.dup2, os.getpid, os._exit, print, open,
            time.sleep, time.time, time.monotonic, json.loads, json.dumps, signal.signal,
            len(builtins.__dict__), builtins.__import__)


def _read_children() -> bool:
    """Return whether a child process runs, or has ended without being collected."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


PROBES = (
    Probe("a timer", lambda: list(map(_signal.getitimer, TIMERS))),
    Probe("signal handlers", lambda: list(map(_signal.getsignal, SIGNALS))),
    Probe("blocked signals", lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    Probe("environment variables",
          lambda: (os.environ is ENVIRONMENT, dict(getattr(ENVIRONMENT, "_data")))),
    Probe("sys.path", lambda: (list(sys.path), list(sys.meta_path), list(sys.path_hooks))),
    Probe("threads", _thread._count),
    Probe("other functions of Python", _read_python_functions),
    Probe("other settings of Python", _read_settings),
    Probe("text streams", _read_streams),
    Probe("hooks of Python", _read_hooks),
    Probe("another locale or zone", _read_locale),
    Probe("sys.argv", lambda: list(sys.argv)),
    Probe("warnings", _read_warnings, _put_warnings_back),
    Probe("logging", _read_logging, _put_logging_back),
    Probe("decimal", _read_decimal, _put_decimal_back),
    Probe("a start method", _read_start_method, _put_start_method_back))
SLOW_PROBES = (
    Probe("limits", lambda: list(map(resource.getrlimit, LIMITS))),
    Probe("a child", _read_children),
    Probe("another priority", lambda: os.getpriority(os.PRIO_PROCESS, 0)))


def lowest_free() -> int | None:
    """Return the lowest free descriptor number; None if the process may open no more descriptors."""
    with contextlib.suppress(OSError):
        descriptor = os.dup(0)
        os.close(descriptor)
        return descriptor
    return None


class Leftovers:
    """The changes that tasks leave in this process, compared with its state before the first task."""

    def __init__(self) -> None:
        self._saw_slow_event = False           # the task caused an audit event in SLOW_EVENTS
        self._variables: set[bytes] = set()     # names that the task set or unset
        sys.addaudithook(self._audit)
        self._before = [probe.read() for probe in PROBES]
        self._slow_before = [probe.read() for probe in SLOW_PROBES]
        self._lowest_before: int | None = None   # the lowest free descriptor before the batch
        self._owner: str | None = None  # owner of the last task
        self._flush_c: Callable[[None], object] | None = None
        self._module_count = 0          # number of loaded modules when flush() last looked for C extensions

    def begin(self, owner: str, is_first: bool) -> None:
        """Begin a task of an owner. Before the first task of a batch, note the lowest free descriptor."""
        if is_first:
            self._lowest_before = lowest_free()
        if owner != self._owner:        # a task must not foresee the random numbers of another owner
            self._owner = owner
            if "random" in _MODULES:
                _MODULES["random"].seed()

    def flush(self) -> None:
        """Write out the buffers that the task printed into: Python's, and C's if loaded code may use it."""
        for stream in (sys.stdout, sys.stderr):
            try:                        # suppress() would take longer than both calls
                stream.flush()
            except Exception:
                pass
        if len(_MODULES) != self._module_count:
            self._module_count = len(_MODULES)
            if self._flush_c is None and is_c_loaded():
                import ctypes
                self._flush_c = ctypes.CDLL(None).fflush
        if self._flush_c:
            self._flush_c(None)

    def restore(self, is_last: bool) -> str | None:
        """Restore the state; return the names of states that remain changed, or None."""
        if self._variables:
            self._put_variables_back()
        states = [probe.read() for probe in PROBES]
        changed = [] if states == self._before else self._put_back(states)
        if not (changed or is_last or self._saw_slow_event):
            return None
        self._saw_slow_event = False
        for probe, before in zip(SLOW_PROBES, self._slow_before):
            if probe.read() != before:
                changed.append(probe.name)
        for kind, limits in zip(LIMITS, self._slow_before[0] if changed else ()):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, limits)    # with low limits even the outcome could not be sent
        if not changed and self._lowest_before != lowest_free():
            gc.collect()                # an unreachable object may hold a file open
            changed = ["an open file"] if self._lowest_before != lowest_free() else []
        return ", ".join(changed) or None

    def _put_back(self, states: list[Any]) -> list[str]:
        """Restore changed states; return the names of those that cannot be restored."""
        remaining = []
        for probe, before, value in zip(PROBES, self._before, states):
            if value != before:
                if probe.put_back:
                    probe.put_back(before)
                if probe.put_back is None or probe.read() != before:
                    remaining.append(probe.name)
        return remaining

    def _put_variables_back(self) -> None:
        """Make C's environment equal to ENVIRONMENT again, where the task set or unset a variable."""
        variables, self._variables = self._variables, set()
        for name in variables:
            value = getattr(ENVIRONMENT, "_data").get(name)
            if value is None:
                os.unsetenv(name)
            else:
                os.putenv(name, value)
        self._variables.clear()

    def _audit(self, event: str, details: AnyTuple) -> None:
        if event in SLOW_EVENTS:
            self._saw_slow_event = True
        elif event in VARIABLE_EVENTS:
            self._variables.add(os.fsencode(details[0]))


def is_c_loaded() -> bool:
    """Return whether ctypes or a C extension of a package is loaded, which may print through C's buffer."""
    library = os.path.dirname(os.__file__)
    return "ctypes" in _MODULES or any(
        path.endswith(".so") and (not path.startswith(library) or "-packages" in path)
        for path in [str(getattr(module, "__file__", "")) for module in list(_MODULES.values())])
