"""Who does the housekeeping and how long nobody does: the mark of the last tick, and the figures."""

import errno
import os
import unittest
from unittest import mock

import jobqueue
from jobqueue import NOTE_SECONDS, TICK_PASSING_SECONDS, TICK_SECONDS, renew_mark
from tests.helpers.support import TestCase

MINUTE, QUARTER, HOUR, DAY = 60.0, 900.0, 3600.0, 86400.0


class TestMark(TestCase):
    def setUp(self):
        super().setUp()
        self.mark = self.folder / "some mark"

    def take(self, least=10.0):
        return renew_mark(self.mark, self.clock.now(), least)

    def test_it_is_free_at_first_and_again_when_it_is_old_enough(self):
        self.assertTrue(self.take())
        for seconds, free in ((0, False), (9, False), (1, True), (1, False)):
            self.clock.advance(seconds)
            self.assertEqual(self.take(), free)
        self.assertEqual(os.stat(self.mark).st_mtime, self.clock.now() - 1)

    def test_a_clock_that_jumps_back_frees_it(self):
        self.take()
        self.clock.wall -= DAY
        self.assertTrue(self.take())
        self.assertFalse(self.take())

    def test_where_none_can_be_set_all_go_on(self):
        for name in ("open", "utime"):
            with mock.patch("os." + name, side_effect=OSError(errno.EROFS, "read-only")):
                self.assertEqual([self.take(), self.take()], [True, True])

    def test_only_its_owner_may_read_it(self):
        self.take()
        self.assertEqual(os.stat(self.folder / "some mark").st_mode & 0o777, 0o600)


class TestWhoTicks(TestCase):
    """Any number of processes, each new: at most one of them ticks in a few seconds."""

    def new_process(self, source="request"):
        queue = self.another_queue()
        ticked = self.look_in(source, queue)
        queue.close()
        return ticked

    def ticks(self, processes, pause, source="request"):
        """How many of so many processes, one after the other, ticked."""
        count = 0
        for _ in range(processes):
            self.clock.advance(pause)
            count += self.new_process(source)
        return count

    def test_requests_tick_once_in_a_few_seconds_however_many_come(self):
        self.assertIn(self.ticks(100, 0.2), (4, 5))
        self.assertEqual(self.ticks(5, TICK_PASSING_SECONDS), 5)

    def test_most_of_them_write_nothing(self):
        self.new_process()
        version = self.database.version_seen()
        self.ticks(30, 1)
        self.assertEqual(self.database.version_seen(), version)

    def test_where_somebody_stays_ticks_come_as_often_as_ever_whatever_requests_do(self):
        count = 0
        for _ in range(60):
            self.clock.advance(1)
            count += self.new_process() + self.look_in("server")
        self.assertGreaterEqual(count, 60 / TICK_SECONDS - 1)

    def test_workers_share_their_ticks(self):
        queues = [self.another_queue() for _ in range(4)]
        count = 0
        for _ in range(30):
            self.clock.advance(1)
            count += sum(self.look_in("worker", queue) for queue in queues)
        self.assertIn(count, (15, 16))

    def test_a_schedule_that_is_due_does_not_wait_for_the_next_tick(self):
        self.queue.schedules.add({"function": "add", "arguments": {"a": 1}, "rule": "every 2s",
                                  "overlap": "allow"}, self.owner_id("bob"))
        self.assertIn(self.ticks(20, 1), (9, 10, 11))
        self.assertGreaterEqual(self.database.value("SELECT count(*) FROM task"), 8)

    def test_a_clock_that_jumps_back_stops_nobody(self):
        self.new_process()
        self.clock.wall -= 5 * HOUR
        self.assertEqual(self.ticks(10, 1), 2)

    def test_an_add_frees_the_place_of_a_dead_worker_though_somebody_has_just_ticked(self):
        self.change_settings(NbMaxWorker=1)
        self.add()
        self.assertEqual(len(self.started), 1)
        self.write("UPDATE worker SET state='idle', lock_proven=1")
        self.new_process("worker")
        self.queue.workers.locks.mkdir(exist_ok=True)
        (self.queue.workers.locks / self.database.value("SELECT lock FROM worker")).touch()
        queue = self.another_queue()
        self.assertFalse(self.look_in("request", queue))
        queue.add([{"function": "add", "arguments": {"a": 1}}], self.owner_id("bob"))
        self.assertEqual(len(self.started), 2)

    def test_a_request_leaves_long_work_to_others(self):
        with mock.patch.object(self.queue.retention, "prune") as prune:
            self.look_in("request")
            self.clock.advance(10)
            self.assertFalse(prune.called)
            self.look_in("worker")
            self.assertTrue(prune.called)


class TestState(TestCase):
    def setUp(self):
        super().setUp()
        for part in ("_promote", "_fire_schedules", "_sweep"):
            nothing = mock.patch.object(self.queue.tick, part)
            nothing.start()
            self.addCleanup(nothing.stop)

    def come(self, source, *times):
        """Somebody ticks at these times, counted from now; the clock is left at the last of them."""
        start = self.clock.now()
        for at in times:
            self.clock.advance(start + at - self.clock.now())
            if source == "cron":
                self.queue.tick.run(source)
            else:
                self.look_in(source)

    def every(self, seconds, count, source="cron"):
        self.come(source, *(seconds * (number + 1) for number in range(count)))

    @property
    def period(self):
        return self.queue.tick_history.state()["period"]

    def test_nothing_is_known_at_first(self):
        self.assertEqual(self.queue.tick_history.state(), {
            "last_at": None, "last_source": None, "period": None, "cron": None, "resident": False})

    def test_who_came_last_is_told(self):
        self.come("request", 0, 70)
        state = self.queue.tick_history.state()
        self.assertEqual((state["last_source"], state["last_at"][11:19]), ("request", "08:01:10"))
        self.come("cron", 30)
        self.assertEqual(self.queue.tick_history.state()["last_source"], "cron")

    def test_cron_tells_its_period_when_it_has_come_twice(self):
        self.every(QUARTER, 1)
        self.assertEqual(self.queue.tick_history.state()["cron"]["period"], None)
        self.every(QUARTER, 1)
        self.assertEqual(self.queue.tick_history.state()["cron"], {
            "last_at": "2027-01-15T08:30:00.000Z", "period": 900})
        self.assertEqual(self.period, 900)

    def test_a_cron_that_skips_and_comes_at_odd_minutes_has_its_usual_period(self):
        self.come("cron", *(MINUTE * minute for minute in (0, 16, 29, 46, 76, 90, 104, 121, 151, 165)))
        self.assertAlmostEqual(self.period / MINUTE, 15, delta=2)

    def test_two_lines_of_one_minute_are_one_visit(self):
        self.come("cron", 0, 3, 900, 903, 1800, 1803)
        self.assertEqual(self.period, 900)

    def test_who_clicks_by_day_does_not_hide_how_rarely_cron_comes(self):
        for _ in range(2):
            for number in range(160):
                self.come("cron" if number % 5 == 0 else "request", 3 * MINUTE)
            self.assertAlmostEqual(self.period, 900, delta=90)
            self.every(QUARTER, 16 * 4)
            self.assertAlmostEqual(self.period, 900, delta=90)

    def test_where_only_people_look_nothing_is_forecast(self):
        self.every(5 * MINUTE, 12 * 30, "request")
        self.assertIsNone(self.period)

    def test_a_cron_that_stopped_counts_no_more(self):
        self.every(QUARTER, 96 * 2)
        self.come("request", 14 * HOUR)
        self.assertIsNone(self.period)

    def test_a_cron_that_was_set_up_is_seen_at_once(self):
        for _ in range(3):
            self.come("request", 14 * HOUR)
            self.every(5 * MINUTE, 120, "request")
        self.every(QUARTER, 3)
        self.assertEqual(self.period, 900)

    def test_a_server_is_there_as_long_as_it_says_so(self):
        self.every(1, 120, "server")
        self.assertTrue(self.queue.tick_history.state()["resident"])
        self.assertEqual(self.period, TICK_SECONDS)
        self.clock.advance(3 * NOTE_SECONDS)
        self.assertFalse(self.queue.tick_history.state()["resident"])
        self.assertIsNone(self.period)

    def test_a_server_writes_once_a_minute_and_its_ticks_are_known_to_itself(self):
        self.every(1, 100, "server")
        other, writes = self.another_queue(), 0
        version = other.database.version_seen()
        for _ in range(300):
            self.every(1, 1, "server")
            writes += other.database.version_seen() != version
            version = other.database.version_seen()
        self.assertLessEqual(writes, 6)

    def test_a_worker_that_never_ends_is_as_good_as_a_server(self):
        self.reserve("service")
        self.write("UPDATE worker SET state='idle'")
        self.assertTrue(self.queue.tick_history.state()["resident"])

    def test_a_clock_that_jumped_begins_anew(self):
        self.every(QUARTER, 100)
        for jump in (300 * DAY, -300 * DAY):
            self.clock.wall += jump
            self.every(20 * MINUTE, 3)
            self.assertEqual(self.period, 1200)

    def test_clocks_of_two_machines_that_differ_a_little_change_nothing(self):
        self.every(QUARTER, 5)
        for _ in range(5):
            self.clock.wall -= 5
            self.come("worker", 0)
            self.clock.advance(QUARTER)
            self.clock.wall += 5
            self.come("cron", 0)
        self.assertAlmostEqual(self.period, QUARTER, delta=10)

    def test_who_came_once_and_never_again_says_nothing(self):
        self.come("request", 0)
        self.clock.advance(3 * DAY)
        self.assertIsNone(self.period)

    def test_a_full_disk_hurts_nothing(self):
        with mock.patch.object(jobqueue, "remember", side_effect=jobqueue.StorageFull("full")):
            self.assertTrue(self.look_in("request"))
        self.clock.advance(60)
        self.assertTrue(self.look_in("request"))


class TestWarnings(TestCase):
    """A schedule whose runs were late, or fell together, is said to be, in words."""

    def schedule(self, rule, **options):
        return super().schedule(rule, **{"overlap": "allow", **options})

    def comes_every(self, seconds, times=2):
        for _ in range(times):
            self.clock.advance(seconds)
            self.queue.tick.run("cron")

    def warning(self, schedule_id):
        return self.queue.schedules.get(schedule_id)["warning"]

    def test_it_says_when(self):
        for word in ("once", "all", "none"):
            schedule_id = self.schedule("*/5 * * * *", catch_up=word)
            self.comes_every(QUARTER)
            self.assertEqual(self.warning(schedule_id),
                             "The run added at %s was late, or replaced several missed runs."
                             % jobqueue.time_of_day(self.clock.now()))

    def test_only_what_was_late_is(self):
        self.comes_every(QUARTER)
        for rule, told in (("every 10m", True), ("every 15m", False), ("0 9,10 * * *", False),
                           ("daily 01:00", False), ("every 30s", True)):
            schedule_id = self.schedule(rule)
            self.comes_every(QUARTER, 4)
            self.assertEqual(bool(self.warning(schedule_id)), told, rule)

    def test_where_only_people_look_a_run_that_came_much_too_late_is_told(self):
        schedule_id = self.schedule("every 1h")
        self.clock.advance(HOUR + 60)
        self.queue.tick.run("request")
        self.assertIsNone(self.warning(schedule_id))
        self.clock.advance(HOUR + QUARTER)
        self.queue.tick.run("request")
        self.assertIn("was late, or replaced", self.warning(schedule_id))
        self.clock.advance(DAY)
        self.assertIsNone(self.warning(schedule_id))

    def test_nothing_is_said_after_another_rule(self):
        schedule_id = self.schedule("every 1s")
        self.assertIsNone(self.warning(schedule_id))
        self.comes_every(QUARTER)
        self.assertTrue(self.warning(schedule_id))
        self.queue.schedules.change(schedule_id, {"rule": "every 2h"})
        self.assertIsNone(self.warning(schedule_id))

    def test_a_paused_one_is_not_warned_about(self):
        schedule_id = self.schedule("every 1m")
        self.comes_every(QUARTER)
        self.assertTrue(self.warning(schedule_id))
        self.queue.schedules.change(schedule_id, {"paused": True})
        self.assertIsNone(self.warning(schedule_id))

    def test_check_says_how_many(self):
        for _ in range(3):
            self.schedule("every 1m")
        self.schedule("daily 01:00")
        self.comes_every(QUARTER)
        check = next(one for one in jobqueue.check_host(self.queue).checks if one.name == "Schedules")
        self.assertEqual(check.verdict, "note")
        self.assertRegex(check.text, r"4 schedules; the schedule 1 \(add\): The run added at .*; and 2 more")


class TestWords(unittest.TestCase):
    def test_how_often_something_comes(self):
        for seconds, words in (
                (1, "every second"), (2, "every 2 seconds"), (60, "every minute"), (61, "every minute"),
                (90, "every 90 seconds"), (290, "every 5 minutes"), (899, "every 15 minutes"),
                (3540, "every hour"), (5400, "every 90 minutes"), (3600, "every hour"),
                (50400, "every 14 hours"), (86400, "every day"), (86400 * 3, "every 3 days")):
            self.assertEqual(jobqueue.how_often(seconds), words)
