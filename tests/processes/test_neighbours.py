"""A task changes its process, or prints by some buffer: another owner's next task feels and shows nothing."""

import json
import unittest

from tests.helpers.working import ProcessCase, Site

TASKS = '''
import builtins, codecs, ctypes, decimal, faulthandler, functools, gc, io, locale, logging, multiprocessing
import os, random, signal, socket, sys, threading, time, warnings
from jobqueue import task

early = sys.stdout
def say(text, out=sys.stdout): print(text, file=out)
partly = functools.partial(print, file=sys.stdout)

PRINTS = {
    "wrapped": lambda: (setattr(sys, "stdout", io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")),
                        print("secret")),
    "opened": lambda: (setattr(sys, "stdout", open(1, "w")), print("secret")),
    "fdopen": lambda: (setattr(sys, "stdout", os.fdopen(1, "w", closefd=False)), print("secret")),
    "detached": lambda: (setattr(sys, "stdout", codecs.getwriter("utf-8")(sys.stdout.detach())),
                         print("secret")),
    "stderr detached": lambda: (print("secret"), sys.stderr.detach()),
    "closed": lambda: (print("secret"), sys.stdout.close()),
    "none": lambda: (print("secret"), setattr(sys, "stdout", None)),
    "original": lambda: print("secret", file=sys.__stdout__),
    "early": lambda: early.write("secret\\n"),
    "unended": lambda: early.write("secret"),
    "default": lambda: say("secret"),
    "partial": lambda: partly("secret"),
    "bytes": lambda: sys.stdout.buffer.write(b"secret\\n"),
    "c": lambda: ctypes.CDLL(None).printf(b"secret\\n"),
    "block buffered": lambda: (sys.stdout.reconfigure(line_buffering=False), print("secret")),
}

CHANGES = {
    "narrow": lambda: sys.stdout.reconfigure(encoding="ascii", errors="strict"),
    "newlines": lambda: sys.stdout.reconfigure(newline="\\r\\n"),
    "start method": lambda: multiprocessing.set_start_method("spawn"),
    "logging off": lambda: logging.disable(logging.CRITICAL),
    "logging": lambda: logging.basicConfig(level=10),
    "log records": lambda: logging.setLogRecordFactory(lambda *a, **k: None),
    "warnings": lambda: warnings.simplefilter("error"),
    "shown warnings": lambda: setattr(warnings, "showwarning", print),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 3),
    "decimal traps": lambda: decimal.getcontext().traps.update({decimal.DivisionByZero: False}),
    "gc": gc.disable,
    "gc threshold": lambda: gc.set_threshold(1),
    "faulthandler": lambda: faulthandler.enable(open(os.devnull)),
    "profile": lambda: sys.setprofile(lambda *a: None),
    "trace": lambda: sys.settrace(lambda *a: None),
    "thread profile": lambda: threading.setprofile(lambda *a: None),
    "thread trace": lambda: threading.settrace(lambda *a: None),
    "excepthook": lambda: setattr(sys, "excepthook", print),
    "thread excepthook": lambda: setattr(threading, "excepthook", print),
    "displayhook": lambda: setattr(sys, "displayhook", print),
    "unraisable": lambda: setattr(sys, "unraisablehook", print),
    "switch interval": lambda: sys.setswitchinterval(0.5),
    "recursion": lambda: sys.setrecursionlimit(5000),
    "putenv": lambda: os.putenv("LEFT", "there"),
    "unsetenv": lambda: os.unsetenv("PATH"),
    "environ": lambda: os.environ.update(LEFT="there"),
    "zone": lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()),
    "stdin": lambda: setattr(sys, "stdin", None),
    "argv": lambda: sys.argv.append("left"),
    "path": lambda: sys.path.append("/left"),
    "meta path": lambda: sys.meta_path.append(object()),
    "builtins": lambda: setattr(builtins, "left", 1),
    "import": lambda: setattr(builtins, "__import__", functools.partial(builtins.__import__)),
    "socket": lambda: socket.setdefaulttimeout(3),
    "folder": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o111),
    "handler": lambda: signal.signal(signal.SIGUSR1, print),
    "timer": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 1000),
    "bytecode": lambda: setattr(sys, "dont_write_bytecode", True),
    "stack": lambda: threading.stack_size(1 << 20),
    "thread": lambda: threading.Thread(target=time.sleep, args=(100,), daemon=True).start(),
    "nice": lambda: os.nice(1),
    "random": lambda: random.seed(7),
}
if hasattr(sys, "set_int_max_str_digits"):
    CHANGES["digits"] = lambda: sys.set_int_max_str_digits(0)

@task
def prints(kind: str):
    PRINTS[kind]()

@task
def changes(kind: str):
    CHANGES[kind]()

@task
def feel():
    umask = os.umask(0)
    os.umask(umask)
    context = decimal.getcontext()
    hooks = [getattr(hook, "__name__", str(hook)) for hook in (
        sys.excepthook, threading.excepthook, sys.displayhook, sys.unraisablehook, warnings.showwarning,
        logging.getLogRecordFactory(), builtins.__import__)]
    state = {
        "streams": [(s.encoding, s.errors, s.newlines, s.line_buffering) for s in (sys.stdout, sys.stderr)],
        "stdin": sys.stdin is not None, "method": multiprocessing.get_start_method(allow_none=True),
        "logging": [logging.root.manager.disable, logging.root.level, len(logging.root.handlers)],
        "warnings": [str(row[:1]) for row in warnings.filters], "hooks": hooks,
        "locale": locale.setlocale(locale.LC_ALL), "zone": time.tzname, "prec": context.prec,
        "traps": sorted(str(trap) for trap, is_set in context.traps.items() if is_set),
        "gc": [gc.isenabled(), gc.get_threshold()], "fault": faulthandler.is_enabled(),
        "traces": [str(sys.getprofile()), str(sys.gettrace()), str(threading._trace_hook),
                   str(threading._profile_hook)],
        "limits": [sys.getswitchinterval(), sys.getrecursionlimit(), socket.getdefaulttimeout(),
                   getattr(sys, "get_int_max_str_digits", int)(), threading.stack_size()],
        "environment": os.popen("env | grep -v ^_= | sort").read(), "argv": sys.argv, "path": sys.path,
        "finders": len(sys.meta_path), "left": hasattr(builtins, "left"), "cwd": os.getcwd(), "umask": umask,
        "handler": str(signal.getsignal(signal.SIGUSR1)), "timer": signal.getitimer(signal.ITIMER_VIRTUAL),
        "bytecode": sys.dont_write_bytecode, "threads": threading.active_count(), "nice": os.nice(0),
        "foreseen": random.random() == random.Random(7).random()}
    print("mine \\u00e9")
    return state
'''
PRINTED = (
    "wrapped", "opened", "fdopen", "detached", "stderr detached", "closed", "none", "original", "early",
    "unended", "default", "partial", "bytes", "c", "block buffered",
)


class Neighbours(ProcessCase):
    settings = {"linger": 5, "NbMaxWorker": 1, "nice": 0}

    @classmethod
    def setUpClass(cls):
        cls.site = Site(TASKS, **cls.settings)
        cls.addClassCleanup(cls.site.close)
        for name in ("bea", "ben"):
            cls.site.run("user", "add", name, given="correct horse battery\n")

    def run_pairs(self, function, kinds):
        """Run each as bea's task and ben's `feel` after it; pairs of rows by kind."""
        requests = []
        for kind in kinds:
            requests.append({"function": function, "arguments": {"kind": kind}, "owner": "bea"})
            requests.append({"function": "feel", "arguments": {}, "owner": "ben"})
        text = (
            "import json, sys\nfrom jobqueue import JobQueue\nqueue = JobQueue()\n"
            "print(json.dumps([queue.enqueue(r['function'], r['arguments'], owner=r['owner']).id"
            " for r in json.load(sys.stdin)]))"
        )
        ids = json.loads(self.site.python(text, given=json.dumps(requests)))
        self.wait_for_all(ids)
        return {kind: (self.row(ids[2 * n]), self.row(ids[2 * n + 1])) for n, kind in enumerate(kinds)}


    def test_what_is_printed_is_in_the_log_of_the_task_that_printed_it(self):
        for kind, (printed, felt) in self.run_pairs("prints", PRINTED).items():
            with self.subTest(kind):
                self.assertEqual((printed["status"], felt["status"], felt["crashes"]), (2, 2, 0),
                                 felt["error_message"])
                self.assertIn("secret", self.log(printed["id"]))
                self.assertEqual(self.log(felt["id"]), "mine é\n")

    def test_a_neighbour_feels_what_it_feels_in_a_fresh_process(self):
        text = "import json, sys; sys.argv = ['x']; import tasks; print(json.dumps(list(tasks.CHANGES)))"
        kinds = json.loads(self.site.python(text))
        self.assertGreaterEqual(len(kinds), 40)
        pairs = self.run_pairs("changes", kinds)
        fresh = json.loads(self.run_pairs("prints", ["default"])["default"][1]["result"])
        for kind, (changed, felt) in pairs.items():
            with self.subTest(kind):
                self.assertEqual((changed["status"], felt["status"], felt["crashes"]), (2, 2, 0),
                                 (changed["error_message"], felt["error_message"]))
                state = json.loads(felt["result"])
                self.assertEqual({name: state[name] for name in state if state[name] != fresh[name]}, {})


class Importers(ProcessCase):
    """Tasks that import modules only when they run."""

    settings = {"linger": 5, "NbMaxWorker": 1, "nice": 0}
    MODULES = ("subprocess", "locale", "decimal", "logging", "multiprocessing", "asyncio", "sqlite3", "ssl",
               "csv", "urllib.request", "concurrent.futures", "email.message", "zoneinfo", "ctypes")

    @classmethod
    def setUpClass(cls):
        cls.site = Site("""
import importlib, os
from jobqueue import task

@task
def use(module: str):
    importlib.import_module(module)
    return os.getpid()
""", **cls.settings)
        cls.addClassCleanup(cls.site.close)

    def test_a_late_import_costs_no_runner(self):
        ids = [self.site.add("use", module=module) for module in self.MODULES]
        self.wait_for_all(ids)
        runners = {module: self.row(task_id)["result"] for module, task_id in zip(self.MODULES, ids)}
        self.assertEqual(len(set(runners.values())), 1, runners)


if __name__ == "__main__":
    unittest.main()
