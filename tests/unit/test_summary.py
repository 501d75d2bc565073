"""Summaries of yesterday and last week: their days, their figures, and the mail with them."""
import json
from datetime import datetime, timezone
from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD, TestCase
from tests.helpers.web import WebTestCase

OSLO = "Europe/Oslo"
WEEK = "Last week (Monday to Sunday): 2 succeeded in 3 min of work, 4 failed (add 3, greet 1)."


def moment(text):
    """The seconds since 1970 of a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


class Days(TestCase):

    def spans(self, zone, now):
        return {span.name: (jobqueue.iso(span.start)[:16], jobqueue.iso(span.end)[:16])
                for span in jobqueue.past_spans(zone, moment(now))}

    def test_days_and_weeks_are_those_of_the_zone(self):
        self.assertEqual(self.spans("UTC", "2026-11-25T12:00"), {       # a Wednesday
            "yesterday": ("2026-11-24T00:00", "2026-11-25T00:00"),
            "last_week": ("2026-11-16T00:00", "2026-11-23T00:00")})
        self.assertEqual(self.spans(OSLO, "2026-11-24T23:30")["yesterday"],
                         ("2026-11-23T23:00", "2026-11-24T23:00"))
        self.assertEqual(self.spans("UTC", "2026-11-23T00:00")["last_week"],
                         ("2026-11-16T00:00", "2026-11-23T00:00"))

    def test_a_day_on_which_the_clocks_change_has_23_or_25_hours(self):
        start, end = self.spans(OSLO, "2026-10-26T12:00")["yesterday"]
        self.assertEqual((start, end), ("2026-10-24T22:00", "2026-10-25T23:00"))

    def test_days_of_an_unknown_zone_are_those_of_utc(self):
        now = "2026-11-25T12:00"
        self.assertEqual(self.spans("Europe/Nowhere", now), self.spans("UTC", now))


class Summary(WebTestCase):

    def setUp(self):
        super().setUp()
        self.go_to("2026-11-24T10:00")      # a Tuesday
        for user in ("bob", "eve"):
            self.work(user, 90)
        for function, count in (("add", 3), ("greet", 1)):
            for _ in range(count):
                self.fail_one(function)
        self.go_to("2026-11-25T05:30")

    def go_to(self, text):
        """Time passes until then."""
        self.clock.advance(moment(text) - self.clock.now())

    def work(self, owner, seconds):
        self.add(owner)
        self.run_one("succeeded", seconds=seconds)

    def fail_one(self, function):
        self.add("bob", function, **({"name": "x"} if function == "greet" else {}))
        self.run_one("fail", None, "ValueError", "boom")

    def ask(self, visitor, query=""):
        return visitor.get("/api/summary" + query).json

    def mails(self):
        return [json.loads(content) for content, in self.database.all(
            "SELECT content FROM delivery ORDER BY id")]

    def wish(self, name, hour=7, zone="UTC"):
        self.queue.users.change(name, email=name + "@example.org", summary={"hour": hour, "zone": zone})

    def test_admins_read_about_all_tasks_and_users_about_their_own(self):
        self.assertEqual(self.ask(self.ana), {
            "yesterday": "Yesterday: 2 succeeded in 3 min of work, 4 failed (add 3, greet 1).",
            "last_week": "Last week no task succeeded or failed."})
        self.assertEqual(self.ask(self.eve)["yesterday"],
                         "Yesterday: 1 succeeded in 1 min 30 s of work, none failed.")
        self.assertEqual(self.ask(self.ana, "?owner=eve"), self.ask(self.eve))
        self.assertEqual(self.eve.get("/api/summary?owner=bob").status, 403)

    def test_the_week_has_the_same_figures_once_it_is_over(self):
        self.go_to("2026-11-30T09:00")
        self.assertEqual(self.ask(self.ana)["last_week"], WEEK)

    def test_the_hours_around_midnight_belong_to_the_days_of_the_zone(self):
        self.go_to("2026-11-25T22:50")
        self.work("eve", 10)
        self.go_to("2026-11-25T23:10")      # in Oslo it is the next day
        self.work("eve", 20)
        for day, seconds in (("26", 10), ("27", 20)):
            self.go_to("2026-11-%sT09:00" % day)
            for query in ("?zone=Europe/Oslo", "?zone=Europe/Oslo&owner=eve"):
                self.assertEqual(self.ask(self.ana, query)["yesterday"],
                                 "Yesterday: 1 succeeded in %d s of work, none failed." % seconds)

    def test_figures_that_leave_out_tasks_are_not_given(self):
        with mock.patch.object(jobqueue, "FOLD_ROWS", 2), mock.patch.object(
                jobqueue, "OWN_EVENTS", jobqueue.OWN_EVENTS.replace(str(jobqueue.FOLD_ROWS + 1), "3")):
            self.assertIn("not all tasks of this user", self.ask(self.bob)["yesterday"])

    def test_a_mail_comes_once_a_day_at_the_hour(self):
        self.wish("eve")
        self.queue.summaries.post_due()
        self.assertEqual(self.mails(), [])
        self.go_to("2026-11-25T07:00")
        for _ in range(3):
            self.queue.summaries.post_due()
        [mail] = self.mails()
        self.assertEqual((mail["kind"], mail["subject"], mail["lines"]), (
            "summary", "Yesterday: 1 succeeded in 1 min 30 s of work, none failed",
            ["Yesterday: 1 succeeded in 1 min 30 s of work, none failed."]))
        self.assertEqual(self.database.value("SELECT recipient FROM delivery"), "eve@example.org")
        self.go_to("2026-11-26T07:05")
        self.queue.tick.run()
        self.assertEqual(self.mails()[1]["subject"], "Yesterday no task succeeded or failed")

    def test_the_week_is_in_the_mail_of_a_monday_and_a_link_where_the_address_is_known(self):
        self.change_settings(page_address="https://jobs.example.org/jq")
        self.go_to("2026-11-29T12:00")
        self.wish("ana", 9, OSLO)
        self.go_to("2026-11-30T08:10")
        self.queue.summaries.post_due()
        [mail] = self.mails()
        self.assertEqual(mail["lines"], [
            "Yesterday no task succeeded or failed.", WEEK,
            "https://jobs.example.org/jq/#/overview"])

    def test_viewers_read_about_all_tasks(self):
        self.queue.users.add("vera", PASSWORD, "viewer")
        self.wish("vera")
        self.go_to("2026-11-25T08:00")
        self.queue.summaries.post_due()
        self.assertEqual(self.mails()[0]["lines"][0], self.ask(self.ana)["yesterday"])
        self.assertEqual(self.ask(self.browser("vera")), self.ask(self.ana))

    def test_a_late_mail_comes_once_with_the_week_and_a_long_standstill_brings_none(self):
        self.go_to("2026-11-29T12:00")
        self.wish("ana")
        self.go_to("2026-12-01T05:00")      # nothing ticked on the Monday
        for _ in range(2):
            self.queue.summaries.post_due()
        [mail] = self.mails()
        self.assertEqual(mail["lines"][1], WEEK)
        self.go_to("2026-12-24T12:00")
        self.queue.summaries.post_due()
        self.assertEqual(len(self.mails()), 1)
        self.go_to("2026-12-25T07:00")
        self.queue.summaries.post_due()
        self.assertEqual(len(self.mails()), 2)

    def test_a_clock_that_was_ahead_delays_no_summary(self):
        self.wish("eve")
        self.write("UPDATE user SET summary_at=? WHERE name='eve'", (moment("2028-01-01T07:00"),))
        self.queue.summaries.post_due()
        self.assertEqual(self.mails(), [])
        self.go_to("2026-11-25T07:00")
        self.queue.summaries.post_due()
        self.assertEqual(len(self.mails()), 1)

    def test_one_tick_posts_for_a_second_at_most_and_the_next_goes_on(self):
        for name in ("bob", "eve"):
            self.wish(name)
        self.go_to("2026-11-25T07:00")
        with mock.patch.object(jobqueue, "POST_SECONDS", 0.0):
            self.queue.summaries.post_due()
        self.assertEqual(len(self.mails()), 0)
        self.queue.summaries.post_due()
        self.assertEqual(len(self.mails()), 2)

    def test_a_zone_that_this_machine_no_longer_knows_is_utc(self):
        for name in ("bob", "eve"):
            self.wish(name)
        self.write("UPDATE user SET summary=? WHERE name='bob'", ('{"hour": 7, "zone": "Mars"}',))
        self.go_to("2026-11-25T08:00")
        self.queue.summaries.post_due()
        self.assertEqual(len(self.mails()), 2)

    def test_disabled_users_and_those_without_an_address_get_none(self):
        for name in ("bob", "eve"):
            self.wish(name)
        self.queue.users.change("bob", disabled=True)
        self.queue.users.change("eve", email=None)
        self.go_to("2026-11-25T08:00")
        self.queue.summaries.post_due()
        self.assertEqual(self.mails(), [])

    def test_people_choose_their_own_hour_and_nothing_else(self):
        self.queue.users.change("bob", email="bob@example.org")
        wish = {"summary": {"hour": 7, "zone": OSLO}}
        reply = self.bob.patch("/api/users/bob", wish)
        self.assertEqual((reply.status, reply.json["summary"]), (200, wish["summary"]))
        self.assertEqual(self.bob.get("/api/session").json["user"]["summary"], wish["summary"])
        self.assertEqual(self.bob.patch("/api/users/bob", {**wish, "role": "admin"}).status, 403)
        self.assertEqual(self.bob.patch("/api/users/eve", wish).status, 404)
        for wrong, field in (({"hour": 24, "zone": "UTC"}, "summary.hour"),
                             ({"hour": 1, "zone": "Mars"}, "zone")):
            reply = self.bob.patch("/api/users/bob", {"summary": wrong})
            self.assertEqual((reply.status, reply.json["errors"][0]["field"]), (422, field))
        reply = self.eve.patch("/api/users/eve", wish)
        self.assertEqual((reply.status, reply.json["errors"][0]["field"]), (422, "summary"))
        self.assertIsNone(self.bob.patch("/api/users/bob", {"email": None}).json["summary"])
