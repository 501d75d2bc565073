"""The benchmark must run, here and beside another checkout; its figures are nobody's promise."""
import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.helpers.support import ROOT

sys.path.insert(0, str(ROOT / "tests" / "tools"))     # as where it is run as a program
import bench

TINY = bench.QUICK._replace(adds=3, bulk=20, drain=30, pickups=2, rounds=2, schedules=5)


class RunTests(unittest.TestCase):
    def figures(self, figures):
        """{what: Figure}, each of which can be shown."""
        found = list(figures)
        self.assertEqual(bench.table(found).count("\n"), len(found))
        return {figure.what: figure for figure in found}

    def test_ours_stands_beside_anchors(self):
        with mock.patch.object(bench, "is_installed", lambda name: False):
            found = self.figures(bench.run(["adds", "pickup", "schedules"], TINY))
        self.assertEqual(len(found), 5)
        for what in ("add one by one, durable", "add in bulk, 10,000 at once"):
            self.assertGreater(found[what].ours, 0)
            self.assertGreater(found[what].anchor, 0)

    def test_all_workers_of_a_drain_write_a_line_for_each_task(self):
        with contextlib.ExitStack() as stack:
            library = bench.Library(stack)
            self.assertGreater(bench.drain_ours(library, 30, 1), 0)
            self.assertGreater(bench.drain_raw(library, 30, 2), 0)

    def test_another_checkout_is_measured_in_turns_and_without_anchors(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        other = Path(room.name).resolve() / "before"
        other.mkdir()
        for name in bench.COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, other / name)
        with (other / "jobqueue.py").open("a") as file:
            file.write("\nSAMPLED = %r\n" % str(other))
        sites, fresh = [], bench.Library.fresh

        def seen(library):
            site = fresh(library)
            sites.append("SAMPLED" in (site.folder / "jobqueue.py").read_text("utf-8"))
            return site

        with mock.patch.object(bench.Library, "fresh", seen):
            found = self.figures(bench.run_against(other, ["adds"], TINY))
        self.assertEqual(sites, [True, False, False, True])
        self.assertEqual({figure.anchor_name for figure in found.values()}, {"before"})
        self.assertTrue(all(figure.ours and figure.anchor for figure in found.values()))


class WordsTests(unittest.TestCase):
    def test_the_program_prints_a_table(self):
        done = subprocess.run([sys.executable, bench.__file__, "--quick", "--only", "adds"],
                              capture_output=True, encoding="utf-8", timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = re.findall(r"(?m)^add .*  [\d,]+/s +raw.*  [\d.]+", done.stdout)
        self.assertEqual(len(rows), 3, done.stdout)

    def refused(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            bench.main(words)
        return said.getvalue()

    def test_parts_may_be_joined_by_commas(self):
        self.assertEqual(bench.parts("drain,adds,pickup,list"), ["drain", "adds", "pickup", "list"])
        self.assertIn("parts are adds, drain", self.refused("--only", "adds,nothing"))

    def test_another_checkout_must_be_one(self):
        self.assertIn("no checkout", self.refused("--against", str(ROOT / "tests" / "tools")))


if __name__ == "__main__":
    unittest.main()
