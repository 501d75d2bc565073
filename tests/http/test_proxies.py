"""Behind proxies: whose address counts, HTTPS, the base path, the page's own origin."""
from unittest import mock

import jobqueue
from jobqueue import Settings
from tests.helpers.support import PASSWORD
from tests.helpers.web import SITE, Visitor, WebTestCase, call, random_word

PROXY = "192.0.2.7"                     # tests.helpers.web asks from there


class ProxyTestCase(WebTestCase):
    """A site behind a proxy at PROXY, which is trusted."""

    def setUp(self):
        super().setUp()
        self.use(trusted_proxies=PROXY)

    def use(self, **values):
        """Change settings."""
        self.change_settings(**values)

    def request(self, path="/", address=PROXY, **headers):
        """The Request of a GET."""
        environ = self.nobody.environ("GET", path, None, headers)
        return jobqueue.Request({**environ, "REMOTE_ADDR": address}, self.queue.settings)

    def address(self, chain, address=PROXY):
        """Where a request with this X-Forwarded-For comes from."""
        return self.request(address=address, X_Forwarded_For=chain).address


class Addresses(ProxyTestCase):

    def test_what_the_trusted_proxy_added_last_counts(self):
        self.assertEqual(self.address("198.51.100.9"), "198.51.100.9")
        self.assertEqual(self.address("10.1.1.1, 203.0.113.5, 198.51.100.9"), "198.51.100.9")

    def test_from_anybody_else_the_header_says_nothing(self):
        self.assertEqual(self.address("198.51.100.9", address="192.0.2.8"), "192.0.2.8")
        self.use(trusted_proxies=None)
        self.assertEqual(self.address("198.51.100.9"), PROXY)

    def test_a_chain_of_trusted_proxies_is_followed_to_the_first_that_is_not(self):
        self.use(trusted_proxies="192.0.2.7 10.0.0.0/8, 2001:db8::/32")
        self.assertEqual(self.address("1.1.1.1, 198.51.100.9, 2001:db8::7, 10.2.3.4"), "198.51.100.9")
        self.assertEqual(self.address("10.9.9.9, 10.2.3.4"), "10.9.9.9")
        self.assertEqual(self.address(", ".join(["1.1.1.1"] + ["10.0.0.1"] * 5000)), "10.0.0.1")

    def test_ports_and_brackets_are_no_part_of_an_address(self):
        for said, address in (("198.51.100.9:4711", "198.51.100.9"), ("[2001:db8::9]:4711", "2001:db8::9"),
                              ("[2001:db8::9]", "2001:db8::9"), ("2001:DB8:0::9", "2001:db8::9"),
                              ("::ffff:198.51.100.9", "198.51.100.9"), ("\t198.51.100.9 ", "198.51.100.9")):
            with self.subTest(said=said):
                self.assertEqual(self.address(said), address)

    def test_what_is_no_address_leaves_the_proxys(self):
        for said in ("", ",", "unknown", "198.51.100.9,", "198.51.100.9, x", "256.1.1.1", "1.1.1", "[::1",
                     "::1]", "1.1.1.1:80:80", "fe80::1%eth0", "a" * 10000, "1" * 10000, ":" * 10000,
                     "[" * 10000, "\xff", "198.51.100.9;", "'", "for=198.51.100.9", "1.1.1.1\x00",
                     "١.1.1.1", "0x7f.1.1.1"):
            with self.subTest(said=said[:40]):
                self.assertEqual(self.address(said), PROXY)

    def test_an_address_that_is_none_is_nobodys_proxy(self):
        for address in ("", "unix:", "localhost", "192.0.2.7, 192.0.2.7"):
            self.assertEqual(self.address("198.51.100.9", address=address), address)

    def test_the_throttle_counts_by_the_clients_address_whatever_it_says_itself(self):
        wrong = {"name": "nobody", "password": "wrong password"}
        for number in range(jobqueue.GUESSES_BY_ADDRESS[0]):
            self.nobody.post("/api/session", {**wrong, "name": "n%d" % number},
                             X_Forwarded_For="203.0.113.%d, 198.51.100.9" % number)
        attempt = {"name": "bob", "password": PASSWORD}
        self.check(self.nobody.post("/api/session", attempt, X_Forwarded_For="198.51.100.9"), 429)
        self.check(self.nobody.post("/api/session", attempt, X_Forwarded_For="203.0.113.1"), 200)

    def test_all_of_an_ipv6_network_is_throttled_as_one(self):
        subjects = {jobqueue.address_subject("2001:db8:0:1::%x" % number) for number in range(5)}
        self.assertEqual(subjects, {"address:2001:db8:0:1::/64"})
        for one in ("192.0.2.7", "::ffff:192.0.2.7"):       # as a server for both kinds tells it
            self.assertEqual(jobqueue.address_subject(one), "address:192.0.2.7")
        self.assertEqual(jobqueue.address_subject("not:an:address"), "address:not:an:address")


class Guessing(ProxyTestCase):
    """Who guesses a name from elsewhere does not lock out whom the proxy tells apart."""

    def log_in(self, password, address):
        """The status of a log-in as bob from an address behind the proxy."""
        return self.nobody.post("/api/session", {"name": "bob", "password": password},
                                X_Forwarded_For=address).status

    def test_a_person_logs_in_from_where_they_did_before_beside_a_thousand_wrong_ones(self):
        self.assertEqual(self.log_in(PASSWORD, "198.51.100.9"), 200)
        answers = []
        for number in range(1000):
            answers.append(self.log_in("wrong", "203.0.113.%d" % (number % 100)))
            self.clock.advance(0.06)
            if number % 100 == 99:
                self.assertEqual(self.log_in(PASSWORD, "198.51.100.9"), 200, number)
        self.assertEqual(set(answers), {401, 429})
        self.assertLess(answers.count(401), 20)
        self.assertEqual(self.log_in(PASSWORD, "198.51.100.10"), 429)


class Https(ProxyTestCase):

    def cookie(self, **headers):
        reply = Visitor(self.app).post("/api/session", {"name": "bob", "password": PASSWORD}, **headers)
        return self.check(reply, 200) and reply.headers["set-cookie"]

    def test_the_trusted_proxy_says_by_which_scheme_it_was_asked(self):
        for said, secure in (("https", True), ("HTTPS", True), ("http", False), ("http, https", True),
                             ("https, http", False), ("", False), ("https:", False), ("on", False),
                             ("x" * 10000, False)):
            with self.subTest(said=said[:20]):
                self.assertEqual(self.request(X_Forwarded_Proto=said).secure, secure)

    def test_nobody_else_does(self):
        self.assertFalse(self.request(address="192.0.2.8", X_Forwarded_Proto="https").secure)

    def test_behind_an_https_end_the_cookie_is_secure(self):
        self.assertRegex(self.cookie(X_Forwarded_Proto="https"), "^__Host-jobqueue=.*; Secure$")
        self.assertNotIn("ecure", self.cookie())

    def test_a_setting_says_it_where_no_proxy_does(self):
        self.use(https="always", trusted_proxies=None)
        self.assertRegex(self.cookie(), "^__Host-jobqueue=.*; Secure$")

    def test_nobody_locks_himself_out_by_it(self):
        for origin, status in (("http://" + SITE, 422), ("https://" + SITE, 200), (None, 200)):
            reply = self.ana.patch("/api/settings", {"https": "always"}, Origin=origin)
            self.check(reply, status)
            self.use(https="auto")

    def test_a_session_of_one_scheme_is_none_of_the_other(self):
        secure = self.cookie(X_Forwarded_Proto="https").partition(";")[0]
        visitor = Visitor(self.app, cookie=secure)
        self.check(visitor.get("/api/session", X_Forwarded_Proto="https"), 200)
        self.check(visitor.get("/api/session"), 401)


class Bases(ProxyTestCase):

    def setUp(self):
        super().setUp()
        self.use(base_path="jq/")

    def test_a_prefix_that_the_proxy_passes_through_is_taken_off(self):
        for path, below in (("/jq/api/session", "/api/session"), ("/jq/", "/"), ("/jq/jq/x", "/jq/x"),
                            ("/api/session", "/api/session"), ("/jqx", "/jqx"), ("/", "/")):
            request = self.request(path)
            self.assertEqual((request.path, request.base, request.lacks_slash), (below, "/jq/", False))

    def test_the_page_without_its_slash_is_sent_there(self):
        reply = self.app.route(self.request("/jq"))
        self.assertEqual((reply.status, dict(reply.headers)["Location"]), (308, "/jq/"))

    def test_the_cookie_is_for_that_path(self):
        reply = Visitor(self.app).post("/api/session", {"name": "bob", "password": PASSWORD})
        self.assertIn("; Path=/jq/;", reply.headers["set-cookie"])

    def test_a_cookie_left_from_another_path_does_not_hide_the_right_one(self):
        both = "jobqueue=left; other=1; " + self.bob.cookie
        self.check(Visitor(self.app, cookie=both).get("/api/session"), 200)
        many = "; ".join(["jobqueue=left"] * 100 + [self.bob.cookie])
        self.check(Visitor(self.app, cookie=many).get("/api/session"), 401)

    def test_logging_out_ends_all_sessions_that_the_browser_holds(self):
        older = self.browser("bob").cookie
        both = Visitor(self.app, cookie=older + "; " + self.bob.cookie)
        self.check(both.delete("/api/session"), 204)
        for cookie in (older, self.bob.cookie):
            self.check(Visitor(self.app, cookie=cookie).get("/api/session"), 401)

    def test_the_first_admin_is_made_with_the_settings_as_they_are(self):
        self.remove_users()
        self.set_password("/api/setup", "http://" + SITE)
        self.assertEqual(self.request().base, "/jq/")

    def set_password(self, path, origin):
        """Use an uploaded code."""
        code = random_word(8)
        (self.folder / "data" / "setup-code.txt").write_text(code)
        with mock.patch.object(jobqueue, "changed_at", lambda file: self.clock.now()):
            environ = self.nobody.environ("POST", path, {
                "code": code, "name": "ana", "password": "another horse"}, {"Origin": origin})
            self.assertEqual(call(self.app, environ).status, 201)
        self.queue.settings.describe()

    def test_a_new_password_also_lets_in_who_was_locked_out_by_a_setting(self):
        self.use(https="always")
        self.set_password("/api/setup", "http://" + SITE)
        self.assertEqual((self.request().base, self.request().secure), ("/", False))

    def test_it_keeps_settings_that_the_request_bears_out(self):
        self.use(https="always")
        self.set_password("/jq/api/setup", "https://" + SITE)
        self.assertEqual((self.request().base, self.request().secure), ("/jq/", True))


class Origins(ProxyTestCase):

    def answers(self, origin, **headers):
        reply = self.bob.post("/api/tasks", {}, Sec_Fetch_Site=None, Origin=origin, **headers)
        return reply.status != 403

    def test_the_trusted_proxy_tells_the_name_that_the_browser_used(self):
        told = {"Host": "127.0.0.1:8000", "X_Forwarded_Host": "jobs.example"}
        self.assertTrue(self.answers("http://jobs.example", **told))
        self.assertFalse(self.answers("http://127.0.0.1:8000", **told))
        self.assertFalse(self.answers("http://evil.example", **told))
        self.assertFalse(self.answers("http://evil.example", X_Forwarded_Host="evil.example, jobs.example"))

    def test_without_trust_only_host_counts(self):
        self.use(trusted_proxies=None)
        self.assertTrue(self.answers("http://" + SITE, X_Forwarded_Host="evil.example"))
        self.assertFalse(self.answers("http://evil.example", X_Forwarded_Host="evil.example"))

    def test_the_scheme_is_the_one_that_the_proxy_tells(self):
        self.assertFalse(self.answers("https://" + SITE))
        self.bob.cookie = "__Host-" + self.bob.cookie
        for host in (SITE, SITE + ":443"):
            self.assertTrue(self.answers("https://" + SITE, Host=host, X_Forwarded_Proto="https"))
        self.assertFalse(self.answers("http://" + SITE, X_Forwarded_Proto="https"))
        self.assertFalse(self.answers("https://" + SITE + ":444", X_Forwarded_Proto="https"))

    def test_names_that_are_none_are_not_believed(self):
        for said in ("", " ", "a b", "x/y", "<b>", "a" * 10000 + "/", "\xff", "[::1"):
            self.assertTrue(self.answers("http://" + SITE, X_Forwarded_Host=said), said)

    def test_the_refusal_says_what_a_proxy_lacks(self):
        reply = self.bob.post("/api/tasks", {}, Sec_Fetch_Site=None, Origin="http://jobs.example")
        self.assertIn("trusted_proxies", self.check(reply, 403)["detail"])


class StrippedAuthorization(WebTestCase):

    def test_a_401_tells_programs_of_the_other_header(self):
        self.assertIn("X-Api-Key", self.nobody.get("/api/tasks").json["detail"])
        self.assertIn("not known", self.nobody.get("/api/tasks", X_Api_Key="jq_x").json["detail"])
        self.check(self.nobody.get("/api/tasks", X_Api_Key=self.make_token("bob")[1]), 200)


WRONG = {
    "base_path": ("/api", "static/jq", "https://x.example/jq", "/a b", "/..", "/é", "/%20",
                  "x" * 201, 5, "/a;b"),
    "https": ("on", "", True),
    "trusted_proxies": ("localhost", "127.0.0.1/33", "0.0.0.0/0", "::/0", "x" * 2001, 7, "1.2.3",
                        "127.0.0.1:80", "*"),
}


class Forms(ProxyTestCase):

    def test_settings_are_kept_in_one_form(self):
        for name, given, kept in (
                ("base_path", "jq", "/jq"), ("base_path", " /a//b-1.2/~c/ ", "/a/b-1.2/~c"),
                ("base_path", "/", ""),
                ("trusted_proxies", "127.0.0.1, 10.0.0.0/8", "127.0.0.1, 10.0.0.0/8"),
                ("trusted_proxies", " ", "")):
            self.assertEqual(jobqueue.tidy_setting(name, given), kept)
            self.assertEqual(jobqueue.tidy_setting(name, kept), kept)

    def test_what_is_wrong_is_refused_with_the_fields_name(self):
        for name, values in WRONG.items():
            for value in values:
                reply = self.ana.patch("/api/settings", {name: value})
                with self.subTest(name=name, value=value):
                    self.check_wrong(reply, name)

    def test_the_environment_is_read_and_checked_as_well(self):
        settings = Settings(self.database, environment={
            "JOBQUEUE_BASE_PATH": "jq", "JOBQUEUE_HTTPS": "always", "JOBQUEUE_TRUSTED_PROXIES": "10.0.0.0/8"})
        request = jobqueue.Request({**self.nobody.environ("GET", "/jq/"), "REMOTE_ADDR": "10.0.0.1",
                                    "HTTP_X_FORWARDED_FOR": "198.51.100.9"}, settings)
        self.assertEqual((request.base, request.path, request.secure, request.address),
                         ("/jq/", "/", True, "198.51.100.9"))
        with self.refused(jobqueue.Invalid, "trusted_proxies"):
            Settings(self.database, environment={"JOBQUEUE_TRUSTED_PROXIES": "everybody"})
