"""HTTP as the application speaks it: who may send what, headers, caching, hostile input."""
import gzip
import io
import json
import random
import re
import threading
import unittest
from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD, ROOT, at_once, wait_until
from tests.helpers.web import SITE, Visitor, WebTestCase, as_sent, call

TASK = {"function": "add", "arguments": {"a": 1}}


class Forgery(WebTestCase):
    """Requests that another site makes a browser send (H13)."""

    def refused_without_change(self, **headers):
        task_id = self.add("bob")
        before = self.database.value("SELECT count(*) FROM activity")
        for method, path in (("POST", "/api/tasks"), ("POST", "/api/tasks/%d/cancel" % task_id),
                             ("DELETE", "/api/tasks/%d" % task_id), ("POST", "/api/tokens"),
                             ("PATCH", "/api/users/bob"), ("DELETE", "/api/session")):
            reply = self.bob.ask(method, path, TASK, **headers)
            self.assertIn(reply.status, (403, 415), (method, path, reply.status))
        self.assertEqual(self.database.value("SELECT count(*) FROM activity"), before)
        self.assertEqual(self.bob.get("/api/session").status, 200)

    def test_a_request_from_another_site_is_refused(self):
        for site in ("cross-site", "same-site", "none", "", "SAME-ORIGIN", "same-origin, cross-site"):
            with self.subTest(site=site):
                self.refused_without_change(Sec_Fetch_Site=site)

    def test_an_old_browsers_request_must_name_our_origin(self):
        for origin in ("https://evil.example", "null", "", "http://jobs.example.org.evil.example",
                       "https://" + SITE, "http://sub.%s" % SITE, "http://%s:8080" % SITE, None):
            with self.subTest(origin=origin):
                self.refused_without_change(Sec_Fetch_Site=None, Origin=origin)

    def test_a_right_origin_does_not_outweigh_a_wrong_site(self):
        self.refused_without_change(Sec_Fetch_Site="cross-site", Origin="http://" + SITE)

    def test_our_own_page_is_heard(self):
        self.check(self.bob.post("/api/tasks", TASK), 201)
        self.check(self.bob.post("/api/tasks", TASK, Sec_Fetch_Site=None, Origin="http://" + SITE), 201)

    def test_under_https_the_origin_is_https(self):
        bob = self.browser("bob", secure=True)
        self.check(bob.post("/api/tasks", TASK, Sec_Fetch_Site=None, Origin="https://" + SITE), 201)
        self.check(bob.post("/api/tasks", TASK, Sec_Fetch_Site=None, Origin="http://" + SITE), 403)

    def test_what_a_form_can_send_is_refused(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "",
                     None, "text/plain; application/json", "application/json-patch+json"):
            with self.subTest(kind=kind):
                self.check(self.bob.post("/api/tasks", TASK, Content_Type=kind), 415)
        form = "multipart/form-data; boundary=x"        # what it has must say that it is JSON
        self.check(self.bob.post("/api/tasks", TASK, Content_Type=form), 400)
        body = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n{}\r\n--x--\r\n"
        self.check(self.bob.post("/api/tasks", body, Content_Type=form), 400)
        for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": None}):
            self.check(self.bob.post("/api/tasks", body, Content_Type=form, **headers), 403)

    def test_json_with_a_charset_is_json(self):
        self.check(self.bob.post("/api/tasks", TASK, Content_Type="Application/JSON; charset=utf-8"), 201)

    def test_logging_in_from_another_site_is_refused(self):
        login = {"name": "bob", "password": PASSWORD}
        self.check(self.nobody.post("/api/session", login, Sec_Fetch_Site="cross-site"), 403)
        self.check(self.nobody.post("/api/session", login, Sec_Fetch_Site=None, Origin="null"), 403)
        self.check(self.nobody.post("/api/session", login, Content_Type="text/plain"), 415)
        self.check(self.nobody.post("/api/session", login, Sec_Fetch_Site=None), 200)

    def test_a_token_needs_no_origin(self):
        self.check(self.program("bob").post("/api/tasks", TASK, Origin="https://elsewhere.example"), 201)

    def test_a_wrong_token_is_not_saved_by_the_cookie(self):
        for headers in ({"Authorization": "Bearer jq_wrong"}, {"X_Api_Key": "jq_wrong"},
                        {"Authorization": "Bearer "}):
            with self.subTest(headers=headers):
                self.check(self.bob.get("/api/tasks", **headers), 401)

    def test_method_overrides_are_ignored(self):
        task_id = self.add("bob")
        for headers in ({"X_HTTP_Method_Override": "DELETE"}, {"X_Method_Override": "DELETE"}):
            self.check(self.bob.get("/api/tasks/%d?_method=DELETE" % task_id, **headers), 200)
        self.assertEqual(self.status(task_id), "pending")

    def test_no_get_changes_a_task(self):
        task_id = self.add("bob")
        for path in ("", "/cancel", "/retry", "?action=cancel"):
            self.bob.get("/api/tasks/%d%s" % (task_id, path))
        self.assertEqual(self.events(task_id), ["added"])

    def test_no_answer_lets_other_sites_read_it(self):
        for reply in (self.bob.get("/api/tasks", Origin="https://evil.example"),
                      self.bob.ask("OPTIONS", "/api/tasks", Origin="https://evil.example")):
            self.assertFalse([name for name in reply.headers if name.startswith("access-control-")])


class JsonGate(WebTestCase):
    """Bodies that are no JSON, or not the JSON that everybody reads alike (H6)."""

    def send(self, body, **headers):
        return self.program("bob").post("/api/tasks", body, **headers)

    def test_what_is_no_json_is_malformed(self):
        task = json.dumps(TASK).encode()
        for body in (b"", b" ", b"{", b"nonsense", b"{'a': 1}", task + b"x", b"\xff\xfe",
                     task.decode().encode("utf-16"), task.decode().encode("utf-32"), b'{"function": "\xff"}',
                     b'{"function": "a\nb"}', b"[1,]", b"01", b"+1", b".5", b"0x10", b"\x00"):
            with self.subTest(body=body[:30]):
                self.check(self.send(body), 400, "malformed")

    def test_numbers_that_json_has_not_are_malformed(self):
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, str(2 ** 63),
                       str(-2 ** 63), str(2 ** 53 + 1)):
            body = '{"function": "add", "arguments": {"a": %s}}' % number
            with self.subTest(number=number[:20]):
                self.check(self.send(body.encode()), 400, "malformed")

    def test_the_largest_whole_numbers_are_kept_exactly(self):
        for number in (2 ** 53, -2 ** 53, 0):
            reply = self.send({"function": "add", "arguments": {"a": number}})
            self.assertEqual(self.check(reply, 201)["arguments"], {"a": number})

    def test_minus_zero_is_a_number(self):
        self.check(self.send(b'{"function": "add", "arguments": {"a": -0}}'), 201)

    def test_an_object_with_a_key_twice_is_malformed(self):
        for body in (b'{"function": "greet", "function": "add"}',
                     b'{"function": "add", "arguments": {"a": 1, "a": 2}}', b'{"a": 1, "\\u0061": 2}'):
            self.check(self.send(body), 400, "malformed")

    def test_depth_is_limited(self):
        for body in (b"[" * 100_000, b'{"a":' * 100_000, b"[" * 40 + b"]" * 40,
                     b'{"function": "add", "arguments": {"a": ' + b"[" * 33 + b"]" * 33 + b"}}"):
            with self.subTest(body=body[:40]):
                self.check(self.send(body), 400, "malformed")

    def test_half_characters_and_nul_are_malformed(self):
        for text in ("\\ud800", "x\\udfff", "\\u0000", "a\\u0000b"):
            for body in ('{"function": "greet", "arguments": {"name": "%s"}}', '{"%s": 1}'):
                with self.subTest(text=text, body=body):
                    self.check(self.send((body % text).encode()), 400, "malformed")

    def test_whole_characters_written_as_halves_are_kept(self):
        reply = self.send(b'{"function": "greet", "arguments": {"name": "\\ud83d\\ude00"}}')
        self.assertEqual(self.check(reply, 201)["arguments"], {"name": "\U0001f600"})

    def test_a_scalar_or_nothing_is_malformed(self):
        for body in (b"null", b"true", b"7", b'"add"', b"[]", b"[7]", b"[null]", b"[[]]"):
            with self.subTest(body=body):
                self.check(self.send(body), 400, "malformed")

    def test_a_hundred_thousand_keys_are_answered_quickly_and_briefly(self):
        body = json.dumps({"k%d" % number: 1 for number in range(70_000)}).encode()
        reply = self.send(body)
        self.check(reply, 422)
        self.assertLess(len(reply.body), 100_000)

    def test_a_long_unknown_name_is_not_echoed_whole(self):
        reply = self.send({"x" * 500_000: 1, "function": "add", "arguments": {"a": 1}})
        self.check(reply, 422)
        self.assertLess(len(reply.body), 10_000)

    def test_a_body_above_the_limit_is_too_large(self):
        body = b'{"function": "' + b"x" * (1 << 20) + b'"}'
        self.check(self.send(body), 413, "too_large")
        self.check(self.send(b"", Content_Length=str(10 << 30)), 413, "too_large")

    def test_a_body_of_just_the_limit_is_read(self):
        body = b'{"function": "add", "arguments": {"a": 1}}'
        self.check(self.send(body + b" " * ((1 << 20) - len(body))), 201)

    def test_a_short_body_is_malformed(self):
        self.check(self.send(b'{"function"', Content_Length="500"), 400, "malformed")

    def test_lengths_that_are_none_are_malformed(self):
        environ = self.program("bob").environ("POST", "/api/tasks", TASK)
        for length in ("-1", "+4", "0_4", "x", "1.0", "٤", "9" * 13):
            with self.subTest(length=length):
                reply = call(self.app, {**environ, "CONTENT_LENGTH": length}, checked=False)
                self.assertIn(reply.status, (400, 413))

    def test_a_compressed_body_is_not_unpacked(self):
        for coding in ("gzip", "deflate", "br", "gzip, identity"):
            self.check(self.send(TASK, Content_Encoding=coding), 415)
        self.check(self.send(TASK, Content_Encoding="identity"), 201)


class Small(WebTestCase):

    def test_a_byte_order_mark_is_no_part_of_json(self):
        for kind in ("application/json", "application/x-ndjson"):
            body = b"\xef\xbb\xbf" + json.dumps({"function": "add", "arguments": {"a": 1}}).encode()
            self.check(self.bob.post("/api/tasks", body, Content_Type=kind), 201)

    def test_a_number_that_is_too_large_is_named(self):
        body = b'{"function": "add", "arguments": {"a": {"b": [1, %d]}}}' % (10 ** 17)
        reply = self.bob.post("/api/tasks", body)
        self.assertEqual((reply.status, reply.json["detail"]), (
            400, "The number of arguments.a.b.1 is too large: give it as a text."))

    def test_a_program_whose_folder_is_gone_is_not_well(self):
        self.patch(jobqueue, "WORKER_FILE", self.folder / "gone" / "worker.py")
        reply = self.bob.get("/healthz")
        self.assertEqual(reply.status, 503)


class Caching(WebTestCase):

    def test_what_is_unchanged_is_not_sent_again(self):
        self.add("bob")
        for path in ("/api/tasks", "/api/tasks/1", "/api/workers", "/api/tokens", "/api/functions",
                     "/healthz",
                     "/static/style.css", "/", "/api/session", "/api/activity", "/api/tasks/1/log"):
            with self.subTest(path=path):
                first = self.bob.get(path)
                again = self.bob.get(path, If_None_Match=first.headers["etag"])
                self.assertEqual((again.status, again.body), (304, b""))
                self.assertEqual(again.headers["etag"], first.headers["etag"])

    def test_tags_are_compared_as_rfc_9110_says(self):
        tag = self.bob.get("/api/tokens").headers["etag"]
        self.assertTrue(tag.startswith('W/"'), tag)
        for sent, status in ((tag, 304), ('"x", %s' % tag, 304), ("*", 304), (tag[2:], 304), (tag[:-1], 200),
                             (tag[:-1] + '-gzip"', 304), (tag[:-1] + ';gzip"', 304), (tag[:-1] + '-br"', 304),
                             ('W/"x"', 200), ('"x-gzip"', 200), ("", 200), ('"' * 500, 200)):
            with self.subTest(sent):
                self.assertEqual(self.bob.get("/api/tokens", If_None_Match=sent).status, status)

    def test_browsers_get_scripts_and_styles_without_their_comments(self):
        (self.folder / "some.js").write_text(
            '// one\n/** two\n * three\n */\nconst a = "/*";    // four\n\n\n  // five\n  const b = "x // y";'
            '\n\n/** @type {number} */ (a);\n/* six */\nconst c = "*/";\n', "utf-8")
        answer = jobqueue.StaticFiles(self.folder).answer("some.js")
        self.assertEqual(answer.body, b'const a = "/*";\nconst b = "x // y";\n(a);\nconst c = "*/";\n')

    def test_browsers_get_styles_without_spaces_that_mean_nothing(self):
        (self.folder / "some.css").write_text(
            "/* one */\na , p :not(b) > i {\n  margin: 0 4px; color: red;\n}\n\n@media (width > 9px) {\n"
            "  b::after { content: \" { a: b; } , \"; }\n  i { content: ' ; ' attr(x) ' , '; }\n}\n", "utf-8")
        answer = jobqueue.StaticFiles(self.folder).answer("some.css")
        self.assertEqual(answer.body, b"a ,p :not(b) > i{margin:0 4px;color:red}@media (width > 9px){"
                         b"b::after{content:\" { a: b; } , \"}i{content:' ; ' attr(x) ' , '}}")

    def test_what_is_long_is_compressed_for_who_accepts_it(self):
        self.add_many("bob", 50)
        wrong = "&".join("name%d=1" % number for number in range(20))
        for path in ("/api/tasks", "/api/activity", "/api/tasks?" + wrong, "/static/app.js"):
            with self.subTest(path=path):
                plain = self.bob.get(path)
                small = self.bob.get(path, Accept_Encoding="br, gzip;q=0.5")
                self.assertEqual((gzip.decompress(small.body), small.headers["content-encoding"]),
                                 (plain.body, "gzip"))
                self.assertNotIn("content-encoding", plain.headers)
                self.assertLess(len(small.body) * 2, len(plain.body))
                for reply in (plain, small):
                    self.assertEqual(reply.headers["vary"], "Accept-Encoding")
                    self.assertEqual(reply.headers["content-length"], str(len(reply.body)))
                self.assertEqual(plain.headers.get("etag"), small.headers.get("etag"))
                head = self.bob.ask("HEAD", path, Accept_Encoding="gzip")
                self.assertEqual((head.body, head.headers["content-length"]), (b"", str(len(small.body))))
        self.assertLess(len(self.bob.get("/api/tasks", Accept_Encoding="gzip").body), 2500)

    def test_nothing_is_compressed_that_is_short_or_for_who_does_not_want_it(self):
        self.add_many("bob", 50)
        for path, accepted in (("/api/tasks", None), ("/api/tasks", "gzip;q=0"), ("/api/tasks", "br"),
                               ("/api/tasks", "gzip ; q=0.00, br"), ("/api/tasks", "xgzipx"),
                               ("/api/session", "gzip")):
            with self.subTest(path=path, accepted=accepted):
                reply = self.bob.get(path, Accept_Encoding=accepted)
                self.assertNotIn("content-encoding", reply.headers)
                self.assertIsInstance(reply.json, dict)

    def test_compressed_and_plain_are_one_answer_to_who_has_it(self):
        self.add_many("bob", 50)
        for path in ("/api/tasks", "/static/app.js"):
            for first, second in (("gzip", None), (None, "gzip"), ("gzip", "gzip")):
                tag = self.bob.get(path, Accept_Encoding=first).headers["etag"]
                again = self.bob.get(path, Accept_Encoding=second, If_None_Match=tag)
                self.assertEqual((again.status, again.headers["vary"]), (304, "Accept-Encoding"))

    def test_a_304_and_a_204_say_nothing_about_a_body(self):
        task_id, tag = self.add("bob"), self.bob.get("/api/workers").headers["etag"]
        for reply in (self.bob.get("/api/workers", If_None_Match=tag),
                      self.bob.delete("/api/tasks/%d" % task_id)):
            self.assertNotIn("content-length", reply.headers)
            self.assertNotIn("content-type", reply.headers)

    def test_another_tag_gets_the_whole_answer(self):
        for tag in ('"x"', "", "*x", '"' + "0" * 20 + '"'):
            self.assertEqual(self.bob.get("/api/tasks", If_None_Match=tag).status, 200)

    def test_any_write_shows_at_once(self):
        task_id = self.add("bob")
        changes = (lambda: self.cancel(task_id), lambda: self.retry(task_id),
                   lambda: self.claim(), lambda: self.write("UPDATE task SET progress=0.5"),
                   lambda: self.another_queue().actions.cancel(task_id))
        tag = self.bob.get("/api/tasks").headers["etag"]
        for place, change in enumerate(changes):
            change()
            reply = self.bob.get("/api/tasks", If_None_Match=tag)
            self.assertEqual(reply.status, 200, place)
            tag = reply.headers["etag"]

    def test_nobody_gets_somebody_elses_list_from_the_cache(self):
        self.add("bob", a=111)
        self.add("eve", a=222)
        for _ in range(3):
            for visitor, owners in ((self.ana, {"bob", "eve"}), (self.bob, {"bob"}), (self.eve, {"eve"}),
                                    (self.program("bob"), {"bob"})):
                rows = visitor.get("/api/tasks?counts=1").json["tasks"]
                self.assertEqual({row["owner"] for row in rows}, owners)

    def test_somebody_elses_tag_tells_nothing(self):
        self.add("bob")
        tag = self.bob.get("/api/tasks").headers["etag"]
        self.assertEqual(self.eve.get("/api/tasks", If_None_Match=tag).status, 200)

    def test_a_demoted_admin_gets_no_admins_list_from_the_cache(self):
        self.add("eve")
        self.queue.users.change("bob", role="admin")
        self.assertEqual(len(self.bob.get("/api/tasks").json["tasks"]), 1)
        self.queue.users.change("bob", role="user")
        self.assertEqual(self.bob.get("/api/tasks").json["tasks"], [])

    def test_different_questions_have_different_answers(self):
        self.add_many("bob", 3)
        self.assertEqual(len(self.bob.get("/api/tasks?limit=1").json["tasks"]), 1)
        self.assertEqual(len(self.bob.get("/api/tasks?limit=2").json["tasks"]), 2)
        self.assertEqual(len(self.bob.get("/api/tasks?status=failed").json["tasks"]), 0)

    def test_a_list_that_only_time_changes_is_at_most_a_second_old(self):
        self.bob.get("/api/tasks")
        with mock.patch.object(jobqueue, "describe_service", return_value={
                "code": "storage", "text": "x", "since": None}):
            self.clock.advance(1.1)
            self.assertEqual(self.bob.get("/api/tasks").json["service"]["code"], "storage")

    def test_the_cache_does_not_grow_without_end(self):
        for number in range(300):
            self.bob.get("/api/tasks?q=%d" % number)
        self.assertLessEqual(len(self.app._cache), 20)

    def test_parallel_readers_never_mix_lists_up(self):
        self.add("bob")
        self.add("eve")
        wrong = []

        def read(one):
            visitor, name = one
            for _ in range(40):
                if [row["owner"] for row in visitor.get("/api/tasks").json["tasks"]] != [name]:
                    wrong.append(name)

        at_once(read, ((self.bob, "bob"), (self.eve, "eve")) * 3)
        self.assertEqual(wrong, [])

    def test_who_asks_for_what_is_being_made_waits_for_it(self):
        self.bob.get("/api/tasks")      # which does the housekeeping, too
        self.add("bob")
        made, looked = [], set()
        find, seen = self.queue.tasks.find, self.queue.database.version_seen

        def look():
            looked.add(threading.get_ident())
            return seen()

        def slow(*wanted):
            made.append(wanted)
            wait_until(lambda: len(looked) == 4)
            return find(*wanted)

        with mock.patch.object(self.queue.tasks, "find", slow), \
                mock.patch.object(self.queue.database, "version_seen", look):
            replies = at_once(lambda _: self.bob.get("/api/tasks"), range(4))
        self.assertEqual((len(made), {reply.status for reply in replies}), (1, {200}))

    def test_personal_answers_are_kept_by_no_shared_cache(self):
        task_id = self.add("bob")
        for path in ("/api/tasks", "/api/tasks/%d" % task_id, "/api/session", "/api/tokens",
                     "/api/functions"):
            control = self.bob.get(path).headers["cache-control"]
            self.assertIn("no-cache", control)
            self.assertIn("private", control)
        self.assertEqual(self.bob.post("/api/tasks", TASK).headers["cache-control"], "no-store")
        self.assertEqual(self.nobody.get("/api/tasks").headers["cache-control"], "no-store")


class Cookies(WebTestCase):

    def log_in(self, **options):
        visitor = Visitor(self.app, **options)
        reply = visitor.post("/api/session", {"name": "bob", "password": PASSWORD})
        self.check(reply, 200)
        return visitor, [part.strip() for part in reply.headers["set-cookie"].split(";")]

    def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(self):
        _, parts = self.log_in()
        self.assertRegex(parts[0], r"^jobqueue=[\w-]{43,}$")
        self.assertEqual(set(parts[1:]), {"Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"})

    def test_under_https_the_cookie_is_for_https_only(self):
        visitor, parts = self.log_in(secure=True)
        self.assertTrue(parts[0].startswith("__Host-jobqueue="))
        self.assertIn("Secure", parts)
        self.check(visitor.get("/api/session"), 200)

    def test_at_the_top_of_a_site_browsers_take_the_cookie_from_this_host_only(self):
        """A name that begins with __Host- needs Path=/, Secure, and no Domain; elsewhere it is refused."""
        for prefix, name in (("", "__Host-jobqueue="), ("/jq", "__Secure-jobqueue=")):
            visitor, parts = self.log_in(secure=True, prefix=prefix)
            self.assertTrue(parts[0].startswith(name), parts)
            self.assertEqual(set(parts[1:]), {"Path=%s/" % prefix, "Max-Age=43200", "HttpOnly",
                                              "SameSite=Strict", "Secure"})
            self.check(visitor.get("/api/session"), 200)
            planted = visitor.cookie.replace("__Host-", "__Secure-")
            self.check(Visitor(self.app, cookie=planted, secure=True).get("/api/session"), 401)

    def test_cookies_of_two_people_in_one_request_are_refused_and_both_end(self):
        for first, second in ((self.bob, self.eve), (self.browser("eve"), self.browser("bob"))):
            both = Visitor(self.app, cookie="%s; %s" % (first.cookie, second.cookie))
            reply = both.get("/api/tasks")
            self.assertIn("Two people", self.check(reply, 401, "unauthorized")["detail"])
            self.assertIn("jobqueue=; Path=/; Max-Age=0;", reply.headers["set-cookie"])
            for visitor in (first, second):
                self.check(visitor.get("/api/tasks"), 401)

    def test_two_cookies_of_one_person_and_one_that_is_worth_nothing_are_no_matter(self):
        for other in (self.browser("bob").cookie, self.browser("bob").cookie + "x", "jobqueue=" + "0" * 64):
            for pair in ((self.bob.cookie, other), (other, self.bob.cookie)):
                self.check(Visitor(self.app, cookie="; ".join(pair)).get("/api/tasks"), 200)

    def test_the_cookie_of_plain_http_does_not_count_under_https(self):
        visitor, _ = self.log_in()
        visitor.secure = True
        self.check(visitor.get("/api/session"), 401)

    def test_a_proxy_can_say_that_it_is_https(self):
        environ = self.nobody.environ("POST", "/api/session", {"name": "bob", "password": PASSWORD})
        reply = call(self.app, {**environ, "HTTPS": "on"})
        self.assertIn("; Secure", reply.headers["set-cookie"])

    def test_nobody_but_the_web_server_says_that_it_is_https(self):
        reply = self.nobody.post("/api/session", {"name": "bob", "password": PASSWORD},
                                 X_Forwarded_Proto="https", Forwarded="proto=https")
        self.assertNotIn("Secure", reply.headers["set-cookie"])

    def test_the_cookie_is_for_our_folder_only(self):
        _, parts = self.log_in(prefix="/my/jobs")
        self.assertIn("Path=/my/jobs/", parts)

    def test_the_cookie_of_a_folder_with_odd_letters_comes_back(self):
        """Browsers compare with the path as it stands in the address, which is percent-encoded."""
        for prefix, path in (("/my jobs", "/my%20jobs/"), ("/a;b", "/a%3Bb/"),
                             ("/caf\xc3\xa9", "/caf%C3%A9/")):
            with self.subTest(prefix=prefix):
                _, parts = self.log_in(prefix=prefix)
                self.assertIn("Path=" + path, parts)

    def test_logging_out_takes_the_cookie_back(self):
        visitor, _ = self.log_in()
        old = visitor.cookie
        reply = visitor.delete("/api/session")
        self.assertEqual(reply.status, 204)
        self.assertIn("jobqueue=; Path=/; Max-Age=0;", reply.headers["set-cookie"])
        self.check(Visitor(self.app, cookie=old).get("/api/session"), 401)

    def test_among_other_cookies_ours_is_found(self):
        cookie = self.bob.cookie
        for text in ("a=b; %s", "%s; a=b", "xjobqueue=1; %s", "a=b;%s;c=d", "; ;%s", "=x; %s"):
            self.assertEqual(Visitor(self.app, cookie=text % cookie).get("/api/session").status, 200, text)

    def test_odd_cookies_are_nobody(self):
        for cookie in ("jobqueue", "jobqueue=", "jobqueue=\xe9", "=", ";", "jobqueue=a=b", "x" * 9000):
            self.check(Visitor(self.app, cookie=cookie).get("/api/session"), 401)


class Headers(WebTestCase):

    def replies(self):
        """One answer of every kind."""
        task_id = self.add("bob")
        tag = self.bob.get("/api/tasks").headers["etag"]
        login = {"name": "bob", "password": "wrong"}
        with mock.patch.object(self.queue.tasks, "get", side_effect=RuntimeError("boom")), \
                mock.patch("sys.stderr", io.StringIO()):
            broken = call(self.app, self.bob.environ("GET", "/api/tasks/1"))
        with mock.patch.object(self.queue.tasks, "get", side_effect=jobqueue.Busy("busy", retry_after=2)):
            busy = self.bob.get("/api/tasks/1")
        return {"page": self.nobody.get("/"), "static": self.nobody.get("/static/app.js"),
                "list": self.bob.get("/api/tasks"), "304": self.bob.get("/api/tasks", If_None_Match=tag),
                "201": self.bob.post("/api/tasks", TASK), "400": self.bob.post("/api/tasks", b"{"),
                "401": self.nobody.get("/api/tasks"), "login": self.nobody.post("/api/session", login),
                "403": self.bob.get("/api/users"), "404": self.bob.get("/api/tasks/999"),
                "nowhere": self.nobody.get("/nowhere"), "405": self.nobody.ask("PUT", "/"),
                "415": self.bob.post("/api/tasks", TASK, Content_Type="text/plain"),
                "422": self.bob.post("/api/tasks", {}), "500": broken, "503": busy,
                "log": self.bob.get("/api/tasks/%d/log?download=1" % task_id),
                "head": self.nobody.ask("HEAD", "/"), "204": self.bob.delete("/api/tasks/%d" % task_id)}

    def test_every_kind_of_answer_carries_the_security_headers(self):
        replies = self.replies()
        unchanged = replies.pop("304")
        self.assertEqual(set(unchanged.headers), {"cache-control", "etag"})    # the browser has the others
        for kind, reply in replies.items():
            for name, value in jobqueue.SECURITY_HEADERS:
                with self.subTest(kind=kind, name=name):
                    self.assertEqual([given for known, given in reply.head if known == name], [value])

    def test_the_policy_allows_our_own_files_and_nothing_else(self):
        policy = dict(jobqueue.SECURITY_HEADERS)["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("require-trusted-types-for 'script'", policy)
        self.assertIn("frame-ancestors 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotIn("*", policy)

    def test_an_answer_without_a_usable_data_folder_carries_them_too(self):
        with mock.patch.object(jobqueue, "JobQueue", side_effect=jobqueue.SetupError("no folder")), \
                mock.patch.dict(jobqueue.applications, clear=True):
            reply = call(jobqueue.application, self.nobody.environ("GET", "/"))
        self.check(reply, 503, "setup")
        for name, value in jobqueue.SECURITY_HEADERS:
            self.assertEqual(reply.headers.get(name.lower()), value)
        self.assertEqual(reply.headers.get("content-length"), str(len(reply.body)))

    def test_the_length_is_that_of_the_body(self):
        for kind, reply in self.replies().items():
            if kind != "head" and reply.status not in (204, 304):
                self.assertEqual(reply.headers["content-length"], str(len(reply.body)), kind)

    def test_errors_are_problems_with_every_field(self):
        for kind, reply in self.replies().items():
            if reply.status >= 400:
                with self.subTest(kind=kind):
                    value = self.check(reply, reply.status)
                    self.assertEqual(set(value) - {"setup"},
                                     {"type", "title", "status", "code", "detail", "errors"})
                    self.assertEqual(value["type"], "about:blank")
                    self.assertTrue(value["title"] and value["code"] and value["detail"])

    def test_a_401_says_how_to_prove_oneself_and_whether_there_is_an_admin(self):
        reply = self.nobody.get("/api/tasks")
        self.assertEqual(reply.headers["www-authenticate"], "Bearer")
        self.assertIs(reply.json["setup"], False)
        self.remove_users()
        self.assertIs(self.nobody.get("/api/tasks").json["setup"], True)

    def test_a_401_before_the_first_admin_makes_the_code(self):
        self.remove_users()
        self.nobody.get("/api/session")
        self.assertTrue(self.queue.setup.file.is_file())

    def test_a_401_is_one_even_if_the_code_cannot_be_written(self):
        self.remove_users()
        with mock.patch.object(jobqueue, "write_private", side_effect=OSError(28, "No space left")), \
                mock.patch("sys.stderr", io.StringIO()):
            reply = self.nobody.get("/api/session")
        self.check(reply, 401)

    def test_a_500_hides_what_happened(self):
        reply = self.replies()["500"]
        self.check(reply, 500, "error")
        self.assertNotIn(b"boom", reply.body)

    def test_a_503_says_when_to_come_back(self):
        self.assertEqual(self.replies()["503"].headers["retry-after"], "2")

    def test_a_405_says_which_methods_are_possible(self):
        for method, path, possible in (("PUT", "/api/tasks", {"GET", "HEAD", "POST"}),
                                       ("POST", "/", {"GET", "HEAD"}), ("GET", "/api/setup", {"POST"}),
                                       ("DELETE", "/api/tokens", {"GET", "HEAD", "POST"})):
            reply = self.bob.ask(method, path)
            self.check(reply, 405, "method_not_allowed")
            allowed = {word.strip() for word in reply.headers.get("allow", "").split(",")}
            self.assertEqual(allowed | {"HEAD"} if "GET" in possible else allowed, possible)

    def test_head_is_get_without_the_body(self):
        self.add("bob")
        for path in ("/", "/static/app.js", "/healthz", "/api/tasks", "/api/tasks/1",
                     "/api/tasks/1/log?download=1"):
            full, head = self.bob.get(path), self.bob.ask("HEAD", path)
            self.assertEqual((head.status, head.body), (200, b""), path)
            self.assertEqual(sorted(head.headers.items()), sorted(full.headers.items()), path)

    def test_head_of_what_is_missing_has_no_body_either(self):
        reply = call(self.app, self.bob.environ("HEAD", "/api/tasks/999"))
        self.assertEqual((reply.status, reply.body), (404, b""))

    def test_logs_are_downloaded_and_never_shown(self):
        reply = self.replies()["log"]
        self.assertEqual(reply.kind, "text/plain")
        self.assertTrue(reply.headers["content-disposition"].startswith("attachment;"))


class Prefix(WebTestCase):
    """The site lives in a folder: SCRIPT_NAME names it."""

    def test_the_same_works_under_a_prefix(self):
        bob = self.browser("bob", prefix="/my/jobs")
        reply = bob.post("/api/tasks", TASK)
        self.assertEqual(reply.headers["location"], "/my/jobs/api/tasks/%d" % self.check(reply, 201)["id"])
        self.check(bob.get("/api/tasks/1"), 200)
        self.check(bob.get("/static/app.js"), 200)
        self.check(bob.get("/"), 200)

    def test_the_page_names_no_absolute_address(self):
        page = self.nobody.get("/").body.decode()
        for mark in ('href="/', 'src="/', "http://", "https://"):
            self.assertNotIn(mark, page)

    def test_the_folder_without_its_slash_leads_to_the_one_with_it(self):
        """At /my/jobs every relative link would lead beside the folder."""
        environ = Visitor(self.app, prefix="/my/jobs").environ("GET", "/")
        reply = call(self.app, {**environ, "PATH_INFO": ""})
        self.assertIn(reply.status, (301, 302, 307, 308))
        self.assertTrue(reply.headers["location"].endswith("/my/jobs/"))

    def test_a_new_user_with_a_name_beyond_ascii_has_an_address(self):
        ana = self.browser("ana", prefix="/jobs")
        reply = ana.post("/api/users", {"name": "Жанна@x", "password": "correct horse"})
        self.assertEqual(reply.headers["location"], "/jobs/api/users/%D0%96%D0%B0%D0%BD%D0%BD%D0%B0%40x")
        self.check(ana.patch(reply.headers["location"][len("/jobs"):], {
            "role": "admin", "current_password": PASSWORD}), 200)
        self.assertEqual(self.queue.users.find("Жанна@x")["role"], "admin")


class Numbers(WebTestCase):
    """Numbers are kept within bounds, whatever is asked (H8)."""

    PLACES = ("/api/tasks?limit=%s", "/api/tasks?cursor=%s", "/api/tasks/1/log?offset=%s",
              "/api/tasks/1/log?attempt=%s", "/api/activity?limit=%s", "/api/activity?cursor=%s")

    def setUp(self):
        super().setUp()
        self.add_many("bob", 230)

    def test_limits_are_kept(self):
        for text, rows in (("-1", 1), ("0", 1), ("1", 1), ("200", 200), ("1000000000", 200), ("", 50),
                           ("%2B5", 5)):
            self.assertEqual(len(self.bob.get("/api/tasks?limit=" + text).json["tasks"]), rows, text)
            self.assertEqual(len(self.bob.get("/api/activity?limit=" + text).json["activity"]), rows, text)

    def test_any_whole_number_is_answered(self):
        for place in self.PLACES:
            for text in ("0", "-1", "-999999999999999999", "999999999999999999", str(2 ** 53), "007"):
                with self.subTest(place=place, text=text):
                    self.check(self.bob.get(place % text), 200)

    def test_what_is_no_number_is_malformed_and_named(self):
        for place in self.PLACES:
            name = place.split("?")[1].split("=")[0]
            for text in ("x", "1.5", "1e3", "0x10", "1_000", "--1", "NaN", "%D9%A4", "1%00", str(10 ** 18),
                         ";drop", "1%20OR%201=1", "%22", "null"):
                with self.subTest(place=place, text=text):
                    reply = self.bob.get(place % text)
                    self.check(reply, 400, "malformed")
                    self.assertEqual(reply.fields, [name])

    def test_ids_beyond_any_row_are_missing(self):
        for text in ("0", "999999999999999", "000000000000999"):
            self.check(self.bob.get("/api/tasks/" + text), 404, "not_found")
        for text in ("9" * 16, "-1", "1.0", "1e3", "%31%00", "٤"):
            self.check(self.bob.get("/api/tasks/" + text), 404, "not_found")

    def test_more_than_fifty_fields_are_malformed(self):
        self.check(self.bob.get("/api/tasks?" + "&".join("a%d=1" % n for n in range(60))), 400)

    def test_of_a_field_given_twice_the_last_counts(self):
        self.assertEqual(len(self.bob.get("/api/tasks?limit=3&limit=2").json["tasks"]), 2)

    def test_unknown_fields_are_refused_whatever_they_are(self):
        for query in ("days=922337203685", "page=1000000000000000000", "sort=;drop", "x", "=", "%", "a=%zz"):
            self.check(self.bob.get("/api/tasks?" + query), 400, "malformed")
        self.check(self.bob.get("/api/tasks?&&&"), 200)


class Paths(WebTestCase):
    """Paths that try to leave the fixed list of files (H7)."""

    TRICKS = ("..", "%2e%2e", "%252e%252e", "..%5c", "..%2f", "%c0%ae%c0%ae", ".", "....//", "..;", "%00",
              "~", "..%00", "%2e%2e%2f%2e%2e")
    TARGETS = ("data", "jobqueue.py", "worker.py", "data/setup-code.txt", "etc/passwd", ".htaccess",
               ".git/config", "tasks.py", "static", "index.html")

    def test_nothing_outside_the_list_is_ever_read(self):
        (self.folder / "data" / "canary.txt").write_text("canary")
        paths = ["/%s/%s" % (trick, target) for trick in self.TRICKS for target in self.TARGETS]
        paths += ["/static/%s/%s" % (trick, target) for trick in self.TRICKS for target in self.TARGETS]
        paths += ["/static/" + target.replace("/", "%2f") for target in self.TARGETS
                  if target != "index.html"]
        for path in paths:
            with self.subTest(path=path):
                reply = self.nobody.get(path)
                self.assertEqual(reply.status, 404)
                self.assertEqual(reply.kind, "application/problem+json")

    def test_odd_paths_are_nothing(self):
        for path in ("//evil.example", "//", "/./", "/%00", "/index.html", "/static", "/static/",
                     "/static//app.js", "/static/docs", "/static/docs/", "/static/docs/hosts",
                     "/static/hosts/README.md",
                     "/static/app.js/", "/static/app.js.", "/static/APP.JS", "/static/app.js%00.css",
                     "/static/app.js%0d%0aX: y", "/static/app", "/static/.app.js", "/api", "/api/",
                     "/api/tasks/",
                     "/api//tasks", "/API/tasks", "/api/tasks%2f1", "/" + "a" * 7000, "/%ff%fe",
                     "/api/tasks/1/"):
            with self.subTest(path=path[:50]):
                reply = self.bob.get(path)
                self.assertEqual(reply.status, 404)
                self.assertNotIn("location", reply.headers)

    def test_five_hundred_random_traversals_find_nothing(self):
        chance = random.Random(7)
        steps = ["..", ".", "%2e", "%2e%2e", "static", "data", "jobqueue.py", "%5c", "%2f", "//", "%00", ";",
                 "app.js"]
        for _ in range(500):
            path = "/static/" + "/".join(chance.choice(steps) for _ in range(chance.randint(2, 8)))
            if path != "/static/app.js":
                self.assertEqual(self.nobody.get(path).status, 404, path)

    def test_every_file_of_the_page_is_sent_with_its_type(self):
        for path in sorted((ROOT / "static").rglob("*")):
            if path.is_file() and path.parent.name in ("static", "languages", "docs"):
                reply = self.nobody.get("/" + path.relative_to(ROOT).as_posix())
                self.assertEqual(reply.status, 200, path.name)
                self.assertEqual(reply.body, as_sent(path))
                self.assertEqual(reply.headers["content-type"], jobqueue.STATIC_TYPES[path.suffix])

    def test_files_are_compressed_for_who_wants_that(self):
        reply = self.nobody.get("/static/app.js", Accept_Encoding="gzip, deflate")
        self.assertEqual(reply.headers["content-encoding"], "gzip")
        self.assertEqual(reply.headers["vary"], "Accept-Encoding")
        self.assertEqual(gzip.decompress(reply.body), as_sent(ROOT / "static" / "app.js"))


class QuietList(WebTestCase):
    """What an open list costs in which nothing happens: mostly answers that say so, without a body."""

    HOUR_BYTES = 2_000_000

    def cost_of_an_hour(self, rest, meanwhile=lambda: None):
        """The bytes of all answers to an admin's list, asked every `rest` seconds, and to its bell."""
        tags, cost = {}, 0
        for second in range(0, 3600, rest):
            meanwhile()
            self.tick(rest)
            paths = ["/api/tasks?limit=50&counts=1", "/api/alerts"]
            for path in paths[:1 if second % 30 >= rest else 2]:
                kept = {"If_None_Match": tags[path]} if path in tags else {}
                reply = self.ana.get(path, Accept_Encoding="gzip", **kept)
                cost += 20 + len(reply.body) + sum(len(name) + len(value) + 4 for name, value in reply.head)
                tags[path] = reply.headers.get("etag", "")
        return cost

    def test_an_hour_of_a_list_that_has_ended_costs_little(self):
        self.add_many("ana", 60)
        for _ in range(60):
            self.run_one()
        self.assertLess(self.cost_of_an_hour(15), self.HOUR_BYTES)

    def test_an_hour_of_a_list_in_which_tasks_run_and_wait_costs_little(self):
        self.add_many("ana", 60)
        row = self.claim()
        cost = self.cost_of_an_hour(8, lambda: self.renew(row))
        self.assertLess(cost, self.HOUR_BYTES)


class Injection(WebTestCase):
    """Texts that would mean something to SQL do not (H10)."""

    STRINGS = ("'", "''", '"', "';--", "' OR '1'='1", "' OR 1=1 --", "1; DROP TABLE task",
               "'; DROP TABLE task; --",
               "' UNION SELECT name, password FROM user --", "') OR ('1'='1", "\\", "\\'", "%", "_", "%%",
               "a%", "*",
               "?", ":a", "@a", "$a", "(", ")", "/*", "*/", "--", ";", "0 OR 1", "NULL", "x'41'", "' || '",
               "[a]",
               "\u2019 OR 1", "\uff07 OR 1=1", "`", "1e1", "`id`", "$(id)", "{{7*7}}", "<script>", "\x1b[0m")

    def setUp(self):
        super().setUp()
        self.add_many("bob", 3)
        self.add("eve", a=77)
        self.schema = self.database.all("SELECT sql FROM sqlite_master")

    def tearDown(self):
        self.assertEqual([tuple(row) for row in self.database.all("SELECT sql FROM sqlite_master")],
                         [tuple(row) for row in self.schema])
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 4)

    def quoted(self):
        from urllib.parse import quote
        return [quote(text.encode("utf-8"), safe="") for text in self.STRINGS]

    def test_in_a_filter_they_find_nothing(self):
        for name in ("q", "function", "queue"):
            for text in self.quoted():
                if text == "%22":
                    continue            # is in every task's arguments, which are searched as JSON
                with self.subTest(name=name, text=text):
                    reply = self.bob.get("/api/tasks?counts=1&%s=%s" % (name, text))
                    self.assertEqual(self.check(reply, 200)["tasks"], [])
                    self.assertEqual(reply.json["counts"]["all"], 0)

    def test_as_status_number_or_owner_they_are_refused(self):
        for text in self.quoted():
            with self.subTest(text=text):
                self.check(self.bob.get("/api/tasks?status=" + text), 400)
                self.check(self.bob.get("/api/tasks?limit=" + text), 400)
                self.check(self.bob.get("/api/tasks?owner=" + text), 403)
                self.check(self.ana.get("/api/tasks?owner=" + text), 404)

    def test_in_a_path_they_find_nothing(self):
        for text in self.quoted():
            for reply in (self.bob.get("/api/tasks/" + text),
                          self.bob.patch("/api/users/" + text, {"role": "admin"}),
                          self.ana.delete("/api/users/" + text), self.ana.patch("/api/users/" + text, {}),
                          self.ana.delete("/api/tokens/" + text), self.nobody.get("/static/" + text)):
                self.assertEqual(reply.status, 404, text)

    def test_in_a_body_they_are_refused_or_kept_as_they_are(self):
        for text in self.STRINGS:
            with self.subTest(text=text):
                self.check(self.bob.post("/api/tasks", {**TASK, "function": text}), 422)
                if not re.fullmatch("[A-Za-z0-9_.-]+", text):
                    self.check(self.bob.post("/api/tasks", {**TASK, "queue": text}), 422)
                self.check(self.ana.post("/api/tasks", {**TASK, "owner": text}), 422)
                self.check(self.bob.post("/api/tasks", {**TASK, text: 1}), 422)
                made = self.bob.post("/api/tokens", {"name": text, "password": PASSWORD})
                self.assertEqual(made.json["name"], text)

    def test_as_an_argument_they_are_kept_and_found_again(self):
        from urllib.parse import quote
        for text in self.STRINGS:
            reply = self.bob.post("/api/tasks", {"function": "greet", "arguments": {"name": text}})
            self.assertEqual(self.check(reply, 201)["arguments"], {"name": text})
            found = self.bob.get("/api/tasks/%d" % reply.json["id"]).json
            self.assertEqual(found["arguments"], {"name": text})
            if text.isascii() and not set(text) & set('"\\\x1b'):     # searched as JSON text
                rows = self.bob.get("/api/tasks?q=" + quote(text, safe="")).json["tasks"]
                self.assertIn(reply.json["id"], [row["id"] for row in rows], text)
            self.bob.delete("/api/tasks/%d" % reply.json["id"])

    def test_in_a_login_they_are_nobody(self):
        for place, text in enumerate(self.STRINGS):
            visitor = Visitor(self.app)
            environ = visitor.environ("POST", "/api/session", {"name": text, "password": text})
            reply = call(self.app, {**environ, "REMOTE_ADDR": "198.51.100.%d" % place})
            self.assertEqual(reply.status, 401, text)

    def test_a_search_of_any_signs_is_answered_and_a_very_long_one_refused(self):
        for sign in ("%25", "a", "_", "%5C", "*", "%00", "%C3%A9", "'"):
            self.check(self.bob.get("/api/tasks?counts=1&q=" + sign * 200), 200)
            reply = self.bob.get("/api/tasks?q=" + sign * 201)
            self.check(reply, 400, "malformed")
            self.assertEqual(reply.fields, ["q"])


class Interface(WebTestCase):

    def test_the_application_keeps_to_wsgi(self):
        reply = call(self.app, self.nobody.environ("GET", "/healthz"))
        self.assertEqual(reply.json["status"], "ok")

    def test_a_bare_environment_is_enough(self):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/healthz", "wsgi.input": io.BytesIO()}
        self.assertEqual(call(self.app, environ, checked=False).status, 200)

    def test_text_in_other_encodings_is_no_server_error(self):
        for path in ("/api/users/%ff", "/api/tasks?q=%ff", "/api/tasks?q=%ed%a0%80",
                     "/api/tasks?function=%00", "/api/tasks?owner=%ff", "/static/%ff", "/%ed%a0%80"):
            self.assertLess(self.ana.get(path).status, 500, path)

    def test_odd_headers_are_no_server_error(self):
        odd = ("", " ", "\xff" * 20, "x" * 5000, "a,b;c=d", '"', "\t")
        for name in ("Authorization", "X_Api_Key", "Cookie", "If_None_Match", "Origin", "Sec_Fetch_Site",
                     "Content_Type", "Accept_Encoding", "Content_Encoding", "Host"):
            for text in odd + ("Bearer " + "\xff" * 9, "Basic YTpi", "bearer\xa0x"):
                with self.subTest(name=name, text=text[:12]):
                    self.assertLess(self.bob.ask("GET", "/api/tasks", **{name: text}).status, 500)
                    self.assertLess(self.bob.post("/api/tasks", TASK, **{name: text}).status, 500)

    def test_an_answer_that_needs_no_body_takes_it_first(self):
        environ = self.nobody.environ("POST", "/api/tasks", b" " * 100000)
        body = environ["wsgi.input"]
        self.check(call(self.app, environ), 401)
        self.assertEqual(body.read(), b"")

    def test_a_client_that_leaves_while_its_body_is_read_is_no_bug(self):
        for visitor, status in ((self.nobody, 401), (self.bob, 400)):
            environ = visitor.environ("POST", "/api/tasks", b" " * 100)
            environ["wsgi.input"] = mock.MagicMock(io.BytesIO, read=mock.Mock(side_effect=OSError("gone")))
            self.check(call(self.app, environ, checked=False), status)


if __name__ == "__main__":
    unittest.main()
