"""From a signature to a schema and back; commands without a shell; HTTP requests. (worker.py)"""

import errno
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import typing
import unittest
from datetime import date, datetime, time as clock_time
from enum import Enum
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest import mock

from tests.helpers.support import FakeContext, TestCase

import jobqueue
import worker
from jobqueue import Fail, RetryAfter, TaskContext, check_value


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


def schema_of(target):
    """The schema of a Python function, without declaring it."""
    function = jobqueue.Function(getattr(target, "__name__", "x"), "python", target, {}, "user", None)
    return worker.Parameters(function).schema()


def property_of(kind, *default):
    """The schema of one parameter with this type hint, and maybe a default."""

    def target(x):
        pass

    target.__annotations__ = {"x": kind}
    target.__defaults__ = default or None
    return schema_of(target)["properties"]["x"]


def convert(kind, value):
    """What a function with this hint gets for a JSON value."""

    def target(x):
        pass

    target.__annotations__ = {"x": kind}
    function = jobqueue.Function("x", "python", target, {}, "user", None)
    return worker.Parameters(function).convert({"x": value})["x"]


class TestTypes(unittest.TestCase):
    def test_simple_types(self):
        for kind, schema in (
            (str, {"type": "string"}),
            (int, {"type": "integer"}),
            (float, {"type": "number"}),
            (bool, {"type": "boolean"}),
            (list, {"type": "array"}),
            (typing.Tuple[str, int], {
                "type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "minItems": 2, "maxItems": 2}),
            (dict, {"type": "object"}),
            (date, {"type": "string", "format": "date"}),
            (datetime, {"type": "string", "format": "date-time"}),
            (clock_time, {"type": "string", "format": "time"}),
            (Path, {"type": "string", "format": "file"}),
        ):
            self.assertEqual(property_of(kind), schema, kind)

    def test_lists_say_what_is_in_them(self):
        items = {"type": "array", "items": {"type": "integer"}}
        for kind in (typing.List[int], list[int], typing.Set[int], typing.Tuple[int, ...]):
            self.assertEqual(property_of(kind), items, kind)
        self.assertEqual(property_of(typing.List[typing.List[str]])["items"]["items"], {"type": "string"})

    def test_dictionaries_are_objects(self):
        for kind in (typing.Dict[str, int], dict[str, int]):
            self.assertEqual(property_of(kind), {"type": "object",
                                                 "additionalProperties": {"type": "integer"}})

    def test_choices(self):
        self.assertEqual(property_of(typing.Literal["a", "b", 3]), {"enum": ["a", "b", 3]})
        self.assertEqual(property_of(Colour), {"enum": ["red", "blue"], "enumNames": ["RED", "BLUE"]})
        self.assertEqual(property_of(Level), {"enum": [1, 2], "enumNames": ["LOW", "HIGH"]})

    def test_what_may_be_missing(self):
        self.assertEqual(property_of(typing.Optional[int]), {"type": ["integer", "null"]})
        self.assertEqual(property_of(typing.Union[None, str]), {"type": ["string", "null"]})
        self.assertEqual(property_of(typing.Optional[typing.Literal["a"]]), {"enum": ["a", None]})
        self.assertEqual(property_of(typing.Optional[Colour]),
                         {"enum": ["red", "blue", None], "enumNames": ["RED", "BLUE"]})
        self.assertEqual(property_of(typing.Optional[date]), {"type": ["string", "null"], "format": "date"})

    def test_new_unions_are_read_as_text_on_every_python(self):
        for text in ("int | None", "None | int", "int|None", "Optional[int]"):
            self.assertEqual(
                property_of(text.replace("Optional", "__import__('typing').Optional")),
                {"type": ["integer", "null"]},
                text,
            )

    @unittest.skipIf(sys.version_info < (3, 10), "types have no | before Python 3.10")
    def test_new_unions_are_read(self):
        self.assertEqual(property_of(int | None), {"type": ["integer", "null"]})

    def test_several_types_that_json_tells_apart(self):
        self.assertEqual(property_of(typing.Union[str, int]), {"type": ["integer", "string"]})
        self.assertEqual(property_of(typing.Union[int, str, None]), {"type": ["integer", "string", "null"]})

    def test_what_takes_anything(self):
        for kind in (typing.Any, object):
            self.assertEqual(property_of(kind), {}, kind)

    def test_what_is_not_understood_is_named(self):
        for kind, name in ((typing.Callable, "typing.Callable"), ("Nonsense", "Nonsense"),
                           (complex, "complex"), (typing.Union[str, date], "str | datetime.date"),
                           (Exception, "Exception")):
            self.assertEqual(property_of(kind), {"unclear": name}, kind)

    def test_annotated_types_are_read_through(self):
        self.assertEqual(property_of(typing.Annotated[int, "a note"]),
                         {"type": "integer", "description": "a note"})

    def test_every_schema_is_json(self):
        for kind in (int, typing.List[date], Colour, typing.Optional[Level], typing.Dict[str, typing.Any]):
            json.dumps(property_of(kind))


class TestSignatures(unittest.TestCase):
    def test_order_required_and_defaults(self):
        def target(city: str, month: date, detailed: bool = False, *, n: int = 3):
            pass

        schema = schema_of(target)
        self.assertEqual(list(schema["properties"]), ["city", "month", "detailed", "n"])
        self.assertEqual(schema["required"], ["city", "month"])
        self.assertEqual(
            (schema["properties"]["detailed"]["default"], schema["properties"]["n"]["default"]), (False, 3)
        )
        self.assertFalse(schema["additionalProperties"])

    def test_without_a_hint_the_default_tells_the_type(self):
        def target(a, b=3, c="x", d=2.5, e=True, f=None, g=Colour.RED):
            pass

        properties = schema_of(target)["properties"]
        self.assertEqual(properties["a"], {})
        self.assertEqual(
            [properties[name].get("type") for name in "bcde"], ["integer", "string", "number", "boolean"]
        )
        self.assertEqual((properties["g"]["enum"], properties["g"]["default"]), (["red", "blue"], "red"))

    def test_a_default_of_none_allows_null(self):
        def target(n: int = None, kind: typing.Literal["a"] = None, x=None):
            pass

        properties = schema_of(target)["properties"]
        self.assertEqual(properties["n"], {"type": ["integer", "null"], "default": None})
        self.assertEqual(properties["kind"]["enum"], ["a", None])
        for name, value in (("n", None), ("x", None), ("x", "text")):
            self.assertEqual(check_value(properties[name], value, name), [])

    def test_a_default_that_has_no_json_is_left_out(self):
        def target(x=object(), y: float = float("inf")):
            pass

        schema = schema_of(target)
        self.assertEqual(schema["required"], [])
        self.assertNotIn("default", schema["properties"]["x"])
        self.assertNotIn("default", schema["properties"]["y"])

    def test_every_default_passes_its_own_schema(self):
        def target(
            a: int = 3,
            b: typing.Optional[date] = None,
            c: Colour = Colour.BLUE,
            d: typing.List[int] = (),
            e: float = 1,
            f: Level = Level.LOW,
            g: date = date(2026, 1, 31),
            h: str = None,
        ):
            pass

        for name, schema in schema_of(target)["properties"].items():
            self.assertEqual(check_value(schema, schema["default"], name), [], name)

    def test_any_further_names_are_allowed_by_kwargs_only(self):
        def many(a: int, **rest):
            pass

        def star(a: int, *rest):
            pass

        self.assertTrue(schema_of(many)["additionalProperties"])
        self.assertEqual(list(schema_of(many)["properties"]), ["a"])
        self.assertEqual(list(schema_of(star)["properties"]), ["a", "rest"])
        self.assertFalse(schema_of(star)["additionalProperties"])

    def test_a_broken_hint_spoils_only_itself(self):
        def target(
            a: "Nonsense",  # noqa: F821
            b: int,
            c: "int | None" = None,
            d: "date" = None,
        ):
            pass

        properties = schema_of(target)["properties"]
        self.assertEqual(properties["a"], {"unclear": "Nonsense"})
        self.assertEqual(properties["b"], {"type": "integer"})
        self.assertEqual(properties["c"]["type"], ["integer", "null"])
        self.assertEqual(properties["d"]["format"], "date")

    def test_secrets_are_password_fields(self):
        def target(password: str, api_key: str = "", n_token: int = 0):
            pass

        properties = schema_of(target)["properties"]
        self.assertEqual(
            (properties["password"]["format"], properties["api_key"]["format"]), ("password", "password")
        )
        self.assertNotIn("format", properties["n_token"])

    def test_no_parameters(self):
        self.assertEqual(
            schema_of(lambda: None),
            {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        )


class TestDocstrings(unittest.TestCase):
    def helps(self, text):
        def target(city, month=1):
            pass

        target.__doc__ = text
        return {name: schema.get("description") for name, schema in schema_of(target)["properties"].items()}

    def test_the_style_of_google(self):
        self.assertEqual(
            self.helps(
                "Write it.\n\n    Args:\n        city: where it is\n        month (int): which one\n\n"
                "    Returns:\n        nothing: at all\n"
            ),
            {"city": "where it is", "month": "which one"},
        )

    def test_the_style_of_numpy(self):
        self.assertEqual(
            self.helps(
                "Write it.\n\n    Parameters\n    ----------\n    city : str\n        where it is\n"
                "    month : int, optional\n        which one\n\n    Returns\n    -------\n    int\n"
            ),
            {"city": "where it is", "month": "which one"},
        )

    def test_the_style_of_sphinx(self):
        self.assertEqual(
            self.helps(
                "Write it.\n\n    :param city: where it is\n    :param int month: which one\n"
                "    :returns: nothing\n"
            ),
            {"city": "where it is", "month": "which one"},
        )

    def test_no_docstring(self):
        self.assertEqual(self.helps(None), {"city": None, "month": None})

    def test_title_and_description_leave_the_sections_out(self):
        def report(city):
            """Write the report.

            It takes a while.

            Args:
                city: where
            """

        described = worker.describe(jobqueue.Function("report", "python", report, {}, "user", None))
        self.assertEqual(
            (described["title"], described["description"]), ("Write the report.", "It takes a while.")
        )

    def test_without_a_docstring_the_name_is_the_title(self):
        described = worker.describe(
            jobqueue.Function("write_report", "python", lambda: None, {}, "user", None)
        )
        self.assertEqual((described["title"], described["description"]), ("write report", ""))


class TestConversion(unittest.TestCase):
    def test_a_function_gets_what_its_hints_say(self):
        for kind, value, wanted in (
            (date, "2026-01-31", date(2026, 1, 31)),
            (clock_time, "14:30", clock_time(14, 30)),
            (Path, "a/b", Path("a/b")),
            (int, 3.0, 3),
            (float, 3, 3.0),
            (Colour, "blue", Colour.BLUE),
            (Colour, "BLUE", Colour.BLUE),
            (Level, 2, Level.HIGH),
            (typing.Optional[date], "2026-01-31", date(2026, 1, 31)),
            (typing.List[date], ["2026-01-31"], [date(2026, 1, 31)]),
            (set, [1, 2, 2], {1, 2}),
            (typing.Set[int], [1, 2], {1, 2}),
            (typing.Tuple[int, ...], [1, 2], (1, 2)),
            (typing.Tuple[str, date], ["a", "2026-01-31"], ("a", date(2026, 1, 31))),
            (typing.Optional[int], None, None),
            (str, "x", "x"),
            (dict, {"a": 1}, {"a": 1}),
        ):
            found = convert(kind, value)
            self.assertEqual((found, type(found)), (wanted, type(wanted)), kind)

    def test_a_tuple_of_several_types_has_a_place_for_each(self):
        with self.assertRaisesRegex(ValueError, "must have 2 values, not 3"):
            convert(typing.Tuple[str, int], ["a", 1, 2])

    def test_a_moment_keeps_its_offset(self):
        found = convert(datetime, "2026-01-31T12:00:00Z")
        self.assertEqual(found.isoformat(), "2026-01-31T12:00:00+00:00")

    def test_a_moment_with_a_short_fraction_is_read_on_every_python(self):
        self.assertEqual(convert(datetime, "2026-01-31T12:00:00.5Z").microsecond, 500_000)
        self.assertEqual(convert(datetime, "2026-01-31T12:00:00.123Z").microsecond, 123_000)


class TestTasksFile(TestCase):
    """What is wrong with tasks.py is told with file and line; a child reads it, as in life."""

    def announce(self, text, **files):
        for name, content in {"tasks.py": text, **files}.items():
            if content is not None:
                (self.folder / name).write_text(content)
        for name in ("jobqueue.py", "worker.py"):
            if not (self.folder / name).exists():
                (self.folder / name).write_bytes((jobqueue.HOME / name).read_bytes())
        done = subprocess.run(
            [sys.executable, "worker.py", "--catalogue"],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        return json.loads(done.stdout)

    def test_the_functions_come_in_the_order_of_the_file(self):
        said = self.announce(
            "from jobqueue import *\nfrom jobqueue import task, command, http_request\nimport sys\n"
            "@task\ndef b(x: int): pass\ncommand('a', [sys.executable, '{n}'], n=int)\n"
            "http_request('c', 'GET', 'https://example.org/{id}', id=int)\n"
        )
        self.assertIsNone(said["error"])
        self.assertEqual([function["name"] for function in said["functions"]], ["b", "a", "c"])
        self.assertEqual(said["files"], [str(Path(os.path.realpath(self.folder)) / "tasks.py")])

    def test_programs_and_requests_have_a_title_a_description_and_help(self):
        said = self.announce(
            "from jobqueue import command, http_request, external\n"
            "command('detect', ['./detect', '{latitude}'], latitude=float, timeout=60,\n"
            "        description='Find ships.\\n\\nIt takes an hour.',\n"
            "        help={'latitude': 'North is positive.'})\n"
            "http_request('ask', 'GET', 'https://example.org/', q=str, help={'q': 'Words.'})\n"
            "external('render', queue='gpu', description='Render a film.', scene=str)\n"
            "command('old', ['./old', '{description}', '{help}'], description='none', help=str)\n"
        )
        detect, ask, render, old = said["functions"]
        self.assertEqual((detect["title"], detect["description"]), ("Find ships.", "It takes an hour."))
        self.assertEqual(detect["schema"]["properties"]["latitude"]["description"], "North is positive.")
        self.assertEqual((ask["title"], ask["schema"]["properties"]["q"]["description"]), ("ask", "Words."))
        self.assertEqual(render["title"], "Render a film.")
        self.assertEqual(sorted(old["schema"]["properties"]), ["description", "help"])

    def test_help_for_a_parameter_that_is_none_is_refused(self):
        said = self.announce("from jobqueue import command\n"
                             "command('a', ['./a', '{n}'], n=int, help={'m': 'How many.'})\n")
        self.assertIn("help names m, which is no parameter", said["error"]["message"])
        self.assertEqual(said["error"]["line"], 2)

    def test_a_syntax_error_is_told_with_its_line(self):
        said = self.announce("from jobqueue import task\n\ndef (:\n")
        self.assertEqual((said["error"]["file"], said["error"]["line"]), ("tasks.py", 3))
        self.assertIn("SyntaxError", said["error"]["message"])

    def test_an_exception_is_told_with_the_line_of_the_owners_file(self):
        said = self.announce(
            "import helper\n", **{"helper.py": "x = 1\n\nraise ValueError('no \\ud800 way')\n"}
        )
        self.assertEqual((said["error"]["file"], said["error"]["line"]), ("helper.py", 3))
        self.assertIn("ValueError: no", said["error"]["message"])

    def test_half_an_upload_and_sys_exit_are_told_too(self):
        for text in (
            "import sys\nsys.exit('bye')\n",
            "raise KeyboardInterrupt\n",
            "x = '''\n",
            "import nonsense\n",
            "from jobqueue import task\n@task(retries=3)\ndef f(): pass\n",
        ):
            with self.subTest(text):
                said = self.announce(text)
                self.assertTrue(said["error"]["message"])
                self.assertNotIn("functions", said)

    def test_what_tasks_py_prints_does_not_disturb(self):
        said = self.announce(
            "import os, sys\nprint('hello')\nsys.stderr.write('x')\nos.write(1, b'{}')\n"
            "from jobqueue import task\n@task\ndef f(): pass\n"
        )
        self.assertEqual([function["name"] for function in said["functions"]], ["f"])

    def test_without_a_tasks_py_there_are_samples(self):
        said = self.announce(None)
        self.assertTrue(said["samples"])
        self.assertIn("add", [function["name"] for function in said["functions"]])

    def test_the_files_that_tasks_py_imports_are_told(self):
        said = self.announce("import helper\n", **{"helper.py": "x = 1\n"})
        self.assertEqual([os.path.basename(name) for name in said["files"]], ["helper.py", "tasks.py"])


class TestCommands(TestCase):
    def run_it(self, arguments, values, parameters=None):
        """The argument list that the program got."""
        out = self.folder / "argv"
        script = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(%r, 'w'))" % str(out)
        function = jobqueue.Function(
            "x",
            "command",
            [sys.executable, "-c", script, *arguments],
            {},
            "user",
            parameters or {name: str for name in values},
        )
        self.result = worker.run_command(function, values, FakeContext)
        found, self.environ = json.loads(out.read_text())
        return found

    def test_a_host_that_allows_no_process_more_is_asked_again_later(self):
        for number, error in ((errno.EAGAIN, RetryAfter), (errno.ENOENT, worker.CommandFailed)):
            with mock.patch("subprocess.run", side_effect=OSError(number, "no")), \
                    self.assertRaises(error) as caught:
                worker.run_program(["convert", "a"], FakeContext)
            if error is RetryAfter:
                self.assertEqual(str(caught.exception), "convert could not be started (process limit)")
                self.assertEqual(caught.exception.seconds, worker.START_AGAIN_SECONDS)

    def nasty_texts(self):
        """A hundred texts that a shell would not leave alone."""
        fixed = [
            "; touch canary",
            "$(touch canary)",
            "`touch canary`",
            "| touch canary",
            "&& touch canary",
            "> canary",
            "< /dev/null",
            "* ? [a-z]",
            "~root",
            "$HOME ${HOME}",
            "'",
            '"',
            "\\",
            "a b  c",
            "\t",
            "line\nbreak",
            "\r",
            "!!",
            "#",
            "%s %d",
            "{x}",
            "{{x}}",
            "é日本😀",
            "",
            " ",
            "a=b",
            "\x7f\x1b[31m",
        ]
        chance = random.Random(5)
        signs = "abc $`\"'\\|&;<>(){}[]*?!~#%\n\t=^,é"
        return fixed + ["".join(chance.choice(signs) for _ in range(12)) for _ in range(100 - len(fixed))]

    def test_a_hundred_nasty_texts_arrive_unchanged(self):
        texts = self.nasty_texts()
        names = ["p%d" % number for number in range(len(texts))]
        found = self.run_it(["--p={%s}" % name for name in names], dict(zip(names, texts)))
        self.assertEqual(found, ["--p=" + text for text in texts])
        self.assertFalse((self.folder / "canary").exists() or Path("canary").exists())

    def test_a_text_stays_one_argument_also_when_it_stands_alone(self):
        texts = self.nasty_texts()
        names = ["p%d" % number for number in range(len(texts))]
        self.assertEqual(self.run_it(["{%s}" % name for name in names], dict(zip(names, texts))), texts)

    def test_a_place_in_a_value_is_no_place(self):
        self.assertEqual(self.run_it(["{a}", "{b}"], {"a": "{b}", "b": "x"}), ["{b}", "x"])

    def test_a_list_becomes_several_arguments_and_null_none(self):
        self.assertEqual(
            self.run_it(["a", "{many}", "{none}", "z"], {"many": ["x", "y z"], "none": None}),
            ["a", "x", "y z", "z"],
        )

    def test_values_are_written_as_programs_read_them(self):
        values = {"n": 3, "x": 2.5, "yes": True, "no": False, "day": date(2026, 1, 31)}
        self.assertEqual(
            self.run_it(["{%s}" % name for name in values], values),
            ["3", "2.5", "true", "false", "2026-01-31"],
        )

    def test_the_program_is_told_its_task(self):
        self.run_it([], {})
        self.assertEqual(
            (
                self.environ["JOBQUEUE_TASK_ID"],
                self.environ["JOBQUEUE_ATTEMPT"],
                self.environ["JOBQUEUE_CLAIM"],
            ),
            ("7", "2", "token"),
        )
        self.assertEqual(self.result, {"exit_code": 0})

    def test_an_exit_code_is_an_error_and_a_signal_too(self):
        for code, words in ("sys.exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "signal 9"):
            function = jobqueue.Function(
                "x", "command", [sys.executable, "-c", "import os, sys; " + code], {}, "user", {}
            )
            with self.assertRaisesRegex(worker.CommandFailed, words):
                worker.run_command(function, {}, FakeContext)

    def test_a_missing_program_is_an_error(self):
        function = jobqueue.Function("x", "command", ["/nonsense/program"], {}, "user", {})
        with self.assertRaisesRegex(worker.CommandFailed, "program was not found in /nonsense"):
            worker.run_command(function, {}, FakeContext)

    def test_a_value_that_would_be_an_option_is_refused_where_it_stands_alone(self):
        def schema(arguments):
            function = jobqueue.Function("x", "command", arguments, {}, "user", {"a": str})
            return worker.Parameters(function).schema()["properties"]["a"]

        for arguments in (["x", "{a}"], ["x", "{a}", "--"]):
            self.assertTrue(check_value(schema(arguments), "--delete", "a"))
            self.assertTrue(check_value(schema(arguments), "-", "a"))
            for fine in ("delete", "a-b", "", "a\n-b"):
                self.assertEqual(check_value(schema(arguments), fine, "a"), [], fine)
        for arguments in (["x", "--", "{a}"], ["x", "--name={a}"]):
            self.assertEqual(check_value(schema(arguments), "--delete", "a"), [])

    def test_an_option_hidden_in_a_list_is_refused_too(self):
        function = jobqueue.Function("x", "command", ["x", "{a}"], {}, "user", {"a": typing.List[str]})
        schema = worker.Parameters(function).schema()["properties"]["a"]
        self.assertTrue(check_value(schema, ["fine", "--delete"], "a"))

    def test_an_option_hidden_in_an_optional_or_untyped_value_is_refused_too(self):
        for given in (typing.Optional[str], None, typing.Union[int, str], typing.Literal["a", "b"]):
            function = jobqueue.Function("x", "command", ["x", "{a}"], {}, "user", {"a": given})
            schema = worker.Parameters(function).schema()["properties"]["a"]
            self.assertTrue(check_value(schema, "--delete", "a"), given)


class Handler(BaseHTTPRequestHandler):
    """A server that answers what the path says, and remembers what it was asked."""

    asked = []

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        kind, _, rest = self.path.lstrip("/").partition("/")
        status, headers, body = {
            "json": (200, {"Content-Type": "application/json"}, b'{"a": [1, 2]}'),
            "text": (200, {"Content-Type": "text/plain"}, "Åse".encode()),
            "broken": (200, {"Content-Type": "application/json"}, b'{"a": '),
            "nothing": (204, {}, b""),
            "missing": (404, {}, b"no such thing"),
            "error": (500, {}, b"oops"),
            "busy": (503, {"Retry-After": "7"}, b"later"),
            "slow": (429, {"Retry-After": "3"}, b""),
            "soon": (503, {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}, b""),
            "zero": (503, {"Retry-After": "0"}, b""),
            "odd": (429, {"Retry-After": "\u00b2"}, b""),
            "fraction": (503, {"Retry-After": "0.493"}, b""),
            "cut": (200, {"Content-Length": "29", "Content-Type": "application/json"}, b'{"ids": [1, '),
            "file": (302, {"Location": "file:///etc/hostname"}, b""),
            "ftp": (302, {"Location": "ftp://127.0.0.1/x"}, b""),
            "moved": (302, {"Location": "/json"}, b""),
            "loop": (302, {"Location": "/loop"}, b""),
            "large": (200, {}, b"x" * (worker.ANSWER_MAX_BYTES + 100)),
        }[kind.partition("?")[0]]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


class TestPrograms(unittest.TestCase):
    """A program that cannot be started says why."""

    def explained(self, program, content=None, mode=0o755):
        with tempfile.TemporaryDirectory() as folder:
            if content is not None:
                program = os.path.join(folder, program)
                with open(program, "wb") as file:
                    file.write(content)
                os.chmod(program, mode)
            context = mock.Mock(id=1, attempt=1, claim="c", folder=folder)
            with self.assertRaises(worker.CommandFailed) as caught:
                worker.run_program([program], context)
            return str(caught.exception)

    def test_one_that_is_not_in_the_path(self):
        self.assertRegex(self.explained("no-such-tool"), "^no-such-tool was not found; PATH is .+")

    def test_one_that_is_not_there(self):
        self.assertIn("such was not found in /no", self.explained("/no/such"))

    def test_a_script_with_the_line_ends_of_windows(self):
        self.assertIn("those of Windows", self.explained("x.sh", b"#!/bin/sh\r\necho\r\n"))

    def test_a_script_whose_interpreter_is_missing(self):
        self.assertIn("not there: /usr/bin/nope", self.explained("x", b"#!/usr/bin/nope\n"))

    def test_a_file_that_is_no_program(self):
        self.assertIn("begins with #!", self.explained("x", b"\0\1"))

    def test_one_without_the_right_to_run(self):
        self.assertIn("rights 755", self.explained("x", b"#!/bin/sh\n", 0o644))

    def test_one_that_is_killed_names_the_signal(self):
        self.assertIn("signal 9 (SIGKILL); the usual cause is too little memory",
                      self.explained("x", b"#!/bin/sh\nkill -9 $$\n"))


class TestRequests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = HTTPServer(("127.0.0.1", 0), Handler)
        cls.thread = threading.Thread(target=cls.server.serve_forever, args=(0.02,), daemon=True)
        cls.thread.start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()
        cls.thread.join()

    def setUp(self):
        Handler.asked.clear()
        printing = mock.patch("builtins.print")
        self.printed = printing.start()
        self.addCleanup(printing.stop)

    def send(self, path, method="GET", headers=None, parameters=None, **values):
        address = "http://127.0.0.1:%d/%s" % (self.server.server_address[1], path)
        target = {"method": method, "address": address, "headers": dict(headers or {})}
        function = jobqueue.Function("x", "http_request", target, {}, "user", parameters or {})
        with mock.patch.dict("os.environ", {"http_proxy": "http://127.0.0.1:1/"}):
            return worker.run_request(function, values, FakeContext)

    def test_json_is_the_result(self):
        self.assertEqual(self.send("json"), {"a": [1, 2]})

    def test_text_is_the_result(self):
        self.assertEqual(self.send("text"), "Åse")

    def test_json_that_is_none_is_kept_as_text(self):
        self.assertEqual(self.send("broken"), '{"a": ')

    def test_nothing_is_nothing(self):
        self.assertIsNone(self.send("nothing"))

    def test_404_fails_for_good_and_the_log_has_the_answer(self):
        with self.assertRaisesRegex(Fail, "answered 404"):
            self.send("missing")
        self.printed.assert_called_with("no such thing")

    def test_500_may_be_retried(self):
        with self.assertRaisesRegex(worker.CommandFailed, "answered 500"):
            self.send("error")

    def test_the_server_may_say_when_to_come_again(self):
        for path, seconds in (("busy", 7), ("slow", 3)):
            with self.assertRaises(RetryAfter) as caught:
                self.send(path)
            self.assertEqual(caught.exception.seconds, seconds)

    def test_a_date_says_when_to_come_again_too(self):
        with mock.patch("worker.time.time", lambda: 1830297599.0 - 600):    # 600 s before that date
            with self.assertRaises(RetryAfter) as caught:
                self.send("soon")
        self.assertEqual(caught.exception.seconds, 600)

    def test_what_is_no_pause_leaves_the_usual_delay_and_names_the_status(self):
        for path, words in (("zero", "answered 503"), ("odd", "answered 429")):
            with self.subTest(path), self.assertRaisesRegex(worker.CommandFailed, words):
                self.send(path)
        with self.assertRaises(RetryAfter) as caught:
            self.send("fraction")
        self.assertEqual(caught.exception.seconds, 1)

    def test_an_answer_that_breaks_off_may_be_retried(self):
        with self.assertRaisesRegex(worker.CommandFailed, "broke off after 12 of 29 bytes"):
            self.send("cut")

    def test_a_redirect_is_not_followed(self):
        for path in ("moved", "file", "ftp", "loop"):
            with self.subTest(path), self.assertRaisesRegex(Fail, "no redirect"):
                self.send(path)
        self.assertEqual(len(Handler.asked), 4)

    def test_an_answer_that_is_too_large_fails_for_good(self):
        with self.assertRaisesRegex(Fail, "larger than"):
            self.send("large")

    def test_values_fill_the_path_and_cannot_leave_their_place(self):
        self.send("json/{a}", a=".a/x?y=1&z#/é ")
        self.assertEqual(Handler.asked[0][1], "/json/.a%2Fx%3Fy%3D1%26z%23%2F%C3%A9%20")

    def test_other_values_become_the_query_of_a_get(self):
        self.send("json/{a}?k=v", a=1, b="x y&", c=True)
        self.assertEqual(Handler.asked[0][1], "/json/1?k=v&b=x+y%26&c=true")

    def test_other_values_become_the_json_body_of_a_post(self):
        self.send("json/{a}", "POST", a=1, b="é", c=[1])
        method, path, headers, body = Handler.asked[0]
        self.assertEqual(
            (method, path, headers["Content-Type"], json.loads(body)),
            ("POST", "/json/1", "application/json", {"b": "é", "c": [1]}),
        )

    def test_a_request_can_be_recognised_when_it_is_repeated(self):
        self.send("json", headers={"X-Key": "k"})
        headers = Handler.asked[0][2]
        self.assertEqual((headers["Idempotency-Key"], headers["X-Key"]), ("task-7", "k"))

    def test_a_server_that_is_not_there_is_an_error(self):
        target = {"method": "GET", "address": "http://127.0.0.1:1/", "headers": {}}
        function = jobqueue.Function("x", "http_request", target, {}, "user", {})
        with self.assertRaises(OSError):
            worker.run_request(function, {}, FakeContext)

    def test_the_context_of_a_real_task_serves(self):
        context = TaskContext(7, "bob", 1, 0, "token", "/nonsense", None, None)
        self.assertEqual(context.id, FakeContext.id)


if __name__ == "__main__":
    unittest.main()
