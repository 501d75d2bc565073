"""The command line: every command, what it prints, its exit codes, and what it refuses."""
import ast
import contextlib
import fcntl
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import termios
import unittest
from pathlib import Path
from unittest import mock

import jobqueue
from tests.helpers.command import CommandTestCase
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import FUNCTIONS, ROOT, Site, function_json, need, wait_until
from tests.helpers.web import call

NEW = "another horse"


class NoData(unittest.TestCase):
    """A path that was written wrongly."""

    def test_who_only_looks_makes_no_data_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for words in ("list", "stats", "show 1", "wait 1", "log 1", "activity", "cancel 1", "retry 1",
                          "delete 1", "backup %s/copy" % folder, "export %s/copy" % folder):
                said = io.StringIO()
                with self.subTest(words), contextlib.redirect_stderr(said):
                    data = folder + "/typo"
                    self.assertEqual(jobqueue.main([*words.split(), "--data", data]), 1)
                self.assertEqual(said.getvalue(), "jobqueue: There is no data folder %s.\n" % data)
            self.assertEqual(os.listdir(folder), [])


class Adding(CommandTestCase):

    def test_the_id_is_printed(self):
        self.assertEqual(self.ok("add", "add", "a=1"), "1")
        self.assertEqual(self.json("add", "add", "a=1")["id"], 2)

    def test_it_belongs_to_the_first_admin_or_the_owner_given(self):
        self.ok("add", "add", "a=1")
        self.ok("add", "add", "a=1", "--owner", "bob")
        self.change_settings(default_owner="eve")
        self.ok("add", "add", "a=1")
        self.assertEqual([self.queue.get_json(number)["owner"] for number in (1, 2, 3)],
                         ["ana", "bob", "eve"])
        self.fails(2, "settings", "default_owner", "kim", words="must be the name of a user")
        self.change_settings(default_owner="bob")
        self.write("UPDATE user SET name='kim' WHERE name='bob'")
        self.fails(1, "add", "add", "a=1", words="There is no user bob, whom the setting default_owner names")

    def test_arguments_and_options_may_stand_in_any_order(self):
        self.ok("add", "add", "--priority", "7", "a=1", "--delay", "60", "b=2")
        task = self.queue.get_json(1)
        self.assertEqual((task["arguments"], task["priority"], task["status"]),
                         ({"a": 1, "b": 2}, 7, "scheduled"))
        self.ok("schedule", "add", "--tz", "Europe/Oslo", "add", "daily 01:30", "--overlap", "queue", "a=1")
        self.assertEqual(self.queue.schedules.find()[0]["zone"], "Europe/Oslo")
        self.fails(2, "add", "add", "--delay", "60", "a=1", "--colour", "red", words="--colour")
        self.fails(2, "list", "all", words="unrecognized arguments: all")

    def test_that_tasks_py_cannot_be_read_is_said_beside_the_id(self):
        state = {**self.queue.catalogue.state(),
                 "error": {"message": "SyntaxError", "file": None, "line": None}}
        with mock.patch.object(self.queue.catalogue, "state", lambda: state):
            done = self.run_command("add", "add", "a=1")
        self.assertEqual((done.code, done.out.strip()), (0, "1"))
        self.assertIn("tasks.py cannot be read: SyntaxError", done.err)

    def test_every_option_arrives(self):
        self.ok("add", "add", "a=1", "--priority", "7", "--delay", "60", "--queue", "mail", "--max-retries",
                "2", "--retry-delay", "1.5", "--retry-backoff", "3", "--timeout", "9", "--on-crash", "fail")
        task = self.queue.get_json(1)
        self.assertEqual([task[name] for name in ("priority", "queue", "max_retries", "retry_delay",
                                                  "retry_backoff", "timeout", "on_crash", "status")],
                         [7, "mail", 2, 1.5, 3, 9, "fail", "scheduled"])
        self.ok("add", "add", "a=1", "--run-at", "2030-01-01T00:00:00Z")
        self.assertEqual(self.queue.get_json(2)["run_at"], "2030-01-01T00:00:00.000Z")

    def test_a_task_comes_after_others_and_may_have_a_unique_key(self):
        self.ok("add", "add", "a=1")
        self.ok("add", "add", "a=2")
        self.ok("add", "add", "a=3", "--after", "1,2", "--after-failure", "run", "--unique-key", "k",
                "--owner", "ana")
        task = self.queue.get_json(3)
        self.assertEqual([task[name] for name in ("after", "after_failure", "unique_key", "status")],
                         [[1, 2], "run", "k", "waiting"])
        again = self.run_command("add", "add", "a=3", "--unique-key", "k")
        self.assertEqual((again.code, again.out.strip(), again.err), (
            0, "3", "jobqueue: task 3 has this unique_key already; nothing was added\n"))
        self.ok("cancel", "1", "2")
        self.assertEqual(self.status(3), "pending")
        for wrong in ("x", "0", "1,", ""):
            self.fails(2, "add", "add", "a=1", "--after", wrong)
        self.fails(2, "add", "add", "a=1", "--after", "99", words="99 is not one")

    def test_texts_become_what_the_parameter_is(self):
        kinds = {"text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"},
                 "on": {"type": "boolean"}, "day": {"type": "string", "format": "date"},
                 "style": {"enum": ["big", "small", 3]},
                 "words": {"type": "array", "items": {"type": "string"}},
                 "numbers": {"type": "array", "items": {"type": "integer"}}, "any": {"type": "object"},
                 "maybe": {"type": ["integer", "null"]}, "free": {}}
        self.declare(function_json("every", kinds, required=()))
        for text, value in (
                ("text=7", "7"), ("text=", ""), ("text=a=b", "a=b"), ("text=é ü", "é ü"), ("count=-7", -7),
                ("ratio=1e-3", 0.001), ("on=yes", True), ("on=False", False), ("on=0", False),
                ("on=ON", True), ("day=2026-02-28", "2026-02-28"), ("style=big", "big"), ("style=3", 3),
                ("words=a, b,c", ["a", "b", "c"]),
                ('words=["a,b"]', ["a,b"]), ("numbers=[1, 2]", [1, 2]), ('any={"x": [null]}', {"x": [None]}),
                ("maybe=", None), ("maybe=5", 5), ("free=x", "x")):
            with self.subTest(text=text):
                self.ok("add", "every", text)
                name = text.partition("=")[0]
                newest = self.database.value("SELECT max(id) FROM task")
                self.assertEqual(self.queue.get_json(newest)["arguments"], {name: value})

    def test_a_list_of_numbers_may_be_typed_with_commas(self):
        self.declare(function_json("sum", {"numbers": {"type": "array", "items": {"type": "integer"}}}))
        self.ok("add", "sum", "numbers=1,2,3")
        self.assertEqual(self.queue.get_json(1)["arguments"], {"numbers": [1, 2, 3]})

    def test_what_is_none_of_it_is_refused(self):
        kinds = {"count": {"type": "integer"}, "ratio": {"type": "number"}, "on": {"type": "boolean"},
                 "style": {"enum": ["big"]}, "any": {"type": "object"}, "list": {"type": "array"}}
        self.declare(function_json("every", kinds, required=()))
        for text in ("count=x", "count=1.5", "count=", "ratio=x", "ratio=nan", "ratio=inf", "on=maybe",
                     "style=huge",
                     "any={", "any=[]", "list=[", "colour=red", "nonsense", "=x", "any=NaN", 'any={"x": NaN}',
                     "count=" + "9" * 30, "count=" + "9" * 5000):
            with self.subTest(text=text[:30]):
                self.fails(2, "add", "every", text)
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_options_that_are_wrong_are_refused(self):
        for option, value in (("--priority", "101"), ("--priority", "x"), ("--delay", "-1"),
                              ("--delay", "nan"),
                              ("--delay", "inf"), ("--run-at", "tomorrow"), ("--queue", "a b"),
                              ("--timeout", "0"),
                              ("--timeout", "nan"), ("--max-retries", "-1"), ("--retry-delay", "nan"),
                              ("--retry-backoff", "99"), ("--on-crash", "explode"), ("--colour", "red")):
            with self.subTest(option=option, value=value):
                self.fails(2, "add", "add", "a=1", option, value)
        self.fails(2, "add", "add", "a=1", "--delay", "1", "--run-at", "2030-01-01T00:00:00Z")
        self.fails(4, "add", "add", "a=1", "--owner", "nobody")
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)

    def test_unknown_functions_and_missing_arguments_are_refused(self):
        self.fails(2, "add", "nothing", words="known are")
        self.fails(2, "add", "add", words="arguments.a is missing")
        self.fails(2, "add", "add", "a=x", "b=y", "c=1", words="arguments.c is not known here")
        self.fails(2, "add", "add", "a=x", "b=y", words="arguments.b must be a whole number")
        self.fails(2, "add")

    def test_the_owner_of_the_machine_may_add_what_nobody_else_may(self):
        self.assertEqual(self.ok("add", "cleanup"), "1")

    def test_without_an_admin_it_says_how_to_make_one(self):
        self.write("DELETE FROM user")
        self.fails(1, "add", "add", "a=1", words="user add NAME --admin")


class Tasks(CommandTestCase):

    def test_list_shows_the_newest_first_and_filters(self):
        self.add("bob", a=11)
        self.cancel(self.add("eve", function="greet", name="Zoë"))
        lines = self.ok("list").splitlines()
        self.assertRegex(lines[0], "^ID +STATUS +OWNER +FUNCTION +SUMMARY$")
        self.assertRegex(lines[1], "^2 +cancelled +eve +greet +Zoë$")
        self.assertEqual([task["id"] for task in self.json("list", "--status", "pending,failed")["tasks"]],
                         [1])
        self.assertEqual([task["id"] for task in self.json("list", "--owner", "eve")["tasks"]], [2])
        self.assertEqual([task["id"] for task in self.json("list", "--function", "add")["tasks"]], [1])
        self.assertEqual([task["id"] for task in self.json("list", "--queue", "mail")["tasks"]], [])
        self.assertEqual(len(self.json("list", "--limit", "1")["tasks"]), 1)
        self.assertEqual(self.json("list")["service"]["code"], "starting")

    def test_list_prints_all_that_match_as_csv(self):
        self.add_many("bob", 60)
        self.add("eve", function="greet", name="Zoë, née Smith")
        lines = self.ok("list", "--csv", "--limit", "3").splitlines()
        self.assertEqual((len(lines), lines[0][:9]), (62, "id,owner,"))
        self.assertTrue(lines[1].startswith("61,eve,greet,default,pending,"), lines[1])
        self.assertIn('"{""name"":""Zoë, née Smith""}"', lines[1])
        self.assertEqual(len(self.ok("list", "--csv", "--function", "greet").splitlines()), 2)
        self.fails(2, "list", "--csv", "--sort=duration", words="sort must be -id or id in a file")

    def test_list_sorts_and_searches(self):
        self.add("bob", function="greet", name="x")
        self.clock.advance(60)
        moment = jobqueue.iso(self.clock.now())
        self.add_many("bob", 2)
        for words, ids in ((["--sort=id"], [1, 2, 3]), (["--sort", "function"], [3, 2, 1]),
                           (["--search", "greet"], [1]), (["--since", moment], [3, 2]),
                           (["--until", moment], [1])):
            self.assertEqual([task["id"] for task in self.json("list", *words)["tasks"]], ids, words)
        self.fails(2, "list", "--sort", "owner")

    def test_list_refuses_what_is_no_filter(self):
        self.fails(2, "list", "--status", "nothing")
        self.fails(4, "list", "--owner", "nobody")
        self.fails(2, "list", "--limit", "x")

    def test_a_list_is_of_as_many_pages_as_it_takes(self):
        self.add_many("bob", 7)
        with mock.patch.object(jobqueue, "PAGE_ROWS_MAX", 3):
            for limit, ids in ((4, [7, 6, 5, 4]), (6, [7, 6, 5, 4, 3, 2]), (50, [7, 6, 5, 4, 3, 2, 1])):
                listed = self.json("list", "--limit", limit)
                self.assertEqual([task["id"] for task in listed["tasks"]], ids)

    def test_search_finds_what_is_to_be_cancelled(self):
        self.add("bob", function="greet", name="Zoë Smith")
        self.add("bob", function="greet", name="Bo Smithson")
        self.add("bob", function="greet", name="Kim")
        self.assertIn("2 tasks match", self.run_command("cancel", "--search", "smith").err)
        self.ok("cancel", "--search", "smith", "--yes")
        for _ in range(3):
            self.clock.advance(60)
            self.tick()
        self.assertEqual([self.status(number) for number in (1, 2, 3)], ["cancelled", "cancelled", "pending"])

    def test_list_refuses_an_odd_limit(self):
        for limit in ("0", "-1", "-3", "1001"):
            self.fails(2, "list", "--limit", limit, words="--limit: must be at least 1 and at most 1000")

    def test_show_prints_a_traceback_as_text(self):
        self.add("bob")
        trace = 'Traceback (most recent call last):\n  File "tasks.py", line 3\nValueError: it\'s "odd"\n'
        self.write_log(1, trace)
        self.end(self.claim(), "error", None, "ValueError", 'it\'s "odd"')
        self.assertIn("\nerror           %sworker  " % trace, self.ok("show", 1))
        self.assertEqual(self.json("show", 1)["error"]["traceback"], trace)

    def test_show_prints_the_message_of_what_has_no_traceback(self):
        self.add("bob")
        self.end(self.claim(), "timeout", None, "TimeLimit", "It ran longer than 5 s.")
        self.assertIn("\nerror           It ran longer than 5 s.\n", self.ok("show", 1))

    def test_functions_are_listed_with_what_can_be_given(self):
        self.declare(function_json("report", {
            "city": {"type": "string"}, "day": {"type": "string", "format": "date"},
            "kind": {"enum": ["a", "b"]}, "more": {}, "frame": {"unclear": "pandas.DataFrame"}}, [
                "city", "day"], title="Write a report.",
            additional=True), *FUNCTIONS)
        lines = self.ok("functions").splitlines()
        self.assertRegex(lines[0], "^NAME +PARAMETERS +TITLE$")
        self.assertRegex(lines[1], r"^report +city=string day=date \[kind=a\|b\] \[more=text\] "
                                   r"\[frame=text \(pandas.DataFrame is not known\)\] "
                                   r"\[name=value \.\.\.\] +Write a report\.$")
        self.assertEqual([line.split()[0] for line in lines[2:]],
                         ["add", "greet", "send", "restart", "cleanup"])

    def test_the_help_of_a_function_tells_its_parameters_and_options(self):
        self.declare(function_json("report", {
            "city": {"type": "string", "description": "where"}, "kind": {"enum": ["a", "b"], "default": "a"},
            "more": {"type": ["integer", "null"], "default": None}}, ["city"], title="Write a report."))
        for words in (("add", "report", "--help"), ("add", "-h", "report")):
            text = self.ok(*words)
            self.assertIn("usage: jobqueue.py add report city=string [kind=a|b] [more=integer or null]", text)
            self.assertIn("Write a report.", text)
            for line in ('city +string +required +where', 'kind +a.b +"a"', 'more +integer or null +null',
                         '--timeout +number +3600 +time limit', '--queue +string +"default"'):
                self.assertRegex(text, "(?m)^" + line)
        self.fails(2, "add", "nothing", "--help", words="function nothing is not known")
        self.assertIn("--retry-backoff", self.run_command("add", "--help").out)

    def test_a_broken_tasks_py_is_told_beside_the_functions(self):
        self.queue.catalogue.store({"error": {"message": "line 3: no", "file": "tasks.py", "line": 3}})
        done = self.run_command("functions")
        self.assertEqual((done.code, done.err), (0, "jobqueue: tasks.py cannot be read: line 3: no\n"))
        self.assertIn("greet", done.out)

    def test_show_tells_when_it_may_begin(self):
        self.patch(jobqueue.Clock, "now", self.clock.now)
        self.change_settings(NbMaxWorker=1, worker_mode="detached")
        for _ in range(30):
            self.write("INSERT INTO activity (at, event, function, queue, seconds) "
                       "VALUES (0, 'succeeded', 'add', 'default', 600)")
        self.add_many("bob", 3)
        self.assertIn("forecast        2 before it, starts in 1", self.ok("show", 3))
        self.assertIn(" minutes, ends in ", self.ok("show", 3))
        self.queue.queues.change("default", {"paused": True}, "ana")
        self.clock.advance(60)
        self.assertIn("forecast        2 before it, The queue default is paused by ana.", self.ok("show", 3))

    def test_show_prints_one_task(self):
        self.add("bob", a=11)
        self.assertEqual(self.json("show", 1)["arguments"], {"a": 11})
        self.assertIn("owner           bob", self.ok("show", 1))

    def test_cancel_retry_and_delete(self):
        self.add("bob")
        self.assertEqual(self.ok("cancel", 1), "")
        self.assertEqual(self.status(1), "cancelled")
        self.ok("retry", 1)
        self.assertEqual(self.status(1), "pending")
        self.fails(5, "retry", 1, words="only failed and cancelled")
        self.ok("delete", 1)
        self.assertIsNone(self.status(1))

    def test_who_looks_learns_that_a_worker_was_lost(self):
        for command in (("show", 1), ("list",)):
            self.write("DELETE FROM task")
            self.clock.advance(100)     # until one is started again
            self.add("bob")
            self.claim(self.queue.database.value("SELECT max(id) FROM worker"))
            self.assertIn("running", self.ok(*command))
            self.clock.advance(self.queue.database.lease_seconds + 1)
            self.assertNotIn("running", self.ok(*command))

    def test_a_task_that_has_ended_cannot_be_cancelled(self):
        self.add("bob")
        self.run_one()
        self.fails(5, "cancel", 1, words="ended already")

    def test_a_task_that_is_not_there_is_4(self):
        for command in ("show", "wait", "log", "cancel", "retry", "delete"):
            self.fails(4, command, 99, words="There is no task 99")

    def test_an_id_that_no_row_can_have_is_4_or_2(self):
        for command in ("show", "wait", "log", "cancel", "retry", "delete"):
            for number in (10 ** 30, 2 ** 63, -1, 0):
                done = self.run_command(command, number)
                self.assertIn(done.code, (2, 4), (command, number))
                self.assertNotIn("Traceback", done.err)
        self.fails(2, "show", "x", words="ID: must be a whole number")
        self.fails(2, "add", "add", "--after", "1,x", words="--after: [1] must be a whole number")
        self.fails(2, "list", "--limit", "x", words="--limit: must be a whole number")

    def test_wait_knows_the_success_of_what_was_removed_then(self):
        number = self.ok("add", "add", "a=1", "--remove-on-success")
        self.run_one()
        self.assertEqual(self.ok("wait", number), "succeeded")
        number = self.ok("add", "add", "a=1")
        self.run_one()
        self.ok("delete", number)
        self.assertEqual(self.run_command("wait", number).code, 4)

    def test_wait_tells_by_its_exit_code_how_it_ended(self):
        self.add_many("bob", 3)
        self.run_one("succeeded", "7")
        self.run_one("error", None, "ValueError", "no")
        self.assertEqual(self.run_command("wait", 1).code, 0)
        done = self.run_command("wait", 2)
        self.assertEqual((done.code, done.out), (3, "failed (error)\n"))
        self.assertEqual(self.json("wait", 1)["result"], 7)
        self.fails(124, "wait", 3, "--timeout", "5", words="still pending")

    def test_log_prints_an_attempt(self):
        self.add("bob")
        self.claim()
        self.write_log(1, "häl\u2028lo\n")
        self.assertEqual(self.ok("log", 1), "häl\u2028lo")
        log = self.json("log", 1)
        self.assertEqual((log["attempt"], log["text"]), (1, "häl\u2028lo\n"))
        self.assertEqual(self.ok("log", 1, "--attempt", "7"), "")


class Owners(CommandTestCase):
    """Settings, users and tokens."""

    def test_settings_are_listed_shown_and_changed(self):
        self.assertIn("NbMaxWorker", self.ok("settings"))
        self.assertEqual(self.ok("settings", "NbMaxWorker"), "2")
        self.assertEqual(self.ok("settings", "NbMaxWorker", "5"), "5")
        self.assertEqual(self.json("settings", "NbMaxWorker")["from"], "table")
        self.assertEqual(len(self.json("settings")["settings"]), len(jobqueue.SETTINGS))
        self.assertEqual(self.ok("settings", "host_names", "a.example b.example"), "a.example b.example")

    def test_settings_that_are_wrong_are_refused(self):
        for name, value in (("NbMaxWorker", "257"), ("NbMaxWorker", "x"), ("NbMaxWorker", "1.5"),
                            ("NbMaxWorker", "nan"),
                            ("NbMaxWorker", "inf"), ("NbMaxWorker", ""), ("nosuch", "1"),
                            ("python", "x" * 2000)):
            with self.subTest(name=name, value=value[:9]):
                self.fails(2, "settings", name, value)
        self.fails(2, "settings", "nosuch")

    def test_a_user_is_added_with_a_password_from_standard_input(self):
        self.ok("user", "add", "zoe", given=NEW + "\n")
        self.ok("user", "add", "max", "--admin", given=NEW)
        self.assertTrue(self.queue.sessions.log_in("zoe", NEW, ""))
        self.assertEqual([(user["name"], user["role"]) for user in self.json("user", "list")["users"]][3:],
                         [("zoe", "user"), ("max", "admin")])
        self.assertIn("zoe", self.ok("user", "list"))

    def test_a_password_changes_and_users_are_disabled_and_enabled(self):
        self.ok("user", "password", "bob", given=NEW + "\n")
        self.queue.sessions.log_in("bob", NEW, "")
        self.ok("user", "disable", "bob")
        with self.assertRaises(jobqueue.Unauthorized):
            self.queue.sessions.log_in("bob", NEW, "")
        self.ok("user", "enable", "bob")
        self.queue.sessions.log_in("bob", NEW, "")

    def test_a_user_without_tasks_can_be_deleted(self):
        self.add("bob")
        self.fails(5, "user", "delete", "bob", words="owns tasks")
        self.ok("settings", "default_owner", "eve")
        self.fails(5, "user", "delete", "eve", words="the setting default_owner names eve")
        self.ok("settings", "default_owner", "")
        self.ok("user", "delete", "eve")
        self.fails(4, "user", "delete", "eve")

    def test_a_users_quota_is_set_and_taken_away(self):
        self.ok("user", "quota", "bob", "1")
        users = self.json("user", "list")["users"]
        self.assertEqual([user["max_pending"] for user in users], [None, 1, None])
        self.ok("add", "add", "a=1", "--owner", "bob")
        self.fails(5, "add", "add", "a=1", "--owner", "bob", words="at most 1 of bob's tasks may be pending")
        self.ok("user", "quota", "bob", "none")
        self.ok("add", "add", "a=1", "--owner", "bob")
        self.fails(2, "user", "quota", "bob", words="required: N|none")
        self.fails(2, "user", "quota", "bob", "-1", words="N|none: must be at least 0")

    def test_a_role_and_a_limit_of_running_tasks_are_set_and_taken_away(self):
        self.ok("user", "add", "vera", "--role", "viewer", given=NEW)
        said = self.ok("user", "invite", "--role", "viewer")
        self.assertRegex(said, "Put this behind the address of your page:\n\n    #invite=jq_[0-9a-f]{64}$")
        self.ok("settings", "page_address", "https://jobs.example.org/jq")
        self.assertRegex(self.ok("user", "invite"), "^https://jobs.example.org/jq/#invite=jq_[0-9a-f]{64}$")
        self.ok("settings", "page_address", "")
        self.ok("user", "set", "bob", "--role", "viewer", "--max-running", "2")
        shown = {user["name"]: (user["role"], user["max_running"])
                 for user in self.json("user", "list")["users"]}
        self.assertEqual((shown["vera"], shown["bob"]), (("viewer", None), ("viewer", 2)))
        self.ok("user", "set", "bob", "--role", "user")
        self.ok("user", "set", "bob", "--max-running", "none")
        bob = self.queue.users.find("bob")
        self.assertEqual((bob["role"], bob["max_running"]), ("user", None))
        for wrong in ("0", "-1", "x"):
            self.fails(2, "user", "set", "bob", "--max-running", wrong, words="--max-running: must be")
        self.fails(2, "user", "set", "bob", "--role", "root", words="must be one of viewer, user, admin")

    def test_a_user_is_logged_out_everywhere(self):
        token = self.queue.sessions.open(self.queue.users.find("bob"), "192.0.2.1")
        self.ok("user", "logout", "bob")
        self.assertIsNone(self.queue.sessions.person(token))
        self.fails(4, "user", "logout", "nobody")

    def test_users_that_are_wrong_are_refused(self):
        self.fails(2, "user", "add", "zoe", given="short\n", words="password")
        self.fails(2, "user", "add", "zoe", given="", words="password")
        self.fails(2, "user", "add", "a b", given=NEW, words="name")
        self.fails(2, "user", "add", given=NEW, words="required: NAME")
        self.fails(5, "user", "add", "bob", given=NEW, words="already")
        self.fails(4, "user", "disable", "nobody")
        self.fails(4, "user", "password", "nobody", given=NEW)
        self.fails(5, "user", "disable", "ana", words="last admin")
        self.fails(2, "user", "explode")

    def test_a_token_for_the_tick_address_can_do_nothing_else(self):
        token = self.ok("token", "add", "cron", "--scope", "tick")
        self.assertEqual([one["scope"] for one in self.json("token", "list")["tokens"]], ["tick"])
        app = jobqueue.Application(self.queue, "server")
        self.assertEqual(call(app, {"REQUEST_METHOD": "GET", "PATH_INFO": "/tick", "QUERY_STRING":
                                    "token=" + token}, checked=False).status, 200)
        self.assertEqual(call(app, {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/tasks", "HTTP_X_API_KEY":
                                    token}, checked=False).status, 403)
        self.fails(2, "token", "add", "x", "--scope", "all", words="--scope: must be one of user, read, tick")

    def test_a_token_for_workers_may_be_bound(self):
        self.ok("token", "add", "strong", "--scope", "worker", "--queues", "gpu,big", "--functions", "render")
        [token] = self.json("token", "list")["tokens"]
        self.assertEqual((token["scope"], token["queues"], token["functions"]),
                         ("worker", ["gpu", "big"], ["render"]))
        self.fails(2, "token", "add", "x", "--functions", "render", words="of the scope worker")

    def test_tokens_are_added_listed_and_deleted(self):
        token = self.ok("token", "add", "laptop", "--owner", "bob")
        self.assertEqual(self.queue.tokens.person(token).name, "bob")
        self.assertTrue(self.json("token", "add", "cron")["token"].startswith("jq_"))
        listed = self.ok("token", "list", "--owner", "bob")
        self.assertIn("laptop", listed)
        self.assertNotIn(token, listed)
        number = self.json("token", "list", "--owner", "bob")["tokens"][0]["id"]
        everybodys = self.ok("token", "list")
        self.assertRegex(everybodys, "bob +laptop")
        self.assertRegex(everybodys, "ana +cron")
        self.ok("token", "delete", number)
        self.assertIsNone(self.queue.tokens.person(token))

    def test_a_new_token_goes_to_a_file_that_is_there_only_if_all_went_well(self):
        file = self.folder / "token.txt"
        self.fails(4, "token", "add", "laptop", "--owner", "nobody", "--file", file, words="no user nobody")
        self.fails(2, "token", "add", " ", "--file", file, words="name")
        self.fails(1, "token", "add", "laptop", "--file", self.folder / "missing" / "token.txt")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["data"])
        self.assertEqual(self.queue.tokens.all(), [])
        self.assertEqual(self.ok("token", "add", "laptop", "--file", file), "")
        self.assertEqual(self.queue.tokens.person(file.read_text().strip()).name, "ana")
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)

    def test_queues_are_set_listed_paused_and_deleted(self):
        self.ok("queue", "set", "post", "--max-running", 2, "--rate", "500/3600", "--machines", "a,b")
        post = self.queue.queues.get("post", "a")
        self.assertEqual((post["max_running"], post["rate"], post["machines"]),
                         (2, {"count": 500, "seconds": 3600}, ["a", "b"]))
        self.ok("queue", "set", "post", "--rate", "none", "--max-running", "none", "--machines", "any")
        self.assertRegex(self.ok("queue", "list"), r"(?m)^post +0 +0$")
        with mock.patch.object(jobqueue.Queues, "count", return_value=jobqueue.COUNT_MAX):
            self.assertRegex(self.ok("queue", "list"), r"(?m)^post +10000\+ +10000\+$")
        self.ok("queue", "pause", "default", "--why", "moving house")
        self.add()
        self.assertRegex(self.ok("queue", "list"),
                         r"(?m)^default +1 +0 +paused by the command line: moving house$")
        shown = self.json("queue", "list")["queues"][0]
        self.assertEqual((shown["paused_by"], shown["paused_why"]), ("the command line", "moving house"))
        self.ok("queue", "resume", "default")
        self.assertIsNotNone(self.claim())
        self.ok("queue", "delete", "post")
        self.fails(4, "queue", "pause", "post", words="no queue post")

    def test_queues_that_are_wrong_are_refused(self):
        self.fails(2, "queue", "set", words="required: NAME")
        self.fails(2, "queue", "set", "a b", words="name")
        for option, value in (("--max-running", "0"), ("--max-running", "x"), ("--machines", "")):
            self.fails(2, "queue", "set", "post", option, value, words=option + ": must ")
        for value in ("often", "none/5", "1.5/5", "/1", "", "0/1"):
            self.fails(2, "queue", "set", "post", "--rate", value, words="--rate: count must be ")
        for value in ("7", "1/2/3", "1/", "1/0"):
            self.fails(2, "queue", "set", "post", "--rate", value, words="--rate: seconds must be ")
        self.fails(5, "queue", "delete", "default", words="always there")
        self.assertEqual([one["name"] for one in self.json("queue", "list")["queues"]], ["default", "mail"])

    def test_tokens_that_are_wrong_are_refused(self):
        self.fails(2, "token", "add", words="required: NAME")
        self.fails(2, "token", "delete", "x", words="number")
        self.fails(2, "token", "delete", words="required: ID")
        self.fails(4, "token", "delete", "99")
        self.fails(4, "token", "list", "--owner", "nobody")
        self.assertIn(self.run_command("token", "delete", "9" * 30).code, (2, 4))


class Others(CommandTestCase):

    def test_what_happened_and_who_did_it(self):
        self.ok("add", "add", "a=1", "--owner", "bob")
        self.clock.advance(60)
        self.ok("cancel", 1)
        self.ok("settings", "keep_days", 7)
        self.assertEqual(self.ok("activity").splitlines()[0].split(),
                         ["AT", "EVENT", "TASK", "FUNCTION", "OWNER", "ACTOR", "MESSAGE"])
        self.assertRegex(self.ok("activity", "--event", "cancelled"),
                         r"2027-01-15T08:01\S+ +cancelled +1 +add +bob +the command line$")
        self.assertEqual([row["event"] for row in self.json("activity", "--owner", "bob")["activity"]],
                         ["cancelled", "added"])
        self.assertEqual([row["event"] for row in self.json(
            "activity", "--since", "2027-01-15T08:00:30Z", "--limit", 1)["activity"]], ["settings_changed"])
        self.fails(2, "activity", "--since", "yesterday", words="a time with an offset")

    def test_workers_and_tick(self):
        self.assertEqual(self.json("workers")["workers"], [])
        self.add("bob")
        self.claim(worker_id=1)
        row = self.json("workers")["workers"][0]
        self.assertEqual((row["id"], row["mode"], row["function"]), (1, "detached", "add"))
        self.assertIn(1, [value for name, value in row.items() if name in ("task", "task_id")])
        self.assertIn("detached", self.ok("workers"))
        self.assertEqual(self.ok("tick"), "")

    def test_check_says_how_everything_is(self):
        done = self.run_command("check", "--quick", "--json")
        verdicts = {check["name"]: check["verdict"] for check in json.loads(done.out)["checks"]}
        self.assertEqual((done.code, set(verdicts.values()) <= {"ok", "note"}), (0, True), done.out)
        self.assertLessEqual({"Program", "Data", "Database", "Admin", "Functions", "Workers"}, set(verdicts))

    def test_check_prints_lines_to_copy(self):
        self.assertIn("worker.py >/dev/null", self.ok("check", "--files"))
        self.assertEqual(self.json("check", "--files")["files"][0]["name"], "crontab")

    def test_check_is_1_when_something_is_bad(self):
        self.queue.catalogue.store({"error": {"message": "SyntaxError: no", "file": "tasks.py", "line": 7}})
        done = self.run_command("check", "--quick")
        self.assertEqual(done.code, 1)
        self.assertIn("line 7", done.out)

    def test_help_and_version(self):
        self.assertEqual(self.run_command("--version").out, "jobqueue %s\n" % jobqueue.VERSION)
        text = self.run_command("--help").out
        for name in jobqueue.COMMANDS:
            self.assertIn(name.split()[0], text)
            self.assertEqual(self.run_command(*name.split(), "--help").code, 0)

    def test_what_is_no_command_is_usage(self):
        for arguments in (["explode"], ["list", "--explode"], ["show"], ["show", "1", "2"]):
            self.fails(2, *arguments)

    def test_what_is_missing_is_named_and_nothing_else(self):
        self.fails(2, "add", words="required: FUNCTION\n")

    def test_a_pipe_that_nobody_reads_is_the_end_without_a_word(self):
        self.add()
        for command in (("list",), ("list", "--json"), ("queue", "list"), ("schedule", "list", "--json"),
                        ("settings",), ("check", "--quick")):
            reading, writing = os.pipe()
            os.close(reading)
            with open(writing, "w", encoding="utf-8") as pipe, \
                    mock.patch.object(contextlib, "redirect_stdout",
                                      lambda _, pipe=pipe: mock.patch("sys.stdout", pipe)):
                done = self.run_command(*command)
            self.assertEqual((done.code, done.err), (jobqueue.EXIT_PIPE_CLOSED, ""), command)

    def test_complaints_are_as_readable_as_the_terminal_allows(self):
        for encoding, shown in (("utf-8", "Ås \u2026 日本"), ("latin-1", "Ås \\u2026 \\u65e5\\u672c"),
                                ("ascii", "\\xc5s \\u2026 \\u65e5\\u672c")):
            raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
            with mock.patch("sys.stderr", raw):
                jobqueue.complain("Ås \u2026 日本")
            self.assertEqual(raw.buffer.getvalue().decode(encoding), "jobqueue: %s\n" % shown)

    @about_sqlite("a file that somebody keeps locked")
    def test_a_busy_database_is_75(self):
        self.database.patience = 0.05
        link = sqlite3.connect(str(self.database.path), isolation_level=None)
        self.addCleanup(link.close)
        link.execute("BEGIN IMMEDIATE")
        self.fails(75, "add", "add", "a=1", words="busy")
        self.fails(75, "user", "disable", "bob", words="busy")
        link.execute("ROLLBACK")

    def test_names_that_are_no_text_are_refused_in_one_line(self):
        """What the shell gives for bytes that are not UTF-8."""
        for arguments in (["list", "--owner", "\udcff"], ["list", "--function", "\udcff"],
                          ["token", "add", "\udcff"],
                          ["token", "list", "--owner", "\udcff"], ["queue", "set", "\udcff"],
                          ["queue", "pause", "\udcff"],
                          ["queue", "pause", "default", "--why", "\udcff"], ["user", "disable", "\udcff"],
                          ["add", "\udcff"], ["add", "add", "\udcff=1"],
                          ["settings", "host_names", "\udcff"]):
            with self.subTest(arguments=arguments):
                done = self.run_command(*arguments)
                self.assertNotIn("Traceback", done.err)

    def test_an_argument_that_is_no_text_can_be_shown(self):
        self.ok("add", "greet", "name=a\udcffb")
        self.assertIn("udcff", self.ok("show", 1))
        self.assertIn("udcff", self.ok("show", 1, "--json"))

    def test_output_that_the_terminal_cannot_show_is_escaped(self):
        self.add("bob", function="greet", name="日本\u202e")
        raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        mask = os.umask(0o077)
        self.addCleanup(os.umask, mask)
        with mock.patch("sys.stdout", raw), mock.patch.object(jobqueue, "JobQueue", lambda *_: self.queue):
            self.assertEqual(jobqueue.main(["list", "--data", str(self.database.folder)]), 0)
        raw.flush()
        self.assertIn(b"\\u65e5", raw.buffer.getvalue())

    def test_what_is_stored_steers_no_terminal(self):
        shown = io.StringIO()
        shown.isatty = lambda: True
        with mock.patch("sys.stdout", shown):
            jobqueue.say("a\tb\nc \x1b[31md\x07\r\x9b")
        self.assertEqual(shown.getvalue(), "a\tb\nc \\x1b[31md\\x07\\x0d\\x9b\n")
        self.fails(4, "user", "disable", "a\x1b[31mb\x9b", words="no user a\\x1b[31mb\\x9b")


class Real(unittest.TestCase):
    """Real processes, where it matters what the shell sees."""

    @classmethod
    def setUpClass(cls):
        cls.site = Site(NbMaxWorker=0)
        cls.addClassCleanup(cls.site.close)

    def run_command(self, *arguments, **more):
        return self.site.run(*arguments, code=None, **more)

    def one_line(self, done, code=1, words=""):
        """It failed with one clear line on standard error and nothing else."""
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_a_task_is_added_and_shown(self):
        number = self.site.add("add", a=1, b=2)
        self.assertEqual(self.site.json("show", number)["arguments"], {"a": 1, "b": 2})

    def test_as_a_module_it_does_the_same(self):
        number = self.site.add("add", a=1, b=2)
        command = [sys.executable, "-m", "jobqueue", "show", str(number), "--json"]
        said = subprocess.check_output(command, cwd=self.site.home, env=self.site.environment)
        self.assertEqual(json.loads(said)["arguments"], {"a": 1, "b": 2})

    def test_rows_may_come_from_standard_input(self):
        self.assertEqual(self.site.run("add", "add", "b=2", "--each", "-", given="a\n1\n2\n3\n").stdout,
                         "3 tasks\n")

    def test_a_pipe_that_is_closed_early_is_no_traceback(self):
        self.site.python("from jobqueue import JobQueue\nqueue = JobQueue()\nqueue.catalogue.refresh()\n"
                         "queue.enqueue_many('add', [{'a': 1, 'b': 2}] * 300)",
                         environment={"JOBQUEUE_NBMAXWORKER": "0"})
        command = [sys.executable, "jobqueue.py", "list", "--limit", "300", "--json"]   # no pipe holds it
        with subprocess.Popen(command, cwd=self.site.home, env=self.site.environment, bufsize=0,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
            self.assertEqual(done.stdout.read(1), b"{")
            done.stdout.close()
            said = done.stderr.read()
        self.assertEqual((done.returncode, said), (jobqueue.EXIT_PIPE_CLOSED, b""))

    def test_streams_that_are_closed_are_no_traceback(self):
        for words, code in (("add add a=1 b=2 >&-", 0), ("list >&-", 0), ("show 9999 2>&-", 4),
                            ("user add zoe <&-", 2), ("add add --each - <&-", 2), ("import - <&-", 2)):
            command = ["sh", "-c", "exec '%s' jobqueue.py %s" % (sys.executable, words)]
            done = subprocess.run(command, cwd=self.site.home, env=self.site.environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stdout), (code, ""), words)
            self.assertLessEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_taken_port_is_one_line(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.one_line(self.run_command("serve", "--port", port), words="Port %d" % port)

    def test_ports_and_hosts_that_are_none_are_one_line(self):
        for options in (("--port", "99999"), ("--port", "-1"), ("--host", "no.such.host.invalid"),
                        ("--host", "999.1.1.1")):
            with self.subTest(options=options):
                done = self.run_command("serve", "--port", "0", *options)
                self.assertIn(done.returncode, (1, 2))
                self.assertNotIn("Traceback", done.stderr)
                self.assertEqual(done.stdout, "")

    def test_serve_is_what_runs_without_a_command(self):
        site = Site(users=False)
        self.addCleanup(site.close)
        site.start_server()
        said = "".join(site.server.stdout.readline() for _ in range(4))
        self.assertRegex(said, r"http://127\.0\.0\.1:\d+/#setup=\S{20,}")
        self.assertEqual(site.stop_server(), 0)

    def test_the_server_is_as_small_when_it_is_started_for_the_first_time(self):
        """Who compiles the source keeps more than half of it; so it is started anew then."""
        need(Path("/proc/self/smaps_rollup").exists(), "a kernel that tells how much memory a process has")
        sizes, kept = [], self.site.home / "__pycache__"
        for _ in range(2):
            self.site.start_server()
            text = Path("/proc/%d/smaps_rollup" % self.site.server.pid).read_text()
            sizes.append(int(re.search(r"Pss:\s+(\d+)", text)[1]))
            self.site.stop_server()
            shutil.rmtree(kept, ignore_errors=True)
        self.assertLess(sizes[1], 1.25 * sizes[0])

    def test_a_server_that_cannot_be_started_anew_runs_all_the_same(self):
        text = ("import os, runpy, sys\n"
                "os.execv = lambda *_: os.stat('/no/program')     # it raises an OSError\n"
                "sys.argv = ['jobqueue.py', 'serve', '--port', '0']\n"
                "runpy.run_path('jobqueue.py', run_name='__main__')")
        server = subprocess.Popen([sys.executable, "-c", text], cwd=self.site.home, encoding="utf-8",
                                  env=self.site.environment, stdout=subprocess.PIPE)
        self.assertIn(" is at http://", server.stdout.readline())
        server.terminate()
        self.assertEqual(server.wait(60), 0)
        server.stdout.close()

    def test_importing_and_asking_for_help_make_nothing(self):
        site = Site(users=False)
        self.addCleanup(site.close)
        site.run("--help")
        site.python("import jobqueue")
        self.assertFalse(site.data.exists())

    def test_the_data_folder_is_for_its_owner_only(self):
        self.assertEqual(self.site.data.stat().st_mode & 0o777, 0o700)
        for path in self.site.data.rglob("*"):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    @about_sqlite("a file that somebody keeps locked")
    def test_password_and_token_are_in_no_process_list(self):
        """The process list is read after the password was, before it is stored: nobody may write."""
        with self.site.connection() as link:
            link.execute("BEGIN IMMEDIATE")
            done = subprocess.Popen([sys.executable, "jobqueue.py", "user", "add", "zoe"],
                                    cwd=self.site.home, env=self.site.environment, bufsize=0,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            done.stdin.write(b"canary horse\n")
            left = bytearray(4)
            wait_until(lambda: fcntl.ioctl(done.stdin, termios.FIONREAD, left) or not any(left),
                       what="the password was read")
            lines = self.site.processes()
            link.execute("ROLLBACK")
        self.assertEqual((*done.communicate(timeout=60), done.returncode), (b"", b"", 0))
        self.assertIn(done.pid, lines)
        self.assertNotIn("canary", "\n".join(lines.values()))
        self.assertEqual(self.run_command("user", "add", "yan", "canary horse").returncode, 2)


@about_sqlite("its files in the folder")
class Folders(unittest.TestCase):
    """Data folders that cannot be used: one clear line, exit code 1, nothing overwritten."""

    def setUp(self):
        self.site = Site()
        self.addCleanup(self.site.close)

    def refused(self, words, *arguments, code=1, **more):
        before = self.files()
        done = self.site.run(*(arguments or ("list",)), code=None, **more)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(self.files(), before)

    def files(self):
        """{name: content} of the data folder."""
        if not self.site.data.is_dir():
            return None
        return {path.name: path.read_bytes() for path in self.site.data.iterdir()
                if path.is_file() and not path.name.endswith(("-shm", "turn.lock"))}

    @property
    def database(self):
        return next(self.site.data.glob("jobqueue-*.db"))

    def remove_log(self):
        for path in self.site.data.glob("*.db-*"):
            path.unlink()

    def test_an_empty_database(self):
        self.remove_log()
        self.database.write_bytes(b"")
        self.refused("is empty")

    def test_a_page_of_html_in_its_place(self):
        self.remove_log()
        self.database.write_text("<!doctype html>" + " " * 9000)
        self.refused("damaged")

    def test_a_header_that_was_overwritten(self):
        self.remove_log()
        data = bytearray(self.database.read_bytes())
        data[:100] = b"x" * 100
        self.database.write_bytes(bytes(data))
        self.refused("damaged")

    def test_a_database_without_our_tables(self):
        path = self.database
        self.remove_log()
        path.unlink()
        link = sqlite3.connect(str(path))
        link.execute("CREATE TABLE x (a)")
        link.commit()
        link.close()
        self.refused("empty")

    def test_a_newer_schema(self):
        link = sqlite3.connect(str(self.database), isolation_level=None)
        link.execute("PRAGMA user_version=999")
        link.close()
        self.refused("schema version 999")

    def test_no_database_two_databases_and_a_folder_in_its_place(self):
        path = self.database
        shutil.copy(path, self.site.data / "jobqueue-copy.db")
        self.refused("exactly one")
        (self.site.data / "jobqueue-copy.db").unlink()
        self.remove_log()
        path.unlink()
        self.refused("no jobqueue-*.db")
        path.mkdir()
        self.refused("empty")

    def test_an_empty_folder_is_never_filled(self):
        shutil.rmtree(self.site.data)
        self.site.data.mkdir()
        self.refused("no jobqueue-*.db")
        self.assertEqual(list(self.site.data.iterdir()), [])

    def test_a_missing_journal_file(self):
        next(self.site.data.glob("journal-*.json")).unlink()
        self.refused("check --repair")

    def test_a_file_that_names_the_folder(self):
        moved = self.site.home.parent / "elsewhere"
        self.site.data.rename(moved)
        self.site.data.write_text("../elsewhere\n")
        self.assertEqual(len(self.site.json("user", "list")["users"]), 3)
        for text, words in (("", "data folder's path"), ("\n", "data folder's path")):
            self.site.data.write_text(text)
            self.refused(words)

    def test_a_file_that_is_no_text(self):
        self.site.data.rename(self.site.home.parent / "elsewhere")
        self.site.data.write_bytes(b"\xff\xfe/x")
        done = self.site.run("list", code=None)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)

    def test_a_folder_that_cannot_be_made(self):
        done = self.site.run("settings", "--data", "/proc/jobs", code=None)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("cannot be made", done.stderr)

    def test_a_new_folder_below_a_missing_one_is_one_line(self):
        done = self.site.run("settings", "--data", self.site.home / "a" / "b", code=None)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)

    def test_another_users_folder_is_refused_with_the_right_command(self):
        text = ("import os, sys; os.getuid = lambda: 12345; import jobqueue; "
                "sys.exit(jobqueue.main(['list']))")
        done = subprocess.run([sys.executable, "-c", text], cwd=self.site.home, env=self.site.environment,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        self.assertRegex(done.stderr, "sudo -u '.+' python3 '.+jobqueue.py'")


@about_sqlite("who owns its folder")
class Unprivileged(unittest.TestCase):
    """What root may do and others may not: run as somebody else."""

    USER = 65534

    def setUp(self):
        need(os.getuid() == 0, "the rights to run as somebody else")
        python = shutil.which("python3", path=os.defpath)
        need(python, "a python3 that everybody may run")
        self.site = Site(users=False, python=python)
        self.addCleanup(self.site.close)
        for path in (self.site.home.parent, self.site.home, *self.site.home.rglob("*")):
            os.chown(path, self.USER, self.USER)

    def run_command(self, *arguments):
        def become():
            os.setgid(self.USER)
            os.setuid(self.USER)
        return subprocess.run([self.site.interpreter, "jobqueue.py", *arguments], cwd=self.site.home,
                              env={**self.site.environment, "HOME": "/"}, preexec_fn=become,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def one_line(self, done, words=""):
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_a_site_folder_that_cannot_be_written(self):
        self.site.home.chmod(0o555)
        self.one_line(self.run_command("settings"), "cannot be made")

    def test_a_data_folder_that_cannot_be_written(self):
        self.assertEqual(self.run_command("settings").returncode, 0)
        for path in self.site.data.iterdir():
            path.chmod(0o400 if path.is_file() else 0o500)
        self.site.data.chmod(0o500)
        self.one_line(self.run_command("settings", "linger", "20"))

    def test_a_folder_that_cannot_be_entered(self):
        self.assertEqual(self.run_command("settings").returncode, 0)
        self.site.data.chmod(0)
        self.one_line(self.run_command("list"))

    def test_a_folder_of_root_is_refused(self):
        self.assertEqual(self.run_command("settings").returncode, 0)
        os.chown(self.site.data, 0, 0)
        self.one_line(self.run_command("list"), "belongs to the user root")


CGI = {"GATEWAY_INTERFACE": "CGI/1.1", "REQUEST_METHOD": "GET"}


class OldPython(unittest.TestCase):

    def test_an_old_python_is_refused_in_one_line(self):
        text = ("import sys; sys.version_info = (3, 8, 18, 'final', 0); import runpy; "
                "runpy.run_path('jobqueue.py', run_name='__main__')")
        done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        self.assertIn("3.9 or newer", done.stderr)

    def test_an_old_sqlite_is_refused_in_one_line_at_every_door(self):
        old = ("import sqlite3, sys; sqlite3.sqlite_version_info = (3, 14, 2); sys.path.insert(0, '.'); "
               "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')")
        words = "jobqueue needs SQLite 3.15 or newer; this is SQLite 3.14"
        for door, environment in (("jobqueue.py", {}), ("worker.py", {}), ("jobqueue.py", CGI),
                                  ("static/hosts/jobqueue.cgi", CGI)):
            with self.subTest(door, cgi=bool(environment)):
                done = subprocess.run([sys.executable, "-c", old, door], cwd=ROOT, text=True,
                                      capture_output=True, env={**os.environ, **environment})
                self.assertIn(words, done.stderr)
                if environment:
                    self.assertTrue(done.stdout.startswith("Status: 500 "), done.stdout)
                    self.assertIn(words, done.stdout)
                    self.assertNotIn(sys.executable, done.stdout)
                    self.assertEqual(done.stdout.count("Status:"), 1)
                else:
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))

    def test_an_old_sqlite_is_told_by_the_start_files(self):
        old = ("import sqlite3, sys; sqlite3.sqlite_version_info = (3, 14, 2); import %s as start; "
               "print(start.application({}, lambda *head: None)[0].decode())")
        for name in ("wsgi", "passenger_wsgi"):
            done = subprocess.run([sys.executable, "-c", old % name], cwd=ROOT / "static" / "hosts",
                                  text=True, capture_output=True)
            self.assertIn("cannot start: jobqueue needs SQLite 3.15 or newer; this is SQLite 3.14. More",
                          done.stdout)

    def test_really_old_ones_say_the_same(self):
        """They must be able to read the file before they can refuse it."""
        ast.parse((ROOT / "jobqueue.py").read_text("utf-8"), feature_version=(3, 6))
        kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        found = [path for path in map(shutil.which, ("python3.6", "python3.7", "python3.8")) if path]
        found += [str(path) for minor in "678" for path in kept.glob("3.%s.*/bin/python" % minor)]
        found = [path for path in found if subprocess.run([path, "-V"], capture_output=True).returncode == 0]
        for path in found:              # few machines have one, and none can install one
            done = subprocess.run([path, str(ROOT / "jobqueue.py"), "--version"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, encoding="utf-8", env={"PATH": os.environ["PATH"]})
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn("3.9 or newer", done.stderr)

    def test_windows_is_refused_in_one_line(self):
        text = "import os, runpy, jobqueue; os.name = 'nt'; runpy.run_path('jobqueue.py')"
        done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        self.assertIn("Windows", done.stderr)


if __name__ == "__main__":
    unittest.main()
