"""Accounts: passwords, the first admin, logging in, sessions, tokens."""
import contextlib
import functools
import hashlib
import os
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import jobqueue
from tests.helpers.support import PASSWORD, TestCase, at_once, quick_hash

ADDRESS = "192.0.2.7"
CODE = "a code that is long enough"


class Case(TestCase):
    """A TestCase with short names for accounts and its hashing made cheap."""

    def setUp(self):
        super().setUp()
        self.users, self.setup = self.queue.users, self.queue.setup
        self.sessions, self.tokens = self.queue.sessions, self.queue.tokens
        self.patch(jobqueue, "hash_password", quick_hash)

    def log_in(self, name="bob", password=PASSWORD, address=ADDRESS):
        return self.sessions.log_in(name, password, address)

    def change_own(self, current=PASSWORD):
        """Bob chooses another password."""
        known = self.users.confirm(self.people["bob"], current, "current_password")
        self.users.change("bob", known, password="another horse")

    def fail_to_log_in(self, times, name="bob", address=ADDRESS):
        for _ in range(times):
            with self.assertRaises(jobqueue.Unauthorized):
                self.log_in(name, "wrong", address)


class Passwords(unittest.TestCase):

    def test_a_stored_password_names_its_method_cost_and_salt(self):
        method, cost, salt, key = jobqueue.hash_password("correct horse").split("$")
        self.assertEqual((method, cost), ("scrypt", "16384,8,5"))
        self.assertEqual((len(salt), len(key)), (32, 128))

    def test_the_same_password_is_never_stored_the_same_way_twice(self):
        self.assertNotEqual(jobqueue.hash_password("correct horse"), jobqueue.hash_password("correct horse"))

    def test_only_the_right_password_verifies(self):
        stored = jobqueue.hash_password("pässword 1")
        self.assertTrue(jobqueue.verify_password("pässword 1", stored))
        self.assertFalse(jobqueue.verify_password("pässword 2", stored))
        self.assertFalse(jobqueue.verify_password("", stored))

    def test_passwords_stored_at_another_cost_still_verify(self):
        self.assertTrue(jobqueue.verify_password("correct horse", quick_hash("correct horse")))

    def test_a_python_without_scrypt_is_told_at_every_password(self):
        stored = (quick_hash("correct horse"), "pbkdf2$600000$00$00", jobqueue.NOBODYS_PASSWORD)
        self.addCleanup(setattr, hashlib, "scrypt", hashlib.scrypt)
        del hashlib.scrypt
        with self.assertRaisesRegex(jobqueue.SetupError, "use another Python"):
            jobqueue.hash_password("correct horse")
        for one in stored:
            with self.assertRaisesRegex(jobqueue.SetupError, "use another Python"):
                jobqueue.verify_password("correct horse", one)

    def test_something_else_than_a_hash_never_verifies(self):
        for stored in ("", "x", "md5$1$00$00", "pbkdf2$600000$00$00", "scrypt$a,b,c$00$00",
                       "scrypt$2,1,1$zz$00", "$$$", None):
            with self.subTest(stored=stored):
                self.assertFalse(jobqueue.verify_password("correct horse", stored))

    def test_half_a_character_never_verifies(self):
        self.assertFalse(jobqueue.verify_password("\ud800", quick_hash("x")))

    def test_length_counts_and_composition_does_not(self):
        for good in ("aaaabbbb", "x" * 256, "пароль-мой", "        "):
            jobqueue.check_password(good, "bob")
        for bad in ("short67", "x" * 257, ""):
            with self.subTest(bad=bad), self.assertRaises(jobqueue.Invalid) as caught:
                jobqueue.check_password(bad, "bob")
            self.assertEqual(caught.exception.errors[0]["field"], "password")

    def test_what_guessers_try_first_is_refused(self):
        for bad in ("password", "PassWord123", "12345678", "roberta.s", "ROBERTA.S"):
            with self.subTest(bad=bad), self.assertRaises(jobqueue.Invalid):
                jobqueue.check_password(bad, "roberta.s")

    def test_every_common_password_is_long_enough_to_matter(self):
        for word in jobqueue.COMMON_PASSWORDS:
            self.assertGreaterEqual(len(word), jobqueue.PASSWORD_MIN, word)


class FirstAdminCase(Case):

    def setUp(self):
        super().setUp()
        self.setup._home = self.folder
        self.code_file = self.setup.file
        self.patch(jobqueue, "changed_at",          # by what a test can set
                   lambda file: os.fstat(file.fileno()).st_mtime)

    def upload(self, data, name="setup-code.txt", age=0):
        """A file as the site's owner uploads it beside jobqueue.py."""
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
        os.utime(path, (self.clock.now() - age, self.clock.now() - age))
        return path


class FirstAdmin(FirstAdminCase):

    def setUp(self):
        super().setUp()
        self.write("DELETE FROM user")

    def make_code(self):
        """The code, made now by the test's clock."""
        code = self.setup.code()
        os.utime(self.code_file, (self.clock.now(), self.clock.now()))
        return code

    def test_the_code_makes_an_admin_once_and_is_gone(self):
        code = self.make_code()
        self.setup.redeem(code, "root", "correct horse")
        self.assertEqual(self.users.all()[0]["role"], "admin")
        self.assertFalse(self.code_file.exists())
        with self.assertRaises(jobqueue.NotFound):
            self.setup.redeem(code, "other", "correct horse")

    def test_the_code_file_is_for_its_owner_only(self):
        self.make_code()
        self.assertEqual(self.code_file.stat().st_mode & 0o777, 0o600)

    def test_the_code_is_the_same_for_an_hour_and_then_another(self):
        code = self.make_code()
        self.clock.advance(3599)
        self.assertEqual(self.setup.code(), code)
        self.clock.advance(2)
        self.assertNotEqual(self.setup.code(), code)

    def test_processes_that_find_none_at_once_agree_on_one(self):
        self.clock.wall = time.time()
        others = [self.another_queue(clock=jobqueue.Clock).setup for _ in range(4)]
        gate, codes = threading.Barrier(len(others)), []

        def ask(setup):
            gate.wait()
            codes.append(setup.code())

        at_once(ask, others)
        self.assertEqual(codes, [self.code_file.read_text().strip()] * len(others))

    def test_an_old_code_is_refused(self):
        code = self.make_code()
        self.clock.advance(3601)
        with self.refused(jobqueue.Denied, "at most an hour old"):
            self.setup.redeem(code, "root", "correct horse")

    def test_wrong_codes_are_refused(self):
        self.make_code()
        for code in ("", "x" * 22, "кодкодкодкодкодкод", "\ud800"):
            with self.subTest(code=code), self.assertRaises((jobqueue.Denied, jobqueue.TooMany)):
                self.setup.redeem(code, "root", "correct horse")
        self.assertFalse(self.users.has_admin())

    def test_an_uploaded_code_works_too_and_is_used_up(self):
        file = self.upload(CODE + "\n")
        self.setup.redeem(CODE, "root", "correct horse")
        self.assertTrue(self.users.has_admin())
        self.assertFalse(file.exists())

    def test_an_uploaded_code_counts_however_it_was_saved(self):
        for number, data in enumerate((
                CODE.encode("utf-8-sig"), (CODE + "\r\n").encode(), (CODE + "\r").encode(),
                b"\n\n  " + CODE.encode() + b" \n", "ein längerer Code".encode())):
            self.write("DELETE FROM user")
            code = CODE if number < 4 else "ein längerer Code"
            with self.subTest(data=data):
                path = self.upload(data, name="setup-code-%d.txt" % number)
                self.write("DELETE FROM state WHERE name='used_code'")
                self.setup.redeem(code + " ", "root", "correct horse")
                self.assertFalse(path.exists())

    def test_an_uploaded_code_may_lie_in_the_data_folder_as_well(self):
        self.upload(CODE, name="data/setup-code.txt")
        self.setup.redeem(CODE, "root", "correct horse")
        self.assertEqual(list((self.folder / "data").glob("setup-code*")), [])

    def test_what_is_no_code_is_passed_over_and_the_answer_says_what_one_is(self):
        os.mkfifo(self.folder / "setup-code-pipe.txt")
        (self.folder / "setup-code-folder.txt").mkdir()
        self.upload("too short")
        self.upload(CODE, name="setup-code-2.txt", age=3601)
        with self.assertRaises(jobqueue.Denied) as caught:
            self.setup.redeem(CODE, "root", "correct horse")
        for words in ("must be readable (rights 644)", "at most an hour old", "16 or more"):
            self.assertIn(words, caught.exception.detail)
        self.assertNotIn(self.code_file.name, caught.exception.detail)

    def test_an_uploaded_code_that_is_short_or_empty_does_not_work(self):
        for text in ("fifteen letters", "", "\n"):
            self.upload(text)
            with self.subTest(text=text), self.assertRaises(jobqueue.Denied):
                self.setup.redeem(text.strip(), "root", "correct horse")

    def test_a_mistake_in_the_form_does_not_use_up_the_code(self):
        code = self.make_code()
        with self.assertRaises(jobqueue.Invalid):
            self.setup.redeem(code, "root", "short")
        self.setup.redeem(code, "root", "correct horse")

    def test_guessing_the_code_is_slowed_down(self):
        self.make_code()
        with self.assertRaises(jobqueue.TooMany):
            for _ in range(jobqueue.GUESSES_BY_ADDRESS[0] + 1):
                with self.assertRaises(jobqueue.Denied):
                    self.setup.redeem("wrong", "root", "correct horse")

    def test_fifty_set_ups_at_once_make_exactly_one_admin(self):
        code, made, gate = self.make_code(), [], threading.Barrier(50)

        def set_up(number):
            gate.wait()
            try:
                self.setup.redeem(code, "root%d" % number, "correct horse")
                made.append(number)
            except (jobqueue.NotFound, jobqueue.Denied, jobqueue.TooMany, jobqueue.Busy):
                pass

        at_once(set_up, range(50))
        self.assertEqual(len(made), 1)
        self.assertEqual([user["name"] for user in self.users.all()], ["root%d" % made[0]])

    def test_two_processes_that_both_saw_no_admin_make_one(self):
        queue = self.another_queue()
        other, looks = queue.setup, queue.users.has_admin
        code = self.make_code()
        other._home = self.folder
        with mock.patch.object(queue.users, "has_admin",
                               lambda db=None: db is not None and looks(db)):
            self.setup.redeem(code, "root", "correct horse")
            self.upload(CODE)
            with self.assertRaises(jobqueue.NotFound):
                other.redeem(CODE, "second", "correct horse")
        self.assertEqual(len(self.users.all()), 1)


class LostPassword(FirstAdminCase):

    def setUp(self):
        super().setUp()
        self.write("DELETE FROM throttle")
        self.reset = functools.partial(self.setup.redeem, CODE, "ana", "another horse")

    def test_an_uploaded_code_gives_an_admin_a_new_password_once(self):
        session = self.log_in("ana")
        self.upload(CODE)
        self.assertEqual(self.reset()["name"], "ana")
        self.assertTrue(self.log_in("ana", "another horse"))
        self.assertIsNone(self.sessions.person(session))
        with self.refused(jobqueue.NotFound, "set up already"):
            self.reset()

    def test_without_a_file_the_refusal_says_what_to_do(self):
        with self.refused(jobqueue.NotFound, "named setup-code-WORD.txt"):
            self.reset()

    def test_a_file_that_cannot_be_deleted_counts_once_all_the_same(self):
        self.upload(CODE)
        with mock.patch.object(Path, "unlink", side_effect=PermissionError):
            self.reset()
        with self.refused(jobqueue.Denied, "has been used"):
            self.setup.redeem(CODE, "ana", "a third horse")
        self.upload("another code that is long")
        self.setup.redeem("another code that is long", "ana", "a third horse")

    def test_a_file_that_lies_there_for_an_hour_is_worth_nothing(self):
        self.upload(CODE, age=3601)
        with self.refused(jobqueue.Denied, "at most an hour old"):
            self.reset()

    def test_only_an_admin_who_can_log_in_gets_it_and_a_mistake_names_them(self):
        self.users.add("carl", "correct horse", "admin")
        self.users.change("carl", disabled=True)
        for name in ("bob", "carl", "nobody"):
            self.upload(CODE)
            with self.subTest(name=name), self.refused(jobqueue.Invalid, "must be that of an admin: ana"):
                self.setup.redeem(CODE, name, "another horse")
        self.assertTrue(self.setup.redeem(CODE, "ANA", "another horse"))

    def test_of_two_names_that_only_the_database_tells_apart_one_gets_it(self):
        self.users.add("Åse", "correct horse", "admin")
        with self.refused(jobqueue.Conflict, "There is a user Åse already"):
            self.users.add("åse", "correct horse", "admin")
        with self.database.transaction() as transaction:        # as an earlier edition let it be added
            row = transaction.row("SELECT password, role, created_at FROM user WHERE name=?", ("Åse",))
            transaction.insert("user", {**dict(zip(row.keys(), row)), "name": "åse"})
        self.upload(CODE)
        self.setup.redeem(CODE, "Åse", "another horse")
        self.assertTrue(self.log_in("Åse", "another horse"))
        self.assertTrue(self.log_in("åse"))

    def test_it_also_ends_the_waiting_after_wrong_passwords(self):
        self.fail_to_log_in(jobqueue.GUESSES[0], "ana")
        self.upload(CODE)
        self.reset()
        self.assertTrue(self.log_in("ana", "another horse"))

    def test_who_guesses_slows_down_only_themselves(self):
        self.upload(CODE)
        with self.assertRaises(jobqueue.TooMany):
            for _ in range(jobqueue.GUESSES_BY_ADDRESS[0] + 1):
                with self.assertRaises(jobqueue.Denied):
                    self.setup.redeem("wrong", "ana", "another horse", ADDRESS)
        self.setup.redeem(CODE, "ana", "another horse", "192.0.2.8")


class Users(Case):

    def test_a_new_user_can_log_in(self):
        self.users.add("zoë@example.org", "correct horse")
        self.assertTrue(self.log_in("zoë@example.org"))

    def test_names_are_taken_whatever_their_case(self):
        with self.assertRaises(jobqueue.Conflict):
            self.users.add("BOB", "correct horse")

    def test_names_that_are_none_are_refused(self):
        for name in ("", "a b", "a/b", "x" * 51, "<b>", "a\n", "'", "a;b", "\ud800"):
            with self.subTest(name=name), self.refused(jobqueue.Invalid, "name"):
                self.users.add(name, "correct horse")

    def test_the_last_admin_stays_one(self):
        for change in ({"role": "user"}, {"disabled": True}):
            with self.subTest(change=change), self.refused(jobqueue.Conflict, "last admin"):
                self.users.change("ana", **change)
        with self.refused(jobqueue.Conflict, "last admin"):
            self.users.delete("ana")
        self.assertEqual(self.users.all()[0]["role"], "admin")

    def test_an_admin_may_go_when_there_is_another(self):
        self.users.change("bob", role="admin")
        self.users.change("ana", role="user")
        self.assertEqual([user["role"] for user in self.users.all()], ["user", "admin", "user"])

    def test_a_disabled_admin_does_not_count_as_one(self):
        self.users.change("bob", role="admin")
        self.users.change("bob", disabled=True)
        with self.assertRaises(jobqueue.Conflict):
            self.users.change("ana", disabled=True)

    def test_who_owns_tasks_is_not_deleted(self):
        self.add("bob")
        with self.refused(jobqueue.Conflict, "disable"):
            self.users.delete("bob")

    def test_a_deleted_user_leaves_no_session_and_no_token(self):
        session, token = self.log_in("eve"), self.tokens.add(self.owner_id("eve"), "x")["token"]
        self.users.delete("eve")
        self.assertIsNone(self.sessions.person(session))
        self.assertIsNone(self.tokens.person(token))


class LoggingIn(Case):

    def test_wrong_name_wrong_password_and_disabled_sound_alike(self):
        self.users.change("eve", disabled=True)
        said = set()
        for name, password in (("nobody", PASSWORD), ("bob", "wrong"), ("eve", PASSWORD)):
            with self.assertRaises(jobqueue.Unauthorized) as caught:
                self.log_in(name, password)
            said.add((caught.exception.detail, str(caught.exception.errors)))
        self.assertEqual(len(said), 1)

    def test_an_unknown_name_costs_a_hash_as_well(self):
        with mock.patch.object(jobqueue, "verify_password", return_value=True) as verify:
            with self.assertRaises(jobqueue.Unauthorized):
                self.log_in("nobody")
        self.assertTrue(verify.call_args[0][1].startswith("scrypt$16384,8,5$"))

    def test_the_name_may_be_typed_in_another_case(self):
        self.assertEqual(self.sessions.person(self.log_in("BOB")).name, "bob")

    def test_a_password_beyond_the_limit_is_not_hashed(self):
        with mock.patch("hashlib.scrypt") as scrypt:
            with self.assertRaises(jobqueue.Unauthorized):
                self.log_in("bob", "x" * 257)
        scrypt.assert_not_called()

    def test_hostile_names_are_simply_unknown(self):
        for name in ("' OR 1=1 --", "bob\0", "\ud800", "x" * 100_000, "%", "b_b"):
            with self.subTest(name=name[:20]), self.assertRaises(jobqueue.Unauthorized):
                self.log_in(name)


class Guessing(Case):

    def test_the_fifth_failure_brings_a_delay_that_doubles(self):
        self.fail_to_log_in(5)
        for seconds in (1, 2, 4, 8):
            with self.assertRaises(jobqueue.TooMany) as caught:
                self.log_in()
            self.assertEqual(caught.exception.retry_after, seconds)
            self.clock.advance(seconds)
            self.fail_to_log_in(1)

    def test_the_delay_never_exceeds_fifteen_minutes(self):
        self.fail_to_log_in(5)
        for _ in range(20):
            row = self.database.one("SELECT * FROM throttle WHERE subject='user:bob'")
            self.assertLessEqual(row["until"] - self.clock.now(), 900)
            self.clock.advance(row["until"] - self.clock.now())
            self.fail_to_log_in(1)

    def test_the_right_password_after_the_delay_clears_the_count(self):
        self.fail_to_log_in(5)
        self.clock.advance(1)
        self.log_in()
        self.fail_to_log_in(4)
        self.log_in()

    def test_the_right_password_during_the_delay_is_not_looked_at(self):
        self.fail_to_log_in(5)
        with self.assertRaises(jobqueue.TooMany):
            self.log_in()

    def test_another_account_is_not_slowed_down(self):
        self.fail_to_log_in(5)
        self.log_in("eve", address="198.51.100.1")

    def test_the_case_of_the_name_does_not_give_more_guesses(self):
        for name in ("bob", "BOB", "Bob", "bOb", "boB"):
            self.fail_to_log_in(1, name)
        with self.assertRaises(jobqueue.TooMany):
            self.log_in("bob")

    @mock.patch.object(jobqueue, "NOBODYS_PASSWORD", quick_hash("nobody has this"))
    def test_one_address_has_twenty_failures_a_minute_for_all_names(self):
        for number in range(20):
            self.fail_to_log_in(1, "user%d" % number)
        with self.assertRaises(jobqueue.TooMany) as caught:
            self.log_in()
        self.assertLessEqual(caught.exception.retry_after, 60)
        self.log_in(address="198.51.100.1")
        self.clock.advance(61)
        self.log_in()

    def test_failures_are_forgotten_after_an_hour(self):
        self.fail_to_log_in(4)
        self.clock.advance(3601)
        self.fail_to_log_in(4)

    def test_parallel_guesses_count_before_they_are_judged(self):
        results, gate = [], threading.Barrier(20)
        self.clock.sleep, self.clock.monotonic = time.sleep, time.monotonic     # threads wait for each other
        self.database.patience = 60

        def guess(_):
            gate.wait()
            try:
                self.log_in("bob", "wrong")
            except jobqueue.JobQueueError as error:
                results.append(type(error))

        at_once(guess, range(20))
        self.assertEqual(results.count(jobqueue.Unauthorized), 5)
        self.assertEqual(len(results), 20)
        self.assertLessEqual(set(results), {jobqueue.Unauthorized, jobqueue.TooMany, jobqueue.Busy})

    def test_a_clock_that_jumped_back_does_not_lock_anybody_out(self):
        self.fail_to_log_in(5)
        self.clock.wall -= 10 * 365 * 86400
        self.log_in()

    def test_a_wrong_name_and_a_wrong_password_are_said_at_once(self):
        with self.assertRaises(jobqueue.Invalid) as caught:
            self.queue.users.add("Cyril Müller", "short")
        self.assertEqual([error["field"] for error in caught.exception.errors], ["name", "password"])

    def test_who_logged_in_lately_from_an_address_is_not_locked_out_by_strangers(self):
        self.log_in(address="198.51.100.1")
        self.log_in(address="2001:db8::1")
        for number in range(1000):
            with self.assertRaises((jobqueue.Unauthorized, jobqueue.TooMany)):
                self.log_in("bob", "wrong", "203.0.113.%d" % (number % 250))
            self.clock.advance(0.06)
        for address in ("198.51.100.1", "2001:db8::77"):        # of IPv6 all of one network are one
            self.log_in(address=address)
        with self.assertRaises(jobqueue.TooMany):
            self.log_in(address="198.51.100.2")
        with self.assertRaises(jobqueue.TooMany):
            self.log_in(address="203.0.113.251")

    def test_no_name_that_is_sent_counts_as_a_known_address(self):
        self.log_in(address="198.51.100.1")
        with mock.patch.object(jobqueue, "NOBODYS_PASSWORD", quick_hash("nobody has this")):
            for name in ("bob address:198.51.100.1", "known:2 address:198.51.100.1"):
                for _ in range(10):
                    with self.assertRaises((jobqueue.Unauthorized, jobqueue.TooMany)):
                        self.log_in(name, "wrong", "203.0.113.1")
                    self.clock.advance(60)
        self.log_in(address="198.51.100.1")

    def test_that_is_so_for_the_user_who_did_and_for_thirty_days(self):
        self.log_in(address="198.51.100.1")
        self.log_in("eve", address="198.51.100.2")
        for day, known in ((29, True), (31, False)):
            self.write("DELETE FROM throttle")
            self.write("UPDATE known_address SET until=?", (self.clock.now() + (30 - day) * 86400,))
            self.fail_to_log_in(5)
            with self.subTest(day), contextlib.ExitStack() as stack:
                if not known:
                    stack.enter_context(self.assertRaises(jobqueue.TooMany))
                self.log_in(address="198.51.100.1")
        with self.assertRaises(jobqueue.TooMany):
            self.log_in(address="198.51.100.2")

    def test_a_known_address_that_guesses_is_slowed_by_its_own_count_and_slows_no_other(self):
        self.log_in(address="198.51.100.1")
        self.fail_to_log_in(5, address="198.51.100.1")
        with self.assertRaises(jobqueue.TooMany) as caught:
            self.log_in(address="198.51.100.1")
        self.assertEqual(caught.exception.retry_after, 1)
        self.log_in(address="198.51.100.2")

    def test_logging_in_from_a_known_address_gives_strangers_no_more_guesses(self):
        self.log_in(address="198.51.100.1")
        self.fail_to_log_in(5)
        self.log_in(address="198.51.100.1")
        with self.assertRaises(jobqueue.TooMany):
            self.log_in()

    def test_only_who_logs_in_is_remembered_and_not_for_ever(self):
        for number in range(50):
            with self.assertRaises((jobqueue.Unauthorized, jobqueue.TooMany)):
                self.log_in("bob", "wrong", "198.51.100.%d" % number)
        known = "SELECT count(*) FROM known_address"
        self.assertEqual(self.database.value(known), 0)
        for _ in range(3):
            self.log_in("eve")
        self.assertEqual(self.database.value(known), 1)
        self.clock.advance(31 * 86400)
        self.tick()
        self.assertEqual(self.database.value(known), 0)
        self.log_in("eve")
        self.users.delete("eve")
        self.assertEqual(self.database.value(known), 0)

    def test_strangers_who_guess_a_name_keep_nobody_from_changing_their_password(self):
        self.fail_to_log_in(5)
        self.change_own()

    def test_guessing_the_own_password_is_slowed_down_too(self):
        with self.assertRaises(jobqueue.TooMany):
            for _ in range(6):
                with self.assertRaises(jobqueue.Denied):
                    self.change_own("wrong")


class Sessions(Case):

    def test_a_session_is_who_logged_in(self):
        person = self.sessions.person(self.log_in("ana"))
        self.assertEqual((person.name, person.role, person.is_admin), ("ana", "admin", True))

    def test_only_a_digest_is_stored(self):
        token = self.log_in()
        self.assertEqual(self.database.value("SELECT digest FROM session"),
                         hashlib.sha256(token.encode()).hexdigest())
        self.assertGreaterEqual(len(token), 43)

    def test_a_session_ends_after_half_an_hour_without_use(self):
        token = self.log_in()
        self.clock.advance(30 * 60)
        self.assertIsNotNone(self.sessions.person(token))
        self.clock.advance(30 * 60 + 1)
        self.assertIsNone(self.sessions.person(token))

    def test_a_session_ends_after_twelve_hours_whatever_happens(self):
        token = self.log_in()
        for _ in range(12 * 4):
            self.assertIsNotNone(self.sessions.person(token))
            self.clock.advance(15 * 60)
        self.clock.advance(1)
        self.assertIsNone(self.sessions.person(token))

    def test_logging_out_ends_only_that_session(self):
        one, two = self.log_in(), self.log_in()
        self.sessions.close(one)
        self.assertIsNone(self.sessions.person(one))
        self.assertIsNotNone(self.sessions.person(two))

    def test_every_login_is_a_new_session(self):
        self.assertNotEqual(self.log_in(), self.log_in())

    def test_disabling_somebody_ends_their_sessions_for_good(self):
        token = self.log_in()
        self.users.change("bob", disabled=True)
        self.users.change("bob", disabled=False)
        self.assertIsNone(self.sessions.person(token))

    def test_a_new_password_ends_all_sessions(self):
        tokens = [self.log_in(), self.log_in()]
        self.change_own()
        self.assertEqual([self.sessions.person(token) for token in tokens], [None, None])
        self.log_in(password="another horse")

    def test_the_own_password_changes_only_with_the_current_one(self):
        for wrong in ("wrong", "", None):
            with self.assertRaises(jobqueue.Denied):
                self.change_own(wrong)
        self.log_in()

    def test_a_demoted_admin_has_no_power_at_the_next_request(self):
        self.users.change("bob", role="admin")
        token = self.log_in()
        self.users.change("bob", role="user")
        self.assertFalse(self.sessions.person(token).is_admin)

    def test_what_was_never_a_session_is_nobody(self):
        for token in ("", "x", "\ud800", "é" * 50, "' OR 1=1 --"):
            self.assertIsNone(self.sessions.person(token))

    def test_use_is_noted_at_most_once_a_minute(self):
        token, when = self.log_in(), "SELECT seen_at FROM session"
        noted = self.database.value(when)
        self.clock.advance(59)
        self.sessions.person(token)
        self.assertEqual(self.database.value(when), noted)
        self.clock.advance(2)
        self.sessions.person(token)
        self.assertNotEqual(self.database.value(when), noted)

    def test_a_busy_database_does_not_log_anybody_out(self):
        token = self.log_in()
        self.clock.advance(120)
        with self.another_queue().database.transaction():
            self.assertEqual(self.sessions.person(token).name, "bob")

    def test_expired_sessions_are_swept_away(self):
        self.log_in()
        self.clock.advance(14 * 3600)
        self.tick()
        self.assertEqual(self.database.value("SELECT count(*) FROM session"), 0)


class Tokens(Case):

    def setUp(self):
        super().setUp()
        self.given = self.tokens.add(self.owner_id("bob"), " laptop ")

    def test_a_token_is_its_owner(self):
        self.assertEqual(self.tokens.person(self.given["token"]).name, "bob")

    def test_a_token_is_shown_once_and_stored_as_a_digest(self):
        self.assertRegex(self.given["token"], r"^jq_[\w-]{43,}$")
        listed = self.tokens.all(self.owner_id("bob"))
        self.assertEqual(listed, [{
            "id": self.given["id"], "owner": "bob", "name": "laptop", "scope": "user",
            "created_at": listed[0]["created_at"], "last_used_at": None}])
        self.assertEqual(self.database.value("SELECT digest FROM token"),
                         hashlib.sha256(self.given["token"].encode()).hexdigest())

    def test_a_revoked_token_is_nobody(self):
        self.tokens.delete(self.owner_id("bob"), self.given["id"])
        self.assertIsNone(self.tokens.person(self.given["token"]))

    def test_nobody_revokes_somebody_elses_token(self):
        with self.assertRaises(jobqueue.NotFound):
            self.tokens.delete(self.owner_id("eve"), self.given["id"])
        self.assertIsNotNone(self.tokens.person(self.given["token"]))

    def test_a_reset_by_an_admin_and_disabling_end_all_tokens_for_good(self):
        for change in ({"password": "another horse"}, {"disabled": True}):
            self.users.change("bob", disabled=False)
            token = self.tokens.add(self.owner_id("bob"), "x")["token"]
            others = self.tokens.add(self.owner_id("eve"), "x")["token"]
            self.users.change("bob", **change)
            self.users.change("bob", disabled=False)
            with self.subTest(change=change):
                self.assertIsNone(self.tokens.person(token))
                self.assertEqual(self.tokens.all(self.owner_id("bob")), [])
                self.assertIsNotNone(self.tokens.person(others))

    def test_a_token_goes_on_when_its_owner_changes_the_password_or_anything_else_is_changed(self):
        self.change_own()
        self.users.change("bob", role="admin", max_pending=7, disabled=False)
        self.assertIsNotNone(self.tokens.person(self.given["token"]))

    def test_who_knew_the_old_password_makes_no_token_after_a_reset(self):
        known = self.users.confirm(self.people["bob"], PASSWORD)
        self.users.change("bob", password="another horse")
        with self.refused(jobqueue.Denied, "current password"):
            self.tokens.add(self.owner_id("bob"), "x", "user", known)
        self.assertEqual(self.tokens.all(), [])

    def test_a_disabled_users_token_does_not_work(self):
        self.users.change("bob", disabled=True)
        self.assertIsNone(self.tokens.person(self.given["token"]))

    def test_a_token_is_no_session_and_a_session_no_token(self):
        self.assertIsNone(self.sessions.person(self.given["token"]))
        self.assertIsNone(self.tokens.person(self.log_in()))

    def test_last_use_is_noted(self):
        self.clock.advance(100)
        self.tokens.person(self.given["token"])
        used = self.tokens.all(self.owner_id("bob"))[0]["last_used_at"]
        self.assertEqual(used, jobqueue.iso(self.clock.now()))
        seen = {user["name"]: user["last_seen_at"] for user in self.users.all()}
        self.assertEqual(seen["bob"], used)


if __name__ == "__main__":
    unittest.main()
