"""What attempts printed, in pieces, and one row per transition."""

import jobqueue
from jobqueue import LOG_MAX_BYTES, append_log, logged_attempts, record_activity, read_log
from tests.helpers.support import TestCase


class TestLogs(TestCase):
    def setUp(self):
        super().setUp()
        self.task = self.add()

    def append(self, start, text, attempt=1):
        with self.database.transaction(durable=False) as transaction:
            append_log(transaction, self.clock.now(), self.task, attempt, start, text)

    def read(self, *values, attempt=1):
        return read_log(self.database, self.task, attempt, *values)[:3]

    def read_on(self, at=0, limit=jobqueue.LOG_PAGE_BYTES):
        """All pages from an offset: text, end, whether something was cut out."""
        parts, cuts = [], []
        while True:
            text, after, cut = self.read(at, limit)
            parts.append(text)
            cuts.append(cut)
            if after == at:
                return "".join(parts), at, any(cuts)
            at = after

    def test_pieces_are_read_as_one_text(self):
        self.append(0, "one ")
        self.append(4, "two")
        self.assertEqual(self.read(), ("one two", 7, False))

    def test_reading_goes_on_from_an_offset_in_bytes(self):
        self.append(0, "é1")
        self.append(3, "two")
        text, after, _ = self.read()
        self.assertEqual((text, after), ("é1two", 6))
        self.append(6, "!")
        self.assertEqual(self.read(after), ("!", 7, False))
        self.assertEqual(self.read(7), ("", 7, False))

    def test_a_page_never_cuts_a_character_in_two(self):
        self.append(0, "aé" * 50)
        self.assertEqual(self.read_on(0, 10)[0], "aé" * 50)

    def test_a_page_may_be_small(self):
        self.append(0, "0123456789" * 100)
        text, after, _ = self.read(5, 10)
        self.assertEqual((text, after), ("5678901234", 15))

    def test_attempts_are_kept_apart(self):
        self.append(0, "first")
        self.append(0, "second", attempt=2)
        self.assertEqual(self.read(attempt=2)[0], "second")
        self.assertEqual(logged_attempts(self.database, self.task), [1, 2])

    def test_no_log_is_an_empty_text(self):
        self.assertEqual(self.read(), ("", 0, False))
        self.assertEqual(logged_attempts(self.database, self.task), [])

    def test_the_middle_of_a_long_log_is_cut_out_and_it_says_so(self):
        piece, at = "x" * 65_000, 0
        for number in range(100):
            text = "%06d" % number + piece
            self.append(at, text)
            at += len(text)
        kept = self.database.value("SELECT sum(length) FROM log")
        self.assertLessEqual(kept, LOG_MAX_BYTES + 70_000)
        text, after, cut = self.read_on()
        self.assertTrue(cut)
        self.assertEqual(after, at)
        self.assertTrue(text.startswith("000000"))
        self.assertIn("000099", text)
        self.assertRegex(text, r"\n\[\.\.\. \d+ bytes cut out \.\.\.\]\n")

    def test_reading_from_within_the_gap_goes_on_after_it(self):
        for start in range(0, 5 * LOG_MAX_BYTES, 65_536):
            self.append(start, "y" * 65_536)
        text, after, cut = self.read_on(LOG_MAX_BYTES)
        self.assertTrue(cut)
        self.assertEqual(after, 5 * LOG_MAX_BYTES)
        self.assertIn("cut out", text)

    def test_a_page_that_begins_with_a_gap_still_brings_text(self):
        for start in range(0, 5 * LOG_MAX_BYTES, 65_536):
            self.append(start, "y" * 65_536)
        self.assertIn("yyy", self.read(LOG_MAX_BYTES, 2 * LOG_MAX_BYTES)[0])

    def test_a_line_has_the_time_of_its_last_piece(self):
        came = []
        for start, text in ((0, "one\ntwo\n"), (8, "thr"), (11, "ee\nfour\n")):
            self.append(start, text)
            came.append(jobqueue.iso(self.clock.now()))
            self.clock.advance(5)
        times = read_log(self.database, self.task, 1)[3]
        self.assertEqual(times, [[0, came[0]], [2, came[1]], [2, came[2]]])
        self.assertEqual(read_log(self.database, self.task, 1, 8)[3], [[0, came[1]], [0, came[2]]])

    def test_times_count_the_lines_that_tell_of_a_gap(self):
        self.append(0, "one\n")
        self.append(9, "two\n")
        text, _, _, times = read_log(self.database, self.task, 1)
        self.assertEqual(text.split("\n")[times[1][0]], "two")

    def test_a_deleted_task_takes_its_logs_along(self):
        self.append(0, "one")
        self.delete(self.task)
        self.assertEqual(self.database.value("SELECT count(*) FROM log"), 0)


class TestActivity(TestCase):
    def test_a_note_about_a_task_says_whose_and_what(self):
        task_id = self.add("bob")
        row = self.database.one("SELECT * FROM activity WHERE task_id=?", (task_id,))
        self.assertEqual(
            (row["event"], row["owner_id"], row["function"], row["queue"], row["at"]),
            ("added", self.owner_id("bob"), "add", "default", self.clock.now()),
        )

    def test_rows_come_newest_first_in_pages(self):
        with self.database.transaction() as transaction:
            for number in range(7):
                record_activity(transaction, self.clock.now(), "event%d" % number, worker_id=1)
        rows, before = jobqueue.find_activity(self.database, limit=3)
        self.assertEqual([row["event"] for row in rows], ["event6", "event5", "event4"])
        rows, before = jobqueue.find_activity(self.database, limit=3, before=before)
        rows, before = jobqueue.find_activity(self.database, limit=3, before=before)
        self.assertEqual(([row["event"] for row in rows], before), (["event0"], None))

    def test_a_full_last_page_says_that_it_is_the_last(self):
        with self.database.transaction() as transaction:
            for _ in range(3):
                record_activity(transaction, self.clock.now(), "event", worker_id=1)
        self.assertIsNone(jobqueue.find_activity(self.database, limit=3)[1])

    def test_an_owner_sees_only_what_is_theirs(self):
        mine, theirs = self.add("bob"), self.add("eve")
        rows, _ = jobqueue.find_activity(self.database, owner_id=self.owner_id("bob"))
        self.assertEqual({row["task_id"] for row in rows}, {mine})
        rows, _ = jobqueue.find_activity(self.database, owner_id=self.owner_id("bob"), task_id=theirs)
        self.assertEqual(rows, [])

    def test_a_whole_life_leaves_one_row_per_transition(self):
        task_id = self.add(function="greet", name="Oslo")
        self.clock.advance(5)
        row = self.claim()
        self.clock.advance(2)
        self.end(row, "error", error_type="ValueError", error_message="no")
        self.clock.advance(61)
        self.run_one("succeeded", result="1", cpu_seconds=0.5, peak_memory=1000)
        self.assertEqual(
            self.events(task_id), ["added", "started", "retry", "promoted", "started", "succeeded"]
        )
        rows = self.database.all("SELECT * FROM activity WHERE task_id=? ORDER BY id", (task_id,))
        self.assertEqual((rows[1]["waited"], rows[2]["seconds"], rows[2]["message"]), (5.0, 2.0, "no"))
        self.assertEqual((rows[5]["attempt"], rows[5]["cpu_seconds"], rows[5]["peak_memory"]), (2, 0.5, 1000))

    def test_filters_are_combined(self):
        with self.database.transaction() as transaction:
            for second in range(10):
                record_activity(transaction, second, "even" if second % 2 == 0 else "odd",
                                worker_id=second // 5, function="greet" if second < 8 else None)

        def found(**wanted):
            return [row["at"] for row in jobqueue.find_activity(self.database, **wanted)[0]]
        self.assertEqual(found(event="even"), [8, 6, 4, 2, 0])
        self.assertEqual(found(since=4, until=7), [6, 5, 4])
        self.assertEqual(found(event="odd", worker_id=1, function="greet"), [7, 5])
        self.assertEqual(found(event="neither"), [])

    def test_a_rare_event_is_looked_for_a_while_at_a_time_and_found(self):
        with self.database.transaction() as transaction:
            record_activity(transaction, 1, "rare")
            for _ in range(400):
                record_activity(transaction, 2, "often")
        self.patch(jobqueue, "SEARCH_IDS", 8)
        self.patch(jobqueue, "SEARCH_SECONDS", -1)      # one range of ids in each request
        found, before, requests = [], None, 0
        while requests == 0 or before is not None:
            rows, before = jobqueue.find_activity(self.database, before=before, event="rare")
            found, requests = found + rows, requests + 1
        self.assertEqual([row["at"] for row in found], [1])
        self.assertGreater(requests, 10)

    def test_a_page_of_the_activity_has_a_size(self):
        self.add_many("bob", jobqueue.PAGE_ROWS + 10)
        self.assertEqual(len(jobqueue.find_activity(self.database)[0]), jobqueue.PAGE_ROWS)
