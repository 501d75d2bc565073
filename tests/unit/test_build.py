"""src/build.py makes the two files of the rooms, refuses rooms that do not fit, and finds lines again."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from tests.helpers.support import ROOT, need_part

FILES = ("jobqueue.py", "worker.py")
ERRORS = "base/errors"                  # a room that the seeded faults are put into


def setUpModule():
    need_part("source")


class Checkout(unittest.TestCase):
    """A copy of the sources, in which a test may put a fault."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue test "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        shutil.copytree(ROOT / "src", self.folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, self.folder / name)

    def path(self, room):
        return self.folder / "src" / (room + ".py")

    def seed(self, room, old, new):
        """Replace a text in a room; return the line at which it begins."""
        text = self.path(room).read_text("utf-8")
        self.assertEqual(text.count(old), 1)
        self.path(room).write_text(text.replace(old, new), "utf-8")
        return text[:text.index(old)].count("\n") + 1

    def append(self, room, code):
        """Add code at the end of a room; return the line at which it begins."""
        text = self.path(room).read_text("utf-8")
        self.path(room).write_text(text + code, "utf-8")
        return text.count("\n") + 1

    def run_build(self, *arguments, words=None):
        return subprocess.run([sys.executable, "-B", str(self.folder / "src" / "build.py"), *arguments],
                              input=words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")

    def assert_refused(self, *faults, arguments=("--check",)):
        """The build says just these faults, and leaves the built files as they were."""
        done = self.run_build(*arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "".join(
            fault + "\n" for fault in faults)))
        for name in FILES:
            self.assertEqual((self.folder / name).read_bytes(), (ROOT / name).read_bytes())


class TestCheck(Checkout):
    def test_the_built_files_are_as_their_rooms_say(self):
        done = self.run_build("--check")
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_a_changed_built_file_is_refused_with_its_line_and_room(self):
        text = (self.folder / "jobqueue.py").read_text("utf-8")
        (self.folder / "jobqueue.py").write_text(text.replace("def wrong(field", "def false(field"), "utf-8")
        line = text[:text.index("def wrong(field")].count("\n") + 1
        done = self.run_build("--check")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Ajobqueue\.py:%d: differs from src/base/errors\.py:\d+; "
                                      r"run python3 src/build\.py\n\Z" % line)

    def test_a_built_file_without_its_end_is_refused(self):
        text = (self.folder / "worker.py").read_text("utf-8")
        (self.folder / "worker.py").write_text(text[:text.rindex("\nif __name__")], "utf-8")
        self.assertRegex(self.run_build("--check").stderr,
                         r"\Aworker\.py: has \d+ lines where its rooms have \d+")

    def test_building_again_repairs_it(self):
        (self.folder / "jobqueue.py").write_text("", "utf-8")
        self.assertEqual(self.run_build().returncode, 0)
        self.assertEqual((self.folder / "jobqueue.py").read_bytes(), (ROOT / "jobqueue.py").read_bytes())

    def test_it_works_from_any_folder_and_with_spaces_in_the_path(self):
        done = subprocess.run([sys.executable, "-B", str(self.folder / "src" / "build.py"), "--where",
                               "worker.py:1"], cwd="/", stdout=subprocess.PIPE, encoding="utf-8")
        self.assertEqual(done.stdout, "worker.py:1: written by src/build.py\n")


class FewRooms(Checkout):
    """A build of few rooms: all 90 would take ten times as long."""

    ROOMS = {
        "jobqueue.py": "base/head base/types base/limits base/errors base/time_and_text base/plain_values "
                       "base/schedule_rules base/values base/options store/connection store/schema".split(),
        "worker.py": ["worker/head", "worker/log"]}

    def setUp(self):
        super().setUp()
        path = self.folder / "src" / "build.py"
        text, count = re.subn(r"(?ms)^ROOMS = \{.*?^\}$", "ROOMS = %r" % self.ROOMS, path.read_text("utf-8"))
        self.assertEqual(count, 1)
        path.write_text(text, "utf-8")


class TestRefusals(FewRooms):
    def test_an_import_of_a_later_room(self):
        line = self.seed(ERRORS, "from .limits import ERRORS_MAX\n",
                         "from .limits import ERRORS_MAX\nfrom ..store.schema import SCHEMA\n")
        self.append(ERRORS, "\n\nprint(SCHEMA)\n")
        self.assert_refused("src/base/errors.py:%d: src/store/schema.py is a later room; "
                            "only earlier ones can be imported" % (line + 1))

    def test_a_circle(self):
        line = self.seed("base/limits", "from pathlib import Path\n",
                         "from pathlib import Path\n\nfrom .errors import wrong\n")
        self.append("base/limits", "WRONG = wrong\n")
        self.assert_refused("src/base/limits.py:%d: src/base/errors.py is a later room; "
                            "only earlier ones can be imported" % (line + 2))

    def test_an_import_of_the_other_file(self):
        self.seed(ERRORS, "from .limits import ERRORS_MAX\n",
                  "from .limits import ERRORS_MAX\nfrom ..worker.log import LogPipe\n")
        self.append(ERRORS, "\n\nprint(LogPipe)\n")
        self.assertIn("src/worker/log.py is no earlier room", self.run_build("--check").stderr)

    def test_a_name_in_two_rooms(self):
        line = self.append("store/schema", "\n\ndef wrong():\n    pass\n")
        fault = "src/store/schema.py:%d: wrong is defined in src/base/errors.py too" % (line + 2)
        self.assert_refused(fault)
        self.assert_refused(fault, arguments=())

    def test_a_name_that_hides_an_imported_module(self):
        line = self.append("store/schema", "\n\njson = 1\n")
        self.assert_refused("src/store/schema.py:%d: json is the name of an imported module or of "
                            "something in one" % (line + 2))

    def test_an_import_that_is_not_used(self):
        line = self.seed(ERRORS, "import sys\n", "import select\nimport sys\n")
        self.assert_refused("src/base/errors.py:%d: select is imported and not used" % line)

    def test_an_import_that_is_missing(self):
        self.seed(ERRORS, "import sys\n", "")
        line = self.path(ERRORS).read_text("utf-8").partition("sys.stderr")[0].count("\n") + 1
        self.assert_refused("src/base/errors.py:%d: sys is neither defined nor imported" % line)

    def test_a_name_that_the_room_does_not_define(self):
        line = self.seed(ERRORS, "import ERRORS_MAX\n", "import ERRORS_MAX, HEAD\n")
        self.append(ERRORS, "\n\nprint(HEAD)\n")
        self.assert_refused("src/base/errors.py:%d: src/base/limits.py does not define HEAD" % line)

    def test_another_name_for_an_imported_one(self):
        line = self.seed(ERRORS, "import ERRORS_MAX\n", "import ERRORS_MAX as MOST\n")
        self.append(ERRORS, "\n\nprint(MOST)\n")
        self.assertIn("src/base/errors.py:%d: ERRORS_MAX is imported under another name\n" % line,
                      self.run_build("--check").stderr)

    def test_a_private_name(self):
        self.append("base/limits", "_MOST = 3\n")
        line = self.seed(ERRORS, "import ERRORS_MAX\n", "import _MOST, ERRORS_MAX\n")
        self.append(ERRORS, "\n\nprint(_MOST)\n")
        self.assert_refused("src/base/errors.py:%d: _MOST is private to its room; drop the underscore" % line)

    def test_a_room_that_is_imported_inside_a_function(self):
        line = self.append(ERRORS, "\n\ndef late():\n    from .limits import VERSION\n    return VERSION\n")
        self.assert_refused("src/base/errors.py:%d: rooms are imported above the code" % (line + 3))

    def test_an_import_by_the_path_from_the_root(self):
        line = self.seed(ERRORS, "import sys\n", "import sys\nfrom src.base.limits import VERSION\n")
        self.append(ERRORS, "\n\nprint(VERSION)\n")
        self.assertIn("src/base/errors.py:%d: another room is imported as in `from ..base.errors import "
                      "wrong`\n" % (line + 1), self.run_build("--check").stderr)

    def test_imports_and_names_for_the_type_checker_in_one_block(self):
        line = self.seed(ERRORS, "    from typing import Any\n",
                         "    from typing import Any\n    Name = str\n")
        self.assertIn("src/base/errors.py:%d: imports for the type checker stand in an `if` of their "
                      "own\n" % (line - 2), self.run_build("--check").stderr)

    def test_a_room_without_a_docstring(self):
        text = self.path("base/limits").read_text("utf-8")
        self.path("base/limits").write_text(text.split('"""', 2)[2], "utf-8")
        self.assertIn("src/base/limits.py:1: a room opens with a docstring\n",
                      self.run_build("--check").stderr)

    def test_a_room_that_is_no_python_or_is_missing(self):
        line = self.append(ERRORS, "def (\n")
        self.assertRegex(self.run_build("--check").stderr, r"\Asrc/base/errors\.py:%d: " % line)
        os.remove(self.path(ERRORS))
        self.assert_refused("src/base/errors.py: No such file or directory", arguments=())

    def test_a_room_that_does_not_import(self):
        line = self.append(ERRORS, "\n\nprint([][1])\n")
        self.assertIn("src/base/errors.py:%d: base/errors cannot be imported: IndexError: "
                      "list index out of range\n" % (line + 2), self.run_build("--check").stderr)
        self.assertEqual((self.folder / "jobqueue.py").read_bytes(), (ROOT / "jobqueue.py").read_bytes())


class TestWhere(Checkout):
    def line_of(self, path, text):
        return path.read_text("utf-8").partition(text)[0].count("\n") + 1

    def test_a_line_of_each_file(self):
        for name, room, text in (("jobqueue.py", "tasks/claims", "class Claims"),
                                 ("worker.py", "worker/recorder", "class Recorder")):
            done = self.run_build("--where", "%s:%d" % (name, self.line_of(ROOT / name, text)))
            self.assertEqual(done.stdout, "src/%s.py:%d\n" % (room, self.line_of(self.path(room), text)))

    def test_a_line_with_a_path_before_it_one_that_is_not_there_and_nonsense(self):
        self.assertEqual(self.run_build("--where", "/home/me/jobqueue.py:1").stdout,
                         "jobqueue.py:1: written by src/build.py\n")
        done = self.run_build("--where", "worker.py:99999")
        self.assertRegex(done.stderr, r"\Aworker\.py has \d+ lines, and no line 99999\n\Z")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        for nonsense in "tasks.py:3", "jobqueue.py", "jobqueue.py:x":
            done = self.run_build("--where", nonsense)
            self.assertEqual(done.returncode, 2)
            self.assertIn("such as jobqueue.py:5299", done.stderr)

    def test_a_traceback(self):
        number = self.line_of(ROOT / "jobqueue.py", "class Claims")
        frame = '  File "%s", line %d, in claim\n    pass\n'
        words = "Traceback (most recent call last):\n%s%sValueError: jobqueue.py\n"
        done = self.run_build("--where", words=words % (
            frame % ("/home/me/jobs/jobqueue.py", number), frame % ("/home/me/tasks.py", 7)))
        room = self.path("tasks/claims")
        self.assertEqual(done.stdout, words % (
            frame % ("src/tasks/claims.py", self.line_of(room, "class Claims")),
            frame % ("/home/me/tasks.py", 7)))


class TestJoining(Checkout):
    def build(self):
        """The text of jobqueue.py, built anew."""
        done = self.run_build()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return (self.folder / "jobqueue.py").read_text("utf-8")

    def test_annotations_become_texts_and_lines_stay_lines(self):
        code = """

        def seeded(first: dict[str,
                               "list[int]"] | None = None, *, second: int = 3,
                   ) -> Iterator[
                       str]:
            "Nothing."
            third: int = 4
            yield str(third)
        """
        line = self.append(ERRORS, textwrap.dedent(code))
        built = self.build()
        self.assertIn("def seeded(first: \"dict[str, 'list[int]'] | None\"", built)
        self.assertIn(') -> "Iterator[ str]":\n\n    "Nothing."\n', built)
        self.assertIn('    third: "int" = 4\n', built)
        number = built[:built.index("    yield str(third)")].count("\n") + 1
        self.assertEqual(self.run_build("--where", "jobqueue.py:%d" % number).stdout,
                         "src/base/errors.py:%d\n" % (line + 8))

    def test_imports_for_the_type_checker_alone_stand_under_its_guard(self):
        self.seed(ERRORS, "    from typing import Any\n",
                  "    from fractions import Fraction\n    from typing import Any\n")
        self.append(ERRORS, "\n\ndef seeded(value: Fraction) -> None:\n    pass\n")
        built = self.build()
        guard = re.search(r"(?m)^if TYPE_CHECKING:\n((?:    .*\n)+)", built)[1]
        self.assertIn("    from fractions import Fraction\n", guard)
        self.assertNotIn("FieldError", guard)
        self.assertIn('def seeded(value: "Fraction") -> None:', built)

    def test_types_of_rooms_that_only_we_use_are_left_out(self):
        text = self.path("base/options").read_text("utf-8")
        self.seed("base/options", text[text.index("\nSERVER_SCHEMES"):][:15],
                  "\nif TYPE_CHECKING:\n    from fractions import Fraction\n\n"
                  "if TYPE_CHECKING:\n    Parts = tuple[Fraction, ...]\n\nSERVER_SCHEMES")
        self.seed("base/options", "import HOME\n", "import HOME\nfrom .head import TYPE_CHECKING\n")
        line = self.append("base/options", """

def seeded(value: Parts | None = None, *rest: str,
           more: dict[str,
                      int] | None = None) -> dict[str, int] | None:
    """ + '"""Nothing."""' + """
    found: dict[str, int] | None = more
    class Inner:
        size: int = 3
    return found
""")
        built = self.build()
        for text in ("def seeded(value=None, *rest,\n           more=None):\n\n", "    found = more\n",
                     '        size: "int" = 3\n'):
            self.assertIn(text, built)
        for text in "fractions import", "Parts":
            self.assertNotIn(text, built)
        number = built[:built.index("    found = more")].count("\n") + 1
        self.assertEqual(self.run_build("--where", "jobqueue.py:%d" % number).stdout,
                         "src/base/options.py:%d\n" % (line + 6))


class TestBuilt(unittest.TestCase):
    """The built files show their rooms."""

    def rooms(self, name):
        return re.findall(r"(?m)^# ([\w/]+\.py) -+$", (ROOT / name).read_text("utf-8"))

    def test_the_contents_are_the_banners_in_order(self):
        for name in FILES:
            text = (ROOT / name).read_text("utf-8")
            listed = re.findall(r"(?m)^    (\w+/\w+\.py) +\S", text.split("\nContents", 1)[1].split('"""')[0])
            self.assertEqual(listed, self.rooms(name))
            self.assertGreater(len(listed), 10)

    def test_the_folders_follow_each_other(self):
        folders = list(dict.fromkeys(room.partition("/")[0] for room in self.rooms("jobqueue.py")))
        self.assertEqual(folders, "base store tasks upkeep access web".split())

    def test_every_room_is_built_and_every_folder_says_what_it_may_use(self):
        there = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").glob("*/*.py")}
        heads = {"base/head.py", "worker/head.py"}
        folders = {"%s/__init__.py" % name for name in "base store tasks upkeep access web worker".split()}
        self.assertEqual(there, {*self.rooms("jobqueue.py"), *self.rooms("worker.py"), *heads, *folders})
        for path in folders:
            self.assertIn("use", (ROOT / "src" / path).read_text("utf-8"))

    def test_the_map_has_a_row_for_each_room_in_order_with_the_first_line_of_its_docstring(self):
        text = (ROOT / "src" / "README.md").read_text("utf-8").split("## The rooms")[1].split("\n## ")[0]
        rows = [(part.partition("/")[0] + "/" + room, words) for part in text.split("\n**`")[1:]
                for room, words in re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", part)]
        heads = ["base/head.py"], ["worker/head.py"]
        self.assertEqual([room + ".py" for room, _ in rows], [
            *heads[0], *self.rooms("jobqueue.py"), *heads[1], *self.rooms("worker.py")])
        for room, words in rows:
            if not room.endswith("/head"):
                lines = (ROOT / "src" / (room + ".py")).read_text("utf-8").splitlines()
                self.assertEqual(words, lines[0].strip('"').rstrip("."))

    def test_what_the_map_says_is_there(self):
        text = (ROOT / "src" / "README.md").read_text("utf-8")
        files = re.findall(r"`((?:\w+/)+[\w.-]+\.\w+)`", text)
        self.assertGreater(len(files), 12)
        for name in files:
            self.assertTrue((ROOT / "src" / name).exists() or (ROOT / name).exists(), name)
        adding = text.split("## You want to add")[1].split("\n## ")[0]
        for name, file in re.findall(r"`([A-Z_]{5,})`(?:[^|`]*`(\w+/\w+\.py)`)", adding):
            self.assertRegex((ROOT / "src" / file).read_text("utf-8"), r"(?m)^%s(: .*)? = " % name)

    def test_the_second_line_says_where_to_edit(self):
        for name in FILES:
            self.assertEqual((ROOT / name).read_text("utf-8").splitlines()[1],
                             "# Built from src/ by src/build.py: edit there.")
