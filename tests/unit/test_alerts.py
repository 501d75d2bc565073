"""What opens an alert, when it is told, repeated, muted and ended; who is told of their own tasks."""

import base64
import json
import os
import quopri
import re
import threading
import unittest
import uuid
from unittest import mock

import jobqueue
from tests.helpers.postgres import about_sqlite
from tests.helpers.support import TestCase, function_json
from tests.helpers.web import WebTestCase

HOUR = 3600.0


class AlertsCase(TestCase):
    def setUp(self):
        super().setUp()
        self.patch(jobqueue, "LOW_DISK_BYTES", 0)         # whatever disk the tests have
        self.change_settings(alert_mail="ops@example.org")
        self.look()                                     # what was before the first look is no news

    def look(self, seconds=31.0, times=1):
        """Time passes, and somebody looks, as a tick does."""
        for _ in range(times):
            self.clock.advance(seconds)
            self.queue.rollup.fold()
            self.queue.alerts.check(self.clock.now())

    def pass_time(self, seconds):
        """Somebody looks every half minute."""
        for _ in range(round(seconds / 30)):
            self.look(30)

    def open(self):
        """The codes of open alerts."""
        return [one["code"] for one in reversed(self.queue.alerts.all()["alerts"])
                if one["ended_at"] is None]

    def messages(self, recipient="ops@example.org"):
        """What was put into the outbox for somebody, oldest first."""
        return [json.loads(row[0]) for row in self.database.all(
            "SELECT content FROM delivery WHERE recipient=? ORDER BY id", (recipient,))]

    def subjects(self, recipient="ops@example.org"):
        return [one["subject"] for one in self.messages(recipient)]

    def send_all(self):
        """As if the outbox was sent."""
        self.write("UPDATE delivery SET next_at=NULL, sent_at=?, tries=1", (self.clock.now(),))

    def break_one(self, message="boom", kind="ValueError", function="add", **more):
        """A task that fails for good."""
        self.add(function=function, **more)
        return self.run_one("fail", None, kind, message)

    def succeed(self):
        self.add()
        return self.run_one()

    def set_code_error(self, message="it is broken"):
        error = message and {"message": message, "file": "tasks.py", "line": 3}
        self.queue.catalogue.store({"error": error} if error else {
            "functions": self.queue.catalogue.functions(), "error": None})

    def break_starts(self):
        with self.database.transaction() as transaction:
            self.queue.workers.start_failed(transaction, "out of memory")


    def print_lines(self, task_id, text, attempt=1):
        """A task printed this."""
        with self.database.transaction() as transaction:
            jobqueue.append_log(transaction, self.clock.now(), task_id, attempt, 0, text)


class TestLinksAndLogs(AlertsCase):
    """A message about failures leads to the page, and shows what the newest one printed."""

    def fail_after(self, text, **arguments):
        """The message about a task that printed this and failed."""
        task_id = self.add(function="greet", name="x", options={"max_retries": 0})
        self.write("UPDATE task SET arguments=? WHERE id=?",
                   (json.dumps({"name": "x", **arguments}), task_id))
        self.print_lines(task_id, text)
        self.run_one("fail", None, "ValueError", "boom")
        self.look()
        return self.messages()[-1]

    def test_without_an_address_of_the_page_there_is_no_link_and_check_says_so(self):
        message = self.fail_after("")
        self.assertEqual((message["link"], message["log"]), ("", []))
        self.assertNotIn("http", message["lines"][0])
        self.assertIn("links_missing", [one.code for one in jobqueue.check_host(self.queue).findings])
        self.change_settings(page_address="https://example.org/jq")
        self.assertNotIn("links_missing", [one.code for one in jobqueue.check_host(self.queue).findings])

    def test_one_failure_links_to_its_task_and_several_to_all_of_their_kind(self):
        self.change_settings(page_address="https://example.org/jq")
        self.assertEqual(self.fail_after("")["link"], "https://example.org/jq/#/tasks/1")
        began = self.queue.alerts.all()["alerts"][0]["opened_at"]
        self.break_one("boom", function="greet", name="x", options={"max_retries": 0})
        self.look(200)
        [alert] = self.queue.alerts.all()["alerts"]
        self.assertEqual((alert["function"], alert["error"], alert["task"], alert["count"]),
                         ("greet", "ValueError", 2, 2))
        self.assertEqual(alert["link"], "#/tasks?status=failed&function=greet&error=ValueError&ended_since="
                         + began.replace(":", "%3A"))
        wanted = jobqueue.Filter(statuses=[3], function="greet", error="ValueError",
                                 ended_since=jobqueue.parse_time(began, "x"))
        rows = self.queue.tasks.find(wanted, 9).rows
        self.assertEqual(sorted(row["id"] for row in rows), [1, 2])

    def test_a_condition_links_to_the_page_that_shows_more_of_it(self):
        self.change_settings(page_address="https://example.org/jq")
        self.schedule("every 10m")
        self.write("UPDATE schedule SET problem='no such function'")
        self.look(times=2)
        [message] = self.messages()
        self.assertEqual(message["link"], "https://example.org/jq/#/schedules/1")
        self.assertTrue(message["lines"][0].endswith(message["link"]))

    def test_the_log_is_plain_text_without_colours_and_secrets(self):
        message = self.fail_after("\x1b[31mred\x1b[0m\n10 %\r100 %\n  the key is hunter2-secret\a\n"
                                  + "x" * 500, api_key="hunter2-secret", inner=[{"password": "abcd"}])
        self.assertEqual(message["log"][:3], ["red", "100 %", "  the key is •••"])
        self.assertEqual(len(message["log"][3]), 200)

    def test_an_error_without_a_text_reads_well(self):
        self.add()
        self.run_one("fail", None, "AssertionError", "")
        self.look()
        self.assertEqual(self.messages()[0]["lines"],
                         ["add failed: AssertionError without a message (task 1)."])
        [alert] = self.queue.alerts.all()["alerts"]
        self.assertEqual((alert["text"], alert["error"]),
                         ("AssertionError without a message (task 1)", "AssertionError"))

    def test_the_end_says_that_it_is_resolved_and_how_long_it_lasted(self):
        self.set_code_error()
        self.look(times=8)
        self.set_code_error(None)
        self.look(times=8)
        self.assertRegex(self.messages()[-1]["lines"][0], r"^Resolved: tasks\.py is broken, from 2027-01-15 "
                         r"[\d:]+ UTC to 2027-01-15 [\d:]+ UTC\. The last report was: .*it is broken")

    def test_each_channel_shows_the_log_as_it_can(self):
        content = {"kind": "alert", "subject": "s", "lines": ["l"], "link": "https://e.org/#/tasks/7",
                   "task": 7, "log": ["<b>", "```", "end"]}

        def body(url):
            return jobqueue.shaped(jobqueue.urlsplit(url), content)[1]
        block = "s\nl\n\nThe last lines of task 7:\n```\n%s\n\'\'\'\nend\n```"
        self.assertEqual(body("https://hooks.slack.com/services/x")["text"], block % "&lt;b&gt;")
        self.assertEqual(body("https://discord.com/api/webhooks/1/x")["content"], block % "<b>")
        plain = "l\n\nThe last lines of task 7:\n<b>\n```\nend"
        self.assertEqual(body("https://api.telegram.org/bot1:x/sendMessage?chat_id=7")["text"], "s\n" + plain)
        ntfy = body("https://ntfy.sh/t")
        self.assertEqual((ntfy["message"], ntfy["click"]), (plain, "https://e.org/#/tasks/7"))
        row = {"created_at": 0, "id": 1}
        mail = jobqueue.mail_message(content, "a@example.org", "b@example.org", row)
        self.assertEqual(mail.get_payload(decode=True).decode(), plain + "\n")


class TestFailures(AlertsCase):
    def test_a_task_that_failed_for_good_is_told_with_its_function_and_error(self):
        task = self.break_one("no such city")
        self.look()
        self.assertEqual(self.open(), ["failed"])
        [message] = self.messages()
        self.assertEqual(message["subject"], "add failed")
        self.assertIn("add failed: ValueError: no such city (task %d)" % task["id"], message["lines"][0])

    def test_one_that_will_be_tried_again_is_no_alert(self):
        self.add(function="greet", name="x")
        self.run_one("error", None, "ValueError", "boom")
        self.look(times=3)
        self.assertEqual(self.open(), [])

    def test_ten_thousand_failures_with_different_numbers_are_one_alert_and_one_mail(self):
        rows = [{"at": self.clock.now(), "event": "failed", "task_id": 10 ** 6 + number, "function": "add",
                 "message": "order %s '%d' at 0x%x not found" % (uuid.uuid4(), number, number)}
                for number in range(10_000)]
        self.add()
        self.write("UPDATE task SET status=3, finished_at=?", (self.clock.now(),))      # one is there still
        with self.database.transaction() as transaction:
            transaction.insert_all("activity", rows)
        self.look(times=10)
        [row] = self.database.all("SELECT * FROM alert")
        self.assertEqual(row["count"], 10_000)
        self.assertEqual(len(self.messages()), 1)
        self.assertIn("10000 times", self.messages()[0]["lines"][0])

    def test_different_errors_of_a_function_are_told_in_one_mail(self):
        self.break_one("the disk is slow")
        self.break_one("the net is down", "OSError")
        self.look(times=2)
        self.assertEqual(self.open(), ["failed", "failed"])
        self.assertEqual(self.subjects(), ["add failed, and 1 more"])

    def test_those_that_follow_a_failed_task_are_none_of_their_own(self):
        first = self.add()
        self.add(options={"after": [first]})
        self.run_one("fail", None, "ValueError", "boom")
        self.look(times=2)
        self.assertEqual(self.database.value("SELECT count(*) FROM task WHERE status=3"), 2)
        self.assertEqual(self.database.value("SELECT sum(count) FROM alert"), 1)

    def test_one_among_many_that_succeed_is_told(self):
        self.break_one()
        for _ in range(4):
            for _ in range(5):
                self.succeed()
            self.look()
        self.assertEqual(self.subjects(), ["add failed"])

    def test_it_is_told_though_nobody_looked_for_days(self):
        self.break_one()
        self.look(3 * 24 * HOUR)
        self.assertEqual(self.subjects(), ["add failed"])
        self.look(3 * 24 * HOUR)
        self.assertEqual(self.open(), [])

    def test_a_function_that_now_and_then_fails_is_told_twice_at_most_in_an_hour(self):
        for number in range(120):
            if number % 10:
                self.succeed()
            else:
                self.break_one()
            self.look(30)
        self.assertLessEqual(self.database.value("SELECT count(*) FROM alert"), 2)
        self.assertLessEqual(len(self.messages()), 4)

    def test_three_hours_after_all_were_retried_and_succeeded_it_is_resolved(self):
        tasks = [self.break_one(), self.break_one()]
        self.look(times=2)
        self.look(4 * HOUR)
        for task in tasks:
            self.retry(task["id"])
            self.look(200)
            self.assertEqual(self.open(), ["failed"])       # it waits, and may fail again
            self.run_one()
        self.look(200)
        self.assertEqual(self.open(), [])
        self.assertIn("Resolved: add failed", self.subjects()[-1])

    def test_three_hours_after_a_failure_that_was_deleted_it_is_resolved(self):
        task = self.break_one()
        self.look(times=2)
        self.queue.actions.delete(task["id"])
        self.look(200)
        self.assertEqual(self.open(), ["failed"])
        self.look(3 * HOUR)
        self.assertEqual(self.open(), [])

    def test_a_function_that_fails_and_is_retried_each_half_hour_is_one_alert(self):
        for _ in range(24):
            task = self.break_one()
            self.look(900)
            self.retry(task["id"])
            self.run_one()
            self.look(900)
        self.assertEqual(self.database.value("SELECT count(*) FROM alert"), 1)
        self.assertEqual(len(self.messages()), 1)

    def test_what_waits_for_another_after_a_retry_is_not_resolved(self):
        first = self.add(function="greet", name="x")
        self.add(options={"after": [first], "after_failure": "run"})
        for _ in range(2):
            self.run_one("fail", None, "ValueError", "boom")
        self.look(times=2)
        self.write("UPDATE task SET status=6, finished_at=NULL, attempts=1 WHERE function='add'")
        self.look(4 * HOUR)
        self.assertEqual(len(self.open()), 2)

    def test_names_with_a_colon_and_long_ones_stay_open_while_their_tasks_are_failed(self):
        for name in ("ns:add", "n" * 199):
            self.declare(function_json(name))
            self.break_one(function=name)
        self.look(times=2)
        self.look(4 * HOUR)
        self.assertEqual(self.open(), ["failed", "failed"])

    def test_a_day_without_one_ends_it(self):
        self.break_one()
        self.look(times=2)
        self.look(24 * HOUR - 80)
        self.assertEqual(self.open(), ["failed"])
        self.look(120)
        self.assertEqual(self.open(), [])

    def test_each_episode_is_a_row_of_its_own(self):
        for _ in range(2):
            self.break_one()
            self.look(200, times=2)
            self.look(25 * HOUR)
        self.assertEqual(self.database.value("SELECT count(*) FROM alert"), 2)
        self.assertEqual(self.subjects(), ["add failed", "Resolved: add failed"] * 2)

    def test_what_failed_before_the_first_look_is_not_told(self):
        self.break_one()
        self.write("DELETE FROM state WHERE name='alerts'")
        self.look(times=3)
        self.assertEqual(self.messages(), [])

    def test_very_many_different_errors_become_one_more_group(self):
        for number in range(60):
            self.break_one("error %s" % (chr(0x100 + number) * 3))
        self.look(times=2)
        self.assertLessEqual(len(self.open()), 51)
        self.assertEqual(self.database.value("SELECT sum(count) FROM alert"), 60)
        self.assertEqual(len(self.messages()), 1)


class TestTelling(AlertsCase):
    def test_it_is_told_again_daily_while_it_holds(self):
        self.set_code_error()
        self.look(times=8)
        self.assertEqual(self.subjects(), ["tasks.py is broken"])
        began = self.clock.now()
        moments = []
        while self.clock.now() < began + 60 * HOUR:
            count = len(self.messages())
            self.look(300)
            if len(self.messages()) > count:
                moments.append(round((self.clock.now() - began) / HOUR))
        self.assertEqual(moments, [24, 48])

    def test_failures_that_are_over_are_not_told_again(self):
        self.break_one()
        self.look(times=2)
        self.pass_time(5 * HOUR)
        self.assertEqual(len(self.messages()), 1)

    def test_a_recovery_is_told_only_if_its_opening_was(self):
        self.change_settings(alert_mail="")
        self.break_one()
        self.look(times=3)
        self.look(25 * HOUR)
        self.change_settings(alert_mail="ops@example.org")
        self.look(times=3)
        self.assertEqual((self.open(), self.messages()), ([], []))

    def test_nobody_is_told_more_than_twenty_times_an_hour_and_then_all_of_it(self):
        self.write("UPDATE user SET email='bob@example.org' WHERE name='bob'")
        for number in range(120):
            self.break_one("%s" % chr(0x100 + number), options={"notify": "end"})
            self.look(30)
        for recipient in ("ops@example.org", "bob@example.org"):
            self.assertLessEqual(len(self.messages(recipient)), 20)
        self.look(200, times=2)
        self.assertEqual(sum(len(one["lines"]) for one in self.messages("bob@example.org")), 120)
        self.assertEqual(self.database.value("SELECT count(*) FROM alert WHERE told=0"), 0)

    def test_a_clock_that_was_put_back_keeps_no_message_waiting(self):
        self.break_one()
        self.look(times=2)
        self.clock.advance(-86400)
        self.break_one("another", "OSError")
        self.look(times=2)
        self.assertEqual(len(self.messages()), 2)

    def test_a_clock_that_was_put_back_hides_no_alert_and_no_recovery(self):
        self.patch(jobqueue, "LOW_DISK_BYTES", 1 << 60)
        self.look(times=2)
        self.clock.advance(-86400)
        self.look(200, times=2)
        self.assertEqual(self.open(), ["disk"])
        self.patch(jobqueue, "LOW_DISK_BYTES", 0)
        self.look(200, times=3)
        self.assertEqual(self.subjects(), ["the disk is nearly full", "Resolved: the disk is nearly full"])

    def test_a_thousand_broken_schedules_are_one_message_of_bounded_length(self):
        for number in range(300):
            self.schedule("every 10m", name="s%d" % number)
        self.write("UPDATE schedule SET problem='no such function'")
        self.look(times=2)
        [message] = self.messages()
        self.assertEqual((len(message["lines"]), message["lines"][-1]), (31, "... and 270 more."))

    def test_a_muted_one_is_recorded_and_not_told(self):
        self.set_code_error()
        self.look(times=6)
        [alert] = self.database.all("SELECT * FROM alert")
        self.queue.alerts.mute(alert["id"], "1h")
        self.send_all()
        self.set_code_error(None)
        self.pass_time(HOUR - 120)
        self.assertEqual(self.open(), [])
        self.assertEqual(self.subjects(), ["tasks.py is broken"])

    def test_one_muted_until_it_ends_ends_by_itself_and_in_silence(self):
        self.set_code_error()
        self.look(times=8)
        self.queue.alerts.mute(self.database.value("SELECT id FROM alert"), "end")
        self.pass_time(30 * HOUR)
        self.set_code_error(None)
        self.pass_time(600)
        self.assertEqual((self.open(), self.subjects()), ([], ["tasks.py is broken"]))

    def test_an_ended_one_cannot_be_muted(self):
        with self.refused(jobqueue.NotFound, "no open alert"):
            self.queue.alerts.mute(1, "1h")

    def test_after_a_standstill_one_message_tells_all(self):
        self.break_one()
        self.look(times=2)
        for number in range(30):
            self.break_one("error %s" % chr(0x100 + number))
        self.schedule("every 10m", catch_up="once")
        self.clock.advance(3 * 24 * HOUR)
        self.tick()
        before = len(self.messages())
        self.look(times=20)
        self.assertEqual(len(self.messages()), before + 1)

    def test_nothing_is_told_to_nobody_but_it_is_there(self):
        self.change_settings(alert_mail="")
        self.set_code_error()
        self.look(times=8)
        self.assertEqual(self.open(), ["code"])
        self.change_settings(alert_mail="ops@example.org")
        self.look()
        self.assertEqual(self.subjects(), ["tasks.py is broken"])

    def test_each_recipient_gets_one_message(self):
        self.change_settings(alert_mail="ops@example.org, eve@example.org",
                             alert_webhook="https://hooks.example.org/secret-path", alert_function="greet")
        self.set_code_error()
        self.look(times=8)
        rows = list(map(tuple, self.database.all("SELECT channel, recipient FROM delivery ORDER BY id")))
        self.assertEqual([row[0] for row in rows], ["mail", "mail", "webhook", "function"])
        self.assertNotIn("secret-path", repr(rows))


class TestConditions(AlertsCase):
    def test_a_broken_tasks_file_opens_when_it_is_seen_twice_in_a_row_and_ends_when_it_is_not(self):
        self.set_code_error()
        self.look()
        self.set_code_error(None)
        self.look()
        self.set_code_error()
        self.look()
        self.assertEqual((self.open(), self.messages()), ([], []))
        self.look()
        self.assertEqual(self.open(), ["code"])
        self.set_code_error(None)
        self.look(181)
        self.assertEqual((self.open(), self.subjects()),
                         ([], ["tasks.py is broken", "Resolved: tasks.py is broken"]))

    def test_one_that_comes_and_goes_is_told_twenty_times_an_hour_at_most(self):
        for number in range(120):
            self.set_code_error("it is broken" if number // 5 % 2 else None)
            self.look(30)
        self.assertLessEqual(len(self.messages()), 20)

    def test_no_worker_backlog_and_a_missed_schedule_are_one_mail_and_one_recovery(self):
        self.schedule("every 10m")
        task = self.add()
        self.break_starts()
        self.clock.advance(2 * HOUR)
        self.queue.schedule_runner.fire(self.clock.now())
        self.pass_time(1800)
        self.assertEqual(self.open(), ["no_worker"])
        [message] = self.messages()
        self.assertIn("Therefore: the oldest task", "\n".join(message["lines"]))
        self.assertIn("Therefore: the schedule 1 (add): the run added at 10:00 UTC was late",
                      "\n".join(message["lines"]))
        self.live()
        while self.claim():
            pass
        self.write("UPDATE schedule SET last_at=late_at+1")
        self.pass_time(600)
        self.assertEqual(self.subjects(), ["no worker starts", "Resolved: no worker starts"])
        self.assertTrue(task)

    def test_a_task_that_waits_longer_than_wanted_opens_and_ends_under_half_of_it(self):
        self.change_settings(alert_wait=600)
        self.add()
        self.pass_time(570)
        self.assertEqual(self.open(), [])
        self.pass_time(90)
        self.assertEqual(self.open(), ["waiting"])
        self.run_one()
        self.pass_time(360)
        self.assertEqual(self.open(), [])

    def test_a_paused_queue_and_no_wanted_worker_are_no_wait(self):
        self.add()
        self.queue.queues.change("default", {"paused": True}, "ana", False)
        self.pass_time(2 * HOUR)
        self.assertEqual(self.open(), [])
        self.queue.queues.change("default", {"paused": False}, "ana", False)
        self.change_settings(NbMaxWorker=0)
        self.pass_time(2 * HOUR)
        self.assertEqual(self.open(), [])

    def test_a_schedule_that_was_late_by_more_than_ten_minutes_opens_until_its_next_run(self):
        self.schedule("every 10m")
        self.clock.advance(2 * HOUR)
        self.queue.schedule_runner.fire(self.clock.now())
        self.look(times=2)
        self.assertEqual(self.open(), ["missed"])
        self.run_one()
        self.clock.advance(600)
        self.queue.schedule_runner.fire(self.clock.now())
        self.run_one()
        self.pass_time(360)
        self.assertEqual(self.open(), [])

    def test_a_schedule_that_cannot_add_its_task_opens(self):
        self.schedule("every 10m")
        self.declare()
        self.clock.advance(601)
        self.queue.schedule_runner.fire(self.clock.now())
        self.look(times=2)
        self.assertEqual(self.open(), ["problem"])

    def test_a_full_disk_opens_and_ends_a_fifth_above(self):
        room = mock.Mock(f_bavail=90, f_frsize=1 << 20, f_files=0)
        self.patch(jobqueue, "LOW_DISK_BYTES", 100 << 20)
        self.patch(os, "statvfs", lambda _: room)
        self.look(times=2)
        self.assertEqual(self.open(), ["disk"])
        room.f_bavail = 110
        self.pass_time(600)
        self.assertEqual(self.open(), ["disk"])
        room.f_bavail = 130
        self.pass_time(330)
        self.assertEqual(self.open(), [])

    @about_sqlite("its log")
    def test_a_long_log_of_the_database_opens(self):
        self.patch(self.database, "journal", "wal")
        self.patch(self.database, "wal_bytes", lambda: 99 << 20)
        self.pass_time(150)
        self.assertEqual(self.open(), ["log"])

    def test_an_old_backup_opens_only_once_one_was_made(self):
        self.look(30 * 24 * HOUR)
        self.assertEqual(self.open(), [])
        with self.database.transaction() as transaction:
            jobqueue.remember(transaction, "backup", {"at": self.clock.now(), "path": "x"})
        self.look(6 * 24 * HOUR)
        self.assertEqual(self.open(), [])
        self.look(24 * HOUR)
        self.look()
        self.assertEqual(self.open(), ["backup"])

    def test_every_row_of_the_table_is_looked_at(self):
        rows = {code: row for code, row in jobqueue.FINDINGS.items() if row.alert}
        self.assertEqual(len(rows), 11)
        for code, row in rows.items():
            self.assertTrue(code == "failed" or callable(getattr(jobqueue.Conditions, code)), code)
            self.assertLessEqual(set(filter(None, row.causes.split(","))), set(rows), code)

    def test_one_process_of_two_tells(self):
        other = self.another_queue()
        self.set_code_error()
        for _ in range(10):
            self.clock.advance(31)
            self.queue.alerts.check(self.clock.now())
            other.alerts.check(self.clock.now())
        self.assertEqual(len(self.messages()), 1)

    def test_what_another_process_counts_in_the_same_moment_is_counted_once(self):
        other, look = self.another_queue(), self.queue.conditions.disk

        def looked_at(held=False):
            other.alerts.check(self.clock.now())
            return look(held)
        self.break_one()
        self.queue.conditions.disk = looked_at
        self.look()
        self.assertEqual(self.database.value("SELECT sum(count) FROM alert"), 1)

    def test_nothing_is_written_while_nothing_happens(self):
        self.look()
        version = self.database.version_seen()
        self.look(times=5)
        self.assertEqual(self.database.version_seen(), version)


class TestOwners(AlertsCase):
    def setUp(self):
        super().setUp()
        self.write("UPDATE user SET email='bob@example.org' WHERE name='bob'")

    def told(self):
        return [one["lines"] for one in self.messages("bob@example.org")]

    def test_the_owner_who_asked_for_it_is_told_of_the_end(self):
        task = self.add(options={"notify": "end"})
        self.run_one()
        self.look()
        self.assertEqual(self.told(), [["Task %d (add) succeeded" % task]])

    def test_one_who_asked_for_failures_only_hears_of_nothing_else(self):
        for kind in ("succeeded", "fail"):
            self.add(options={"notify": "failure"})
            self.run_one(kind, None, kind, "why not")
        self.look()
        self.assertEqual(self.told(), [["Task 2 (add) failed: fail: why not"]])

    def test_it_links_to_the_task_and_ends_in_the_last_lines_of_its_log(self):
        self.change_settings(page_address="https://example.org/jq/")
        task = self.add(options={"notify": "end"})
        self.print_lines(task, "".join("line %d\n" % number for number in range(30)))
        self.run_one()
        self.look()
        [message] = self.messages("bob@example.org")
        link = "https://example.org/jq/#/tasks/%d" % task
        self.assertEqual((message["subject"], message["lines"], message["link"]), (
            "Task %d (add) succeeded" % task, ["Task %d (add) succeeded. %s" % (task, link)], link))
        self.assertEqual((message["task"], message["log"]), (task, ["line %d" % n for n in range(20, 30)]))

    def test_others_are_not_told_and_nobody_without_an_address(self):
        self.add("eve", options={"notify": "end"})
        self.run_one()
        self.add("bob")
        self.run_one()
        self.look()
        self.assertEqual(self.told(), [])

    def test_many_that_ended_are_one_message(self):
        self.add_many("bob", 150, options={"notify": "end"})
        for row in iter(self.claim, None):
            self.end(row)
        self.look()
        [message] = self.messages("bob@example.org")
        self.assertEqual((len(message["lines"]), message["lines"][-1]), (31, "... and 120 more."))

    def test_a_disabled_owner_is_told_nothing(self):
        self.add(options={"notify": "end"})
        self.run_one()
        self.write("UPDATE user SET disabled=1 WHERE name='bob'")
        self.look()
        self.assertEqual(self.told(), [])


def decode_word(encoding, text):
    """The text of an encoded word of UTF-8; each must be whole characters."""
    data = base64.b64decode(text) if encoding == "b" else quopri.decodestring(text, header=True)
    return data.decode("utf-8")


class TestMessages(unittest.TestCase):
    """No text can become a header."""

    def message(self, subject, lines=("x",)):
        return jobqueue.mail_message(
            {"kind": "alert", "subject": subject, "lines": list(lines), "thread": 3},
            "jobs@example.org", "ops@example.org", {"id": 7, "created_at": 1_800_000_000.5})

    def test_a_subject_cannot_smuggle_a_header(self):
        for bad in ("a\r\nBcc: x@example.org", "a\nBcc: x@example.org", "a\r\n\r\nbody", "a\0b", "\udc80 x",
                    "=?utf-8?q?=0D=0ABcc:_x=40example.org?=", "a\u2028Bcc: x", "x" * 5000,
                    "a\x0bBcc: x", "a\x85Bcc: x"):
            with self.subTest(bad[:40]):
                data = self.message(bad).as_bytes()
                head = data.partition(b"\r\n\r\n")[0]
                self.assertNotRegex(head, rb"(?mi)^bcc")
                self.assertEqual(len(head.split(b"\r\nSubject:")), 2)
                self.assertTrue(head.isascii())

    def test_a_subject_is_encoded_as_rfc_2047_says(self):
        for subject in ("caf\u00e9 failed", "a" * 140, "x " * 70 + "\u00e9", "\u4e2d" * 150, "\u00fc" * 120,
                        "Commande et livraison - bibijolie - 251210-AABBCC - Abo actualit\u00e9s digitales "
                        "20 semaines d\u2019abonnement \u00e0 24 heures", "[\u00e9] \u00fc " * 30,
                        "\U0001f469\u200d\U0001f467 family " * 9, "failed:   three   spaces \u00e4"):
            with self.subTest(subject[:30]):
                head = self.message(subject).as_bytes().decode("ascii").partition("\r\n\r\n")[0]
                lines = re.search(r"^Subject:[^\r]*(?:\r\n [^\r]*)*", head, re.MULTILINE)[0].split("\r\n")
                self.assertLess(max(map(len, lines)), 79)
                told, was_encoded = "", True
                for space, word in re.findall("([ \r\n]*)([^ \r\n]+)", "\r\n".join(lines)[len("Subject:"):]):
                    encoded = re.fullmatch(r"=\?utf-8\?([bq])\?([^? ]+)\?=", word)
                    self.assertLessEqual(len(word) if encoded else 0, 75)
                    if not encoded:
                        self.assertNotIn("=?", word)
                    told += "" if encoded and was_encoded else space.replace("\r\n", "")
                    told += decode_word(*encoded.groups()) if encoded else word
                    was_encoded = bool(encoded)
                self.assertEqual(told.strip(), "[jobqueue] " + jobqueue.header_text(subject).strip())

    def test_what_a_program_needs_to_tell_it_from_peoples_mail_is_there(self):
        message = self.message("add failed")
        self.assertEqual(str(message["Subject"]), "[jobqueue] add failed")
        self.assertEqual(message["Auto-Submitted"], "auto-generated")
        self.assertEqual(message["Message-ID"], "<jobqueue.7.1800000000500@example.org>")
        self.assertEqual(message["References"], "<jobqueue.alert.3@example.org>")
        self.assertEqual(message["Message-ID"], self.message("add failed")["Message-ID"])

    def test_a_body_of_any_text_is_plain_ascii_on_its_way(self):
        data = self.message("x", ["ä" * 2000, ".", "From me", "\udc80"]).as_bytes()
        self.assertTrue(data.isascii())
        self.assertLess(max(map(len, data.split(b"\r\n"))), 100)

    def test_an_address_that_could_be_something_else_is_refused(self):
        for bad in ("-t@example.org", "ä@example.org", "a b", "a@b\r\nBcc: c@d", "a@", "@b", "=?x?=@b",
                    "a@-b"):
            with self.subTest(bad):
                self.assertIsNone(jobqueue.re.fullmatch(jobqueue.MAIL_ADDRESS, bad))
        for good in ("ana@example.org", "a.b+c@mail.example.co.uk", "root@localhost"):
            self.assertTrue(jobqueue.re.fullmatch(jobqueue.MAIL_ADDRESS, good))

    def test_addresses_inside_are_known_as_such(self):
        for inside in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
                       "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "::ffff:127.0.0.1",
                       "fe80::1%eth0", "fc00::1", "ff02::1", "64:ff9b::7f00:1", "2002:7f00:1::",
                       "2001::1", "2001:db8::1", "64:ff9b:1::1", "198.18.0.1", "240.0.0.1"):
            self.assertTrue(jobqueue.is_inside(inside), inside)
        for outside in ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450::1", "172.32.0.1"):
            self.assertFalse(jobqueue.is_inside(outside), outside)


class TestSettings(AlertsCase):
    def test_a_webhook_is_a_secret_that_stays_as_it_is_when_it_is_sent_back(self):
        secret = "https://hooks.slack.com/services/T0/B0/canary"
        self.change_settings(alert_webhook=secret)
        shown = {one["name"]: one["value"] for one in self.queue.settings.describe()}
        self.assertNotIn("canary", repr(shown))
        self.change_settings(alert_webhook=shown["alert_webhook"])
        self.assertEqual(self.queue.settings.get("alert_webhook"), secret)

    def test_wrong_values_are_refused(self):
        for name, bad in {"alert_mail": "nobody", "mail_server": "a b", "mail_from": "x",
                          "alert_webhook": "file:///etc/passwd"}.items():
            with self.subTest(name), self.refused(jobqueue.Invalid, "must be"):
                self.change_settings(**{name: bad})
        for bad in ("https://user:word@example.org/", "ftp://example.org", "https://", "x",
                    "https://e.org/ä"):
            with self.subTest(bad), self.refused(jobqueue.Invalid):
                self.change_settings(alert_webhook=bad)

    def test_spaces_and_commas_around_addresses_do_not_matter(self):
        self.change_settings(mail_from=" a@example.org ", alert_mail=" b@example.org,c@example.org ,")
        self.assertEqual(self.queue.settings.get("mail_from"), "a@example.org")
        self.assertEqual(jobqueue.recipients_of_alerts(self.queue.settings),
                         [("mail", "b@example.org"), ("mail", "c@example.org")])

    def test_a_mail_server_is_a_host_and_a_port_which_is_587_unless_said(self):
        for right in ("mail.example.org:587", "[::1]:25", ""):
            self.change_settings(mail_server=right)
            self.assertEqual(self.queue.settings.get("mail_server"), right)
        self.change_settings(mail_server="mail.example.org")
        self.assertEqual(self.queue.settings.get("mail_server"), "mail.example.org:587")
        for bad in ("mail.example.org:0", "mail.example.org:99999", ":25", "a:1:2"):
            with self.subTest(bad), self.refused(jobqueue.Invalid, "a host and a port"):
                self.change_settings(mail_server=bad)


    def test_a_password_in_place_of_its_files_path_is_neither_stored_nor_shown(self):
        for bad in ("hunter2-secret", str(self.folder / "hunter2-secret"), str(self.folder)):
            with self.assertRaises(jobqueue.Invalid) as refused:
                self.change_settings(mail_password_file=bad)
            self.assertIn("must be the whole path of a file", str(refused.exception))
            self.assertNotIn("hunter2", repr((refused.exception, refused.exception.errors)))
        self.assertEqual(self.queue.settings.get("mail_password_file"), "")
        self.write("INSERT INTO setting (name, value) VALUES ('mail_password_file', '\"hunter2\"')")
        self.queue.settings.change({})
        self.assertNotIn("hunter2", repr(self.queue.settings.describe()))
        path = self.folder / "password.txt"
        path.write_text("x")
        self.change_settings(mail_password_file=str(path))
        self.assertEqual(self.queue.settings.password_file(), path)


class TestOverHttp(AlertsCase, WebTestCase):
    def setUp(self):
        super().setUp()
        self.bob = self.browser("bob")

    def test_a_user_asks_for_mail_about_a_task_that_is_there_also_while_it_runs(self):
        self.write("UPDATE user SET email='bob@example.org' WHERE name='bob'")
        task_id = self.add("bob")
        path = "/api/tasks/%d" % task_id
        row = self.claim()
        self.assertEqual(self.bob.patch(path, {"notify": "end"}).json["notify"], "end")
        self.assertEqual(self.bob.patch(path, {"notify": "sometimes"}).status, 422)
        self.assertEqual(self.bob.patch(path, {"priority": 5}).status, 422)
        self.assertEqual(self.bob.patch(path, {}).status, 200)
        self.end(row)
        self.look()
        self.assertEqual(self.messages("bob@example.org")[0]["lines"], ["Task %d (add) succeeded" % task_id])
        self.check(self.bob.patch(path, {"notify": None}), 409, "conflict")

    def test_a_session_says_whether_mail_can_be_sent(self):
        self.patch(jobqueue, "SENDMAIL_PLACES", "")
        with mock.patch.dict(os.environ, PATH=str(self.folder)):
            self.assertFalse(self.bob.get("/api/session").json["mail"])
            self.change_settings(mail_server="mail.example.org")
            self.assertTrue(self.bob.get("/api/session").json["mail"])

    def test_a_test_is_seen_to_be_sent_until_it_is(self):
        self.ana.post("/api/alerts/test", {})
        [channel] = self.ana.get("/api/alerts").json["channels"]
        self.assertTrue(channel["sending"])
        self.send_all()
        [channel] = self.ana.get("/api/alerts").json["channels"]
        self.assertEqual((channel["sending"], bool(channel["sent_at"])), (False, True))

    def test_admins_see_and_mute_alerts_and_others_do_not(self):
        self.break_one()
        self.look(times=2)
        [alert] = self.ana.get("/api/alerts").json["alerts"]
        self.assertEqual((alert["title"], alert["ended_at"]), ("add failed", None))
        muted = self.ana.post("/api/alerts/%d/mute" % alert["id"], {"how": "8h"}).json
        self.assertTrue(muted["muted_until"])
        self.assertIsNone(self.ana.post("/api/alerts/%d/mute" % alert["id"],
                                        {"how": "no"}).json["muted_until"])
        self.assertEqual(self.bob.get("/api/alerts").status, 403)
        self.assertEqual(self.bob.post("/api/alerts/%d/mute" % alert["id"], {"how": "1h"}).status, 403)

    def test_a_test_is_put_into_the_outbox_once_for_each_recipient_and_tried_once(self):
        [made] = self.ana.post("/api/alerts/test", {}).json["deliveries"]
        row = self.database.one("SELECT * FROM delivery WHERE id=?", (made["id"],))
        self.assertEqual(row["tries"], 4)
        self.assertIn("--send", self.started[-1])
        self.change_settings(alert_mail="")
        self.assertEqual(self.ana.post("/api/alerts/test", {}).status, 409)

    def test_admins_give_addresses_to_anybody_and_users_to_nobody_else(self):
        self.assertEqual(self.ana.patch("/api/users/bob", {"email": "b@example.org"}).json["email"],
                         "b@example.org")
        self.assertEqual(self.bob.patch("/api/users/eve", {"email": "b@example.org"}).status, 404)
        self.assertEqual(self.bob.patch("/api/users/bob", {"email": "c@example.org"}).status, 403)
        self.assertEqual(self.ana.patch("/api/users/bob", {"email": "x"}).status, 422)
        self.assertEqual(self.bob.get("/api/session").json["user"]["email"], "b@example.org")

    def test_users_remove_their_own_address(self):
        self.ana.patch("/api/users/bob", {"email": "b@example.org"})
        self.assertEqual(self.bob.patch("/api/users/eve", {"email": None}).status, 404)
        self.assertIsNone(self.bob.patch("/api/users/bob", {"email": None}).json["email"])
        self.assertEqual(self.ana.patch("/api/users/ana", {"email": "a@example.org"}).json["email"],
                         "a@example.org")

    def test_a_channel_that_fails_for_good_is_a_finding(self):
        with self.database.transaction() as transaction:
            jobqueue.post_message(transaction, ("mail", "ops@example.org"), {
                "kind": "alert", "subject": "x", "lines": []}, self.clock.now())
        self.write("UPDATE delivery SET tries=5, next_at=NULL, error='535 not you'")
        found = jobqueue.check_host(self.queue).findings
        self.assertIn("535 not you", [str(one) for one in found if one.code == "channel_fails"][0])
        [channel] = self.ana.get("/api/alerts").json["channels"]
        self.assertEqual(channel["error"], "535 not you")

    def test_messages_that_no_process_sends_are_a_finding(self):
        self.ana.post("/api/alerts/test", {})
        self.assertEqual([one.code for one in jobqueue.check_host(self.queue).findings
                          if one.code == "outbox_waits"], [])
        self.clock.advance(901)
        self.assertIn("outbox_waits", [one.code for one in jobqueue.check_host(self.queue).findings])

    def test_check_says_which_function_fails_most(self):
        self.break_one()
        self.break_one()
        self.add(function="greet", name="x", options={"max_retries": 0})
        self.run_one("fail", None, "ValueError", "x")
        [tasks] = [one.text for one in jobqueue.check_host(self.queue).checks if one.name == "Tasks"]
        self.assertIn("3 failed in the last day, most often add (2)", tasks)


class TestCourier(AlertsCase):
    """How tries are counted; real servers are in processes/test_alerts.py."""

    def setUp(self):
        super().setUp()
        self.told, self.error = [], None
        self.patch(jobqueue, "send_mail", self.send)
        self.courier = jobqueue.DeliverySender(
            self.database, self.queue.settings, self.queue.enqueue, self.queue.catalogue.find)
        with self.database.transaction() as transaction:
            jobqueue.post_message(transaction, ("mail", "ops@example.org"), {
                "kind": "alert", "subject": "x", "lines": ["y"]}, self.clock.now())

    def send(self, _, recipient, content, row):
        self.told.append((recipient, content["subject"]))
        if self.error:
            raise self.error

    def delivery(self):
        return self.database.one("SELECT * FROM delivery ORDER BY id DESC LIMIT 1")

    def test_what_was_sent_is_not_sent_again(self):
        self.courier.run()
        self.clock.advance(9999)
        self.courier.run()
        self.assertEqual(len(self.told), 1)
        self.assertEqual(self.delivery()["sent_at"], self.clock.now() - 9999)

    def test_it_is_tried_five_times_with_longer_pauses(self):
        self.error, began, moments = OSError("no route"), self.clock.now(), []
        for _ in range(200):
            count = len(self.told)
            self.courier.run()
            if len(self.told) > count:
                moments.append(round((self.clock.now() - began) / 60))
            self.clock.advance(60)
        self.assertEqual(moments, [0, 1, 6, 36, 156])
        row = self.delivery()
        self.assertEqual((row["next_at"], row["sent_at"], row["error"]), (None, None, "no route"))

    def test_two_that_send_at_once_send_each_message_once(self):
        with self.database.transaction() as transaction:
            for number in range(15):
                jobqueue.post_message(transaction, ("mail", "ops@example.org"), {
                    "kind": "alert", "subject": str(number), "lines": ["y"]}, self.clock.now())
        other = self.another_queue()
        threads = [threading.Thread(target=courier.run) for courier in (self.courier, jobqueue.DeliverySender(
            other.database, other.settings, other.enqueue, other.catalogue.find))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(self.told), len(set(self.told))), (16, 16))

    def test_a_refusal_ends_the_tries(self):
        self.error = jobqueue.Refused("550 no such user")
        self.courier.run()
        self.assertIsNone(self.delivery()["next_at"])

    def test_one_that_was_killed_in_the_middle_has_spent_a_try(self):
        self.error = SystemExit()
        with self.assertRaises(SystemExit):
            self.courier._send(self.courier._next_due())
        row = self.delivery()
        self.assertEqual((row["tries"], row["error"]), (1, jobqueue.CUT_OFF))
        self.assertEqual(row["next_at"], self.clock.now() + 60)

    def test_a_recipient_who_was_taken_out_is_not_told(self):
        self.change_settings(alert_mail="")
        self.courier.run()
        self.assertEqual(self.told, [])
        self.assertIsNone(self.delivery()["next_at"])

    def test_a_task_is_not_told_to_an_address_that_is_nobodys_any_more(self):
        self.write("UPDATE user SET email='bob@example.org' WHERE name='bob'")
        for _ in range(2):
            with self.database.transaction() as transaction:
                jobqueue.post_message(transaction, ("mail", "bob@example.org"), {
                    "kind": "task", "subject": "t", "lines": ["y"]}, self.clock.now())
            self.courier.run()
            self.write("UPDATE user SET disabled=1 WHERE name='bob'")
        self.assertEqual([one[1] for one in self.told], ["x", "t"])
        self.assertIn("was removed", self.delivery()["error"])

    def test_a_function_gets_a_task_with_what_it_takes(self):
        self.change_settings(alert_function="greet")
        greet = jobqueue.json.loads(json.dumps(self.queue.catalogue.find("greet")))
        greet["schema"]["properties"] = {"text": {"type": "string"}}
        greet["schema"]["required"] = ["text"]
        self.declare(greet)
        with self.database.transaction() as transaction:
            jobqueue.post_message(transaction, ("function", "greet"), {
                "kind": "alert", "subject": "x", "lines": ["what happened"]}, self.clock.now())
        self.courier.run()
        self.assertEqual(json.loads(self.database.value("SELECT arguments FROM task")),
                         {"text": "what happened"})

    def test_a_function_that_is_not_there_is_a_refusal(self):
        self.change_settings(alert_function="nothing")
        with self.database.transaction() as transaction:
            jobqueue.post_message(transaction, ("function", "nothing"), {
                "kind": "alert", "subject": "x", "lines": ["y"]}, self.clock.now())
        self.courier.run()
        self.assertIn("not known", self.delivery()["error"])
        self.assertIsNone(self.delivery()["next_at"])

    def test_an_error_says_no_secret(self):
        secret = "https://hooks.example.org/canary"
        self.change_settings(alert_webhook=secret, alert_mail="ops@example.org")
        self.error = OSError("could not reach %s" % secret)
        self.courier.run()
        self.assertNotIn("canary", self.delivery()["error"])

    def test_an_error_that_repeats_a_part_of_a_secret_or_is_long_says_none_of_it(self):
        self.change_settings(alert_webhook="https://hooks.example.org/services/canary",
                             alert_mail="ops@example.org")
        for words in ("nobody at /services/canary", "x" * 270 + " https://hooks.example.org/services/canary"):
            with self.subTest(words[:9]):
                self.error = OSError(words)
                self.write("UPDATE delivery SET tries=0, next_at=0, error=NULL")
                self.courier.run()
                self.assertNotRegex(self.delivery()["error"], "canary|services")
