"""The command line in this process: CommandTestCase runs commands on the test's own queue and clock."""
import collections
import contextlib
import io
import json
import os
from unittest import mock

import jobqueue
from tests.helpers.support import TestCase, quick_hash

Done = collections.namedtuple("Done", "code out err")


class CommandTestCase(TestCase):
    """Runs commands in this process, on the test's queue."""

    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "hash_password", quick_hash)

    def run_command(self, *arguments, given=""):
        """Run one command on this test's queue and clock."""
        out, err = io.StringIO(), io.StringIO()
        mask = os.umask(0o077)
        try:
            with mock.patch.object(jobqueue, "JobQueue", lambda *_, **__: self.queue), \
                    mock.patch.object(jobqueue, "data_folder", lambda *_: self.database.folder), \
                    mock.patch("sys.stdin", io.StringIO(given)), \
                    contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = jobqueue.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        finally:
            os.umask(mask)
        return Done(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments, **more):
        """Run a command that works; what it printed."""
        done = self.run_command(*arguments, **more)
        self.assertEqual((done.code, done.err), (0, ""), arguments)
        return done.out.strip()

    def json(self, *arguments, **more):
        """Run a command that works with --json; the value."""
        return json.loads(self.ok(*arguments, "--json", **more))

    def fails(self, code, *arguments, words="", **more):
        """Run a command that ends with `code`: one line on standard error, nothing on standard output."""
        done = self.run_command(*arguments, **more)
        self.assertEqual(done.code, code, (arguments, done.out, done.err))
        self.assertEqual(done.out, "")
        self.assertNotIn("Traceback", done.err)
        if code != 2 or not done.err.startswith("usage:"):
            self.assertEqual(done.err.count("\n"), 1, done.err)
            self.assertTrue(done.err.startswith("jobqueue: "))
        self.assertIn(words, done.err)
