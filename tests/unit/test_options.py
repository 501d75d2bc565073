"""Where the data is, so that web server, cron and command line always agree."""

import os
from pathlib import Path

import jobqueue
from jobqueue import data_folder
from tests.helpers.support import TestCase


class TestDataFolder(TestCase):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "home"
        self.home.mkdir()
        self.patch(jobqueue, "HOME", self.home)

    def test_it_is_data_beside_the_program(self):
        self.assertEqual(data_folder(None, {}), self.home / "data")

    def test_a_text_file_called_data_names_the_folder(self):
        (self.home / "data").write_text("/srv/elsewhere\n")
        self.assertEqual(data_folder(None, {}), Path("/srv/elsewhere"))

    def test_such_a_path_counts_from_the_program_and_not_from_where_one_stands(self):
        (self.home / "data").write_text("../private/my data\nsecond line")
        self.assertEqual(data_folder(None, {}), self.folder / "private" / "my data")

    def test_an_editor_of_windows_may_have_written_the_file(self):
        (self.home / "data").write_bytes(b"/srv/elsewhere\r\n")
        self.assertEqual(data_folder(None, {}), Path("/srv/elsewhere"))

    def test_a_byte_order_mark_is_not_part_of_the_path(self):
        (self.home / "data").write_bytes(b"\xef\xbb\xbf/srv/elsewhere\n")
        self.assertEqual(data_folder(None, {}), Path("/srv/elsewhere"))

    def test_an_empty_file_called_data_or_one_with_a_tilde_is_an_error_and_never_a_new_start(self):
        for text in ("\n", "~/private\n"):
            (self.home / "data").write_text(text)
            with self.refused(jobqueue.SetupError, "must have the data folder's path, without ~"):
                data_folder(None, {})

    def test_a_flag_wins_over_the_environment_and_that_over_the_place(self):
        environment = {"JOBQUEUE_DATA": "/srv/b"}
        self.assertEqual(data_folder("/srv/a", environment), Path("/srv/a"))
        self.assertEqual(data_folder(None, environment), Path("/srv/b"))
        self.assertEqual(data_folder(None, {"JOBQUEUE_DATA": ""}), self.home / "data")

    def test_a_relative_flag_counts_from_where_one_stands(self):
        self.assertEqual(data_folder("here", {}), Path(os.getcwd(), "here"))
