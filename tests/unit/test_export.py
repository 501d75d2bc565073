"""Export and import: everything moves to another database, all or nothing, and waits there."""
import io
import json
import re
import stat

import jobqueue
from tests.helpers.command import CommandTestCase
from tests.helpers.support import PASSWORD, place_for

STAYS = {"worker", "shift", "session", "throttle", "known_address", "delivery", "file"} # of one place only


class ExportTestCase(CommandTestCase):
    """An export of this test's queue, and another, empty one to take it."""

    def setUp(self):
        super().setUp()
        self.first = self.queue
        self.file = self.folder / "export.jsonl"

    def use(self, queue):
        """From now on, commands and verbs are about this one."""
        self.queue, self.database = queue, queue.database

    def empty(self, on_sqlite=False):
        """A new queue without users and tasks, which is used from now on."""
        place = {"JOBQUEUE_DATABASE": ""} if on_sqlite else place_for(self, empty=True)
        name = "data-%s" % jobqueue.random_token(4)
        self.use(self.another_queue(data=self.folder / name, environment=place))
        return self.queue

    def fill(self):
        """Some of everything that is kept."""
        ids = self.add_many("bob", 3)
        self.run_one("succeeded", result='{"text": "grün", "half": 0.1}')
        self.run_one("fail", None, "ValueError", "a\nb")
        self.add("eve", "greet", {"run_at": "2030-01-01T00:00:00Z", "priority": -3}, name="\u00e9\u4e2d")
        self.add("bob", options={"after": [ids[2]], "after_failure": "run", "unique_key": "k"})
        self.write_log(ids[0], "line 1\nline 2 \u2713\n")
        number = self.schedule("every 10m", catch_up="all", overlap="allow")
        self.clean(1900)
        self.ok("schedule", "pause", number, "--why", "holidays")
        self.change_settings(keep_days=7, host_names="jobs.example.org")
        self.ok("queue", "set", "mail", "--rate", "10/60", "--machines", "a,b")
        self.ok("token", "add", "for a program", "--owner", "bob")
        for key in ("b", "a", "B", "_", "\u00e9"):
            self.write("INSERT INTO request (owner_id, key, digest, created_at, answer) "
                       "VALUES (2, ?, 'd', 0.1, '{}')", (key,))
        self.write("INSERT INTO unsettled (task_id, status) VALUES (99, 3)")
        self.write("INSERT INTO hour (span, at, function, queue, added) "
                   "VALUES (3600, 7200, 'work', 'default', 3)")
        self.write("INSERT INTO worker_hour (span, at, machine, tasks) VALUES (3600, 7200, 'web1', 3)")
        self.write("INSERT INTO saved (user_id, page, name, value) VALUES (2, 'tasks', 'Mine', '{}')")
        self.write("INSERT INTO recent (function, runs) VALUES ('work', '[]')")
        self.write("INSERT INTO alert (code, subject, text, opened_at, seen_at) "
                   "VALUES ('failed', 'work', 'It failed.', 1.0, 2.0)")

    def lines(self):
        """The lines of an export, parsed."""
        self.ok("export", self.file)
        return [json.loads(line) for line in self.file.read_text("ascii").splitlines()]

    def body(self):
        """All but what the header says of the time."""
        return [re.sub('"exported_at":"[^"]*"', "", line) for line in self.ok("export", "-").splitlines()]

    def write_lines(self, lines):
        """Make the export what these lines say; those that are no texts become JSON."""
        self.file.write_text("".join(
            (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))

    def everything(self):
        """All that the database holds."""
        tables = [*jobqueue.EXPORTED, *STAYS]
        return {table: [tuple(row) for row in self.database.all("SELECT * FROM %s" % table)]
                for table in tables}


class Exporting(ExportTestCase):
    def test_every_table_is_exported_or_known_to_stay(self):
        tables = set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", jobqueue.SCHEMA))
        self.assertEqual(tables - set(jobqueue.EXPORTED) - STAYS, set())
        self.assertEqual(set(jobqueue.EXPORTED) & STAYS, set())

    def test_every_row_is_a_line_and_the_end_counts_them(self):
        self.fill()
        header, *rows, end = self.lines()
        self.assertEqual(header["jobqueue"]["schema"], jobqueue.SCHEMA_VERSION)
        self.assertEqual(header["jobqueue"]["counters"]["task"], self.database.last_id("task"))
        for table in set(jobqueue.EXPORTED) - {"state"}:
            found = [row[table] for row in rows if table in row]
            kept = self.database.all("SELECT * FROM %s" % table)
            with self.subTest(table):
                self.assertTrue(kept)
                self.assertEqual(len(found), len(kept))
                self.assertEqual(end["end"][table], len(kept))
                self.assertIn(dict(zip(kept[0].keys(), kept[0])), found)

    def test_what_is_remembered_of_the_host_stays_there(self):
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, "exposure", {"exposed": [], "at": 0.0})
        names = [row["state"]["name"] for row in self.lines() if "state" in row]
        self.assertEqual(names, ["catalogue"])

    def test_it_is_of_one_moment(self):
        self.add("bob")
        lines = jobqueue.export_lines(self.queue)
        next(lines)
        self.add_many("bob", 5)
        rows = [json.loads(line) for line in lines]
        self.assertEqual(len([row for row in rows if "task" in row]), 1)
        self.assertEqual(rows[-1]["end"]["task"], 1)

    def test_more_rows_than_are_read_at_once_come_in_order_and_once(self):
        self.patch(jobqueue, "EXPORT_ROWS", 3)
        for count in (3, 4, 8):
            ids = self.add_many("bob", count)
            self.queue.add([{"function": "add", "arguments": {"a": 1}, "after": ids}], self.owner_id("bob"))
        rows = self.lines()
        for table, key in (("task", ["id"]), ("task_after", ["task_id", "settled", "after_id"])):
            found = [[row[table][name] for name in key] for row in rows if table in row]
            kept = self.database.all("SELECT %s FROM %s" % (", ".join(key), table))
            self.assertEqual(found, sorted(map(list, kept)))

    def test_only_the_owner_can_read_the_file_and_only_an_older_export_is_replaced(self):
        self.assertRegex(self.ok("export", self.file), r"export\.jsonl: 0\.0 MB")
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.ok("export", self.file)
        poem = self.folder / "poem.txt"
        poem.write_text("my only poem")
        self.fails(1, "export", poem, words="exists and is no export; it was not touched")
        self.fails(1, "export", self.folder, words="s a directory")
        self.fails(1, "export", self.folder / "nowhere" / "x", words="No such file")
        self.fails(1, "backup", self.file, words="exists and is no backup")
        self.assertEqual(poem.read_text(), "my only poem")
        self.assertEqual(list(self.folder.glob("*.part")), [])

    def test_it_counts_as_a_backup(self):
        self.ok("export", self.file)
        self.assertEqual(jobqueue.recall(self.database, "backup")["path"], str(self.file))


class Importing(ExportTestCase):
    def test_the_import_exports_the_same(self):
        self.fill()
        before = self.body()
        self.ok("export", self.file)
        for on_sqlite in (False, True, False):      # where the tests run on PostgreSQL: there and back
            self.empty(on_sqlite)
            self.ok("import", self.file)
            self.assertEqual(self.body(), before)
            self.ok("export", self.file)

    def test_it_says_what_came_and_that_it_waits(self):
        self.fill()
        self.ok("export", self.file)
        self.empty()
        self.assertRegex(self.ok("import", self.file),
                         r"^3 users, \d tasks and 1 schedules; all queues are paused: ")
        self.empty()
        self.assertEqual(self.json("import", self.file)["user"], 3)

    def test_it_can_come_from_standard_input(self):
        self.add("bob")
        text = self.ok("export", "-")
        self.empty()
        self.ok("import", "-", given=text + "\n")
        self.assertEqual(self.status(1), "pending")

    def test_people_log_in_with_their_passwords_and_programs_with_their_tokens(self):
        token = self.ok("token", "add", "for a program", "--owner", "bob")
        self.ok("export", self.file)
        queue = self.empty()
        self.ok("import", self.file)
        self.assertEqual(queue.tokens.person(token).name, "bob")
        self.assertTrue(jobqueue.verify_password(PASSWORD, queue.users.find("eve")["password"]))

    def test_new_ids_are_higher_than_any_was_before(self):
        first, *others = self.add_many("bob", 3)
        worker_id = self.database.last_id("worker")
        self.assertEqual(worker_id, len(self.started))
        for number in others:
            self.delete(number)
        self.write_log(first, "line 1\n")
        self.ok("export", self.file)
        self.empty()
        self.ok("import", self.file)
        self.ok("queue", "resume", "default")
        self.assertEqual(self.add("bob"), others[-1] + 1)
        self.assertEqual(self.database.value("SELECT min(id) FROM worker"), worker_id + 1)
        self.write_log(first, "line 2\n", start=7)
        self.assertEqual(self.ok("log", first, "--attempt", 1), "line 1\nline 2")
        self.run_one("succeeded")
        self.assertEqual(self.events(first), ["added", "started", "succeeded"])

    def test_its_queues_are_paused_until_somebody_resumes_them(self):
        self.add("bob")
        self.ok("queue", "pause", "mail", "--why", "the server is full")
        self.ok("export", self.file)
        self.empty()
        self.ok("import", self.file)
        self.assertIsNone(self.claim())
        by_name = {one["name"]: one for one in self.json("queue", "list")["queues"]}
        self.assertEqual(by_name["mail"]["paused_why"], "the server is full")
        self.assertEqual(by_name["default"]["paused_by"], "the import")
        self.ok("queue", "resume", "default")
        self.assertEqual(self.claim()["id"], 1)

    def test_what_ran_there_is_interrupted_here(self):
        again = self.add("bob")
        once = self.add("bob", "send", to="x")
        after = self.add("bob", options={"after": [once]})
        self.assertEqual({self.claim()["id"], self.claim()["id"]}, {again, once})
        self.ok("export", self.file)
        self.empty()
        self.ok("import", self.file)
        row = self.row(again)
        self.assertEqual((self.status(again), row["reason"], row["attempts"], row["interruptions"],
                          row["retries_left"], row["lease_wall"]),
                         ("pending", "interrupted", 1, 1, 0, None))
        self.assertEqual((self.status(once), self.row(once)["reason"]), ("failed", "interrupted"))
        self.assertEqual((self.status(after), self.row(after)["reason"]), ("failed", "dependency"))
        self.assertEqual(self.events(again)[-1], "interrupted")

    def test_what_no_remote_worker_has_confirmed_never_ran(self):
        number = self.add("bob", "send", to="x")
        self.claim()
        self.write("UPDATE task SET claim=? WHERE id=?", ("?a remote one", number))
        self.ok("export", self.file)
        self.empty()
        self.ok("import", self.file)
        self.assertEqual((self.status(number), self.row(number)["error_type"]), ("pending", None))

    def test_a_schedule_goes_on_where_it_was(self):
        number = self.schedule("every 10m", catch_up="once")
        self.clean(600)
        self.ok("export", self.file)
        self.empty()
        self.ok("import", self.file)
        self.clean(1300)
        slots = self.database.all("SELECT at, task_id FROM slot WHERE schedule_id=?", (number,))
        self.assertEqual(len({row["at"] for row in slots}), len(slots))
        self.assertGreater(len(slots), 1)


class Refused(ExportTestCase):
    def setUp(self):
        super().setUp()
        self.fill()
        self.good = self.lines()

    def refuse(self, lines, words, code=2):
        """An import of these lines changes nothing."""
        self.empty()
        before = self.everything()
        self.write_lines(lines)
        self.fails(code, "import", self.file, words=words)
        self.assertEqual(self.everything(), before)

    def test_a_cut_one(self):
        for length in (1, 2, len(self.good) // 2, len(self.good) - 1):
            self.refuse(self.good[:length], "the end of the export is missing, or some lines")
        self.refuse([*self.good[:5], json.dumps(self.good[5])[:-9]], "something in or before row 5 is wrong")
        self.refuse([*self.good[:5], *self.good[6:]], "the end of the export is missing, or some lines")

    def test_one_with_more_behind_its_end(self):
        self.refuse([*self.good, self.good[1]], "user does not belong here")

    def test_what_is_no_export(self):
        self.refuse([], "This file is not an export of jobqueue.")
        for text in ('{"users": {}}', "{}", '{"a": 1, "b": 2}'):
            self.refuse([text], "This file is not an export of jobqueue.")
        for text in ("poem", "[1, 2]", "7", "[" * 100_000):
            self.refuse([text], "something in or before row 1 is wrong")

    def test_another_schema(self):
        header = self.good[0]["jobqueue"]
        self.refuse([{"jobqueue": {**header, "schema": 99}}, *self.good[1:]],
                    "is of jobqueue %s with schema version 99" % jobqueue.VERSION, code=1)

    def test_columns_that_are_missing_or_unknown_here(self):
        row = self.good[1]["user"]
        self.refuse([self.good[0], {"user": {**row, "shoe size": 44}}, *self.good[2:]],
                    "columns of user are missing or unknown here: shoe size.")
        row = {name: value for name, value in row.items() if name != "role"}
        self.refuse([self.good[0], {"user": row}, *self.good[2:]],
                    "columns of user are missing or unknown here: role.")
        self.refuse([self.good[0], {"worker": row}, *self.good[1:]], "worker does not belong here")

    def test_rows_that_contradict_each_other(self):
        at = next(number for number, line in enumerate(self.good) if "task" in line)
        self.refuse([*self.good[:at], self.good[at], *self.good[at:]], "is wrong (")
        stranger = {"task": {**self.good[at]["task"], "owner_id": 99}}
        self.refuse([*self.good[:at], stranger, *self.good[at + 1:]], "", code=5)

    def test_a_database_with_users_or_tasks(self):
        before = self.everything()
        self.fails(5, "import", self.file, words="Import into an empty database")
        self.assertEqual(self.everything(), before)

    def test_a_file_that_is_not_there(self):
        self.empty()
        self.fails(1, "import", self.folder / "nothing", words="No such file")

    def test_python_reads_any_lines(self):
        text = self.file.read_bytes()
        queue = self.empty()
        counts = jobqueue.import_lines(queue, io.BytesIO(text))
        self.assertEqual(counts["task"], len([1 for line in self.good if "task" in line]))
