"""Files over HTTP: handed in, given to tasks, listed, served; what must not be reached, run or left."""
import errno
import os
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock
from urllib.parse import quote

import jobqueue
from tests.helpers.server import HOST, Link, ServerTestCase
from tests.helpers.support import function_json, wait_until
from tests.helpers.web import Visitor, WebTestCase, call

FILE = {"type": "string", "format": "file"}
SHRINK = function_json("shrink", {"photo": FILE, "more": {"type": "array", "items": FILE, "default": []}},
                       ["photo"])
MEBIBYTE = 1 << 20


class FileCase(WebTestCase):
    """A function that takes files, and what its tasks leave."""

    def setUp(self):
        super().setUp()
        self.declare(SHRINK, *self.queue.catalogue.functions())
        self.data = self.queue.database.folder
        self.bob, self.eve, self.ana = map(self.program, ("bob", "eve", "ana"))    # for days

    def hand_in(self, visitor=None, body=b"bytes", name="x.bin"):
        """Hand in a file; its id."""
        reply = (visitor or self.bob).upload("/api/files?name=" + quote(name, safe=""), body)
        return self.check(reply, 201)["id"]

    def shrink(self, visitor, *keys, **more):
        """The answer to adding a task for these files."""
        arguments = {"photo": keys[0], **({"more": keys[1:]} if keys[1:] else {})}
        return visitor.post("/api/tasks", {"function": "shrink", "arguments": arguments, **more})

    def leave(self, make=lambda folder: None, kind="succeeded", owner="bob", **files):
        """The id of a task that has left these files, and whatever `make` makes in its folder."""
        task_id = self.add(owner)
        row = self.claim()
        folder = jobqueue.task_folder(self.data, task_id)
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / name.replace("__", ".")).write_bytes(data)
        make(folder)
        self.queue.files.tidy(task_id, self.end(row, kind))
        return task_id

    def listed(self, task_id, visitor=None):
        """The names of a task's files."""
        found = self.check((visitor or self.bob).get("/api/tasks/%d/files" % task_id), 200)
        return [file["name"] for file in found["files"]]

    def get(self, task_id, name, visitor=None):
        return (visitor or self.bob).get("/api/tasks/%d/files/%s" % (task_id, quote(name, safe="")))

    def on_disk(self):
        """All files that were handed in and are still there."""
        return sorted(path.name for path in self.data.glob("files-*/*"))


class HandingIn(FileCase):
    def test_the_answer_has_id_name_and_size(self):
        reply = self.bob.upload("/api/files?name=holiday.jpg", b"12345")
        told = self.check(reply, 201)
        self.assertEqual((told["name"], told["size"]), ("holiday.jpg", 5))
        self.assertRegex(told["id"], "^f_[0-9a-f]{32}$")

    def test_only_we_may_read_it(self):
        self.hand_in()
        for path in (self.data / "files", *self.data.glob("files-*"), *self.data.glob("files-*/*")):
            if path.exists():
                self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    def test_no_name_leads_elsewhere(self):
        for name in ("../../evil", "/etc/passwd", "..", ".", "a/../../b", "..\\..\\c", ".htaccess", "a\nb\0",
                     "x" * 300, "日" * 100, " . "):
            with self.subTest(name):
                told = self.check(self.bob.upload("/api/files?name=" + quote(name, safe="")), 201)
                self.assertNotRegex(told["name"], r"^\.|[/\\\0\n]")
                self.assertLessEqual(len(told["name"].encode()), 200)
        places = {path.parent.name for path in self.data.rglob("f_*")}
        self.assertEqual([place[:6] for place in places], ["files-"])
        for name in self.on_disk():
            self.assertRegex(name, r"\Af_[0-9a-f]{32}\Z")

    def test_one_that_is_too_large_is_refused_in_our_words_and_leaves_nothing(self):
        self.change_settings(max_file_mb=1)
        self.hand_in(body=b"x" * MEBIBYTE)
        reply = self.bob.upload("/api/files?name=x", b"x" * (MEBIBYTE + 1))
        self.check(reply, 413, "too_large")
        self.assertIn("A file may have 1 MB", reply.json["detail"])
        self.assertEqual(len(self.on_disk()), 1)

    def test_a_quota_is_kept_however_many_come_at_once(self):
        self.change_settings(max_files_mb=1)
        with ThreadPoolExecutor(8) as pool:
            body = b"x" * (MEBIBYTE * 2 // 5)
            replies = list(pool.map(lambda _: self.bob.upload("/api/files?name=x", body).status, range(8)))
        self.assertEqual(sorted(replies), [201] * 2 + [507] * 6)
        self.assertEqual(len(self.on_disk()), 2)
        self.hand_in(self.eve, body)            # it is each user's own

    def test_a_disk_that_is_short_is_507_and_nothing_is_left(self):
        with mock.patch.object(jobqueue, "free_bytes", lambda _: jobqueue.DISK_LOW_BYTES + 4):
            self.check(self.bob.upload("/api/files?name=x", b"12345"), 507, "disk_full")
            self.hand_in(body=b"1234")
        self.assertEqual(self.database.value("SELECT count(*) FROM file"), 1)

    def test_a_disk_that_fills_meanwhile_is_507_and_nothing_is_left(self):
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
            self.check(self.bob.upload("/api/files?name=x"), 507, "disk_full")
        self.assertEqual((self.on_disk(), self.database.value("SELECT count(*) FROM file")), ([], 0))
        self.assertEqual(list(self.data.glob("files-*/*")), [])

    def test_a_body_that_ends_too_soon_leaves_nothing(self):
        environ = self.bob.environ("POST", "/api/files?name=x", b"12345", {
            "Content-Type": jobqueue.BYTES_TYPE})
        environ["CONTENT_LENGTH"] = "9"
        reply = call(self.app, environ, checked=False)
        self.check(reply, 400, "malformed")
        self.assertEqual((self.on_disk(), self.database.value("SELECT count(*) FROM file")), ([], 0))

    def test_it_must_be_sent_as_bytes_with_a_length(self):
        self.check(self.bob.post("/api/files?name=x", b"{}"), 415)
        environ = self.bob.environ("POST", "/api/files?name=x", b"1", {"Content-Type": jobqueue.BYTES_TYPE})
        environ["CONTENT_LENGTH"] = ""
        self.check(call(self.app, environ, checked=False), 415)
        environ["CONTENT_LENGTH"] = "many"
        self.check(call(self.app, environ, checked=False), 400, "malformed")
        self.check(self.bob.upload("/api/files"), 400)

    def test_one_that_no_task_uses_goes_after_a_day(self):
        self.hand_in()
        self.clean(86400 - 60)
        self.assertEqual(len(self.on_disk()), 1)
        self.clean(120)
        self.assertEqual((self.on_disk(), self.database.value("SELECT count(*) FROM file")), ([], 0))

    def test_what_a_crash_left_goes_within_an_hour(self):
        self.hand_in()
        left = next(self.data.glob("files-*")) / ("f_" + "0" * 32)
        left.mkdir()
        (left / "half").write_bytes(b"x")
        self.clean(3601)
        self.assertEqual((left.exists(), len(self.on_disk())), (False, 1))


    def test_the_words_in_the_names_of_folders_lead_to_nothing_else(self):
        word = self.database.path.stem.partition("-")[2]
        given, work = jobqueue.given_folder(self.data), jobqueue.task_folder(self.data, 7).parent
        words = {folder.name.partition("-")[2] for folder in (given, work)}
        self.assertEqual(len(words), 2)
        self.assertNotIn(word, words)
        self.hand_in(name="evil.php")
        self.assertEqual([path for path in self.data.rglob("*") if path.name.endswith(".php")], [])

    def test_folders_of_an_earlier_edition_are_renamed_and_found_by_a_link_for_a_day(self):
        key = self.hand_in(name="a.txt", body=b"12345")
        [given] = self.data.glob("files-*")
        body = (given / key).read_bytes()
        (given / key).unlink()
        (given / key).mkdir()
        (given / key / "a.txt").write_bytes(body)
        former = jobqueue.private_path(self.database.path, "files")
        given.rename(former)
        queue = self.another_queue()
        self.assertEqual((former.is_symlink(), (given / key / "a.txt").read_bytes()), (True, body))
        task = self.check(self.shrink(self.bob, key), 201)["id"]
        self.assertEqual(self.get(task, "a.txt").body, body)
        now = self.clock.now()
        os.utime(former, (now - 3600, now - 3600), follow_symlinks=False)
        queue.files.clear(now, wholly=True)
        self.assertTrue(former.is_symlink())
        os.utime(former, (now - 90_000, now - 90_000), follow_symlinks=False)
        queue.files.clear(now, wholly=True)
        self.assertEqual((os.path.lexists(former), self.get(task, "a.txt").body), (False, body))


class Giving(FileCase):
    def test_a_task_gets_it_and_once_more_for_another(self):
        key = self.hand_in(name="a.txt")
        first = self.check(self.shrink(self.bob, key), 201)["id"]
        again = self.check(self.shrink(self.bob, key), 201)["id"]
        for task_id in (first, again):
            self.assertEqual(self.listed(task_id), ["a.txt"])
        self.clean(2 * 86400)                   # it is not unused
        self.assertEqual(self.on_disk(), [key])
        self.bob.delete("/api/tasks/%d" % first)
        self.clean(10)
        self.assertEqual((self.on_disk(), self.listed(again)), ([key], ["a.txt"]))
        self.bob.delete("/api/tasks/%d" % again)
        self.clean(10)
        self.assertEqual(self.on_disk(), [])

    def test_lists_and_pages_tell_it_by_its_name(self):
        task_id = self.check(self.shrink(self.bob, *map(
            self.hand_in, [self.bob] * 2, [b"1", b"2"], ["a.txt", "b.txt"])), 201)["id"]
        for path in ("/api/tasks/%d" % task_id, "/api/tasks?"):
            shown = self.check(self.bob.get(path), 200)
            self.assertEqual(shown.get("tasks", [shown])[0]["summary"], 'a.txt, ["b.txt"]')

    def test_lists_of_files_are_given_too(self):
        keys = [self.hand_in(name=name) for name in "abc"]
        self.assertEqual(self.listed(self.check(self.shrink(self.bob, *keys), 201)["id"]), ["a", "b", "c"])

    def test_nobody_can_name_anothers_file_and_an_admin_can(self):
        key = self.hand_in()
        self.check_wrong(self.shrink(self.eve, key), "arguments")
        self.assertEqual(self.database.value("SELECT count(*) FROM task"), 0)
        self.check(self.shrink(self.ana, key, owner="bob"), 201)
        self.check_wrong(self.shrink(self.eve, key), "arguments")

    def test_what_is_no_id_or_of_no_file_is_refused(self):
        for wrong in ("f_" + "0" * 32, "/etc/passwd", "holiday.jpg", "f_../../x", 7, None):
            self.assertEqual(self.shrink(self.bob, wrong).status, 422, wrong)

    def test_one_that_has_not_come_as_a_whole_cannot_be_named(self):
        key = self.hand_in()
        self.write("UPDATE file SET name=NULL")
        self.check_wrong(self.shrink(self.bob, key), "arguments")

    def test_a_schedule_keeps_no_file(self):
        reply = self.bob.post("/api/schedules", {"function": "shrink", "rule": "daily 01:00",
                                                 "arguments": {"photo": self.hand_in()}})
        self.check_wrong(reply, "arguments")

    def test_whatever_removes_the_task_removes_them(self):
        def add():
            return self.check(self.shrink(self.bob, self.hand_in()), 201)["id"]

        def finish(task_id):
            self.end(self.claim())
            return task_id

        def delete_running():
            task_id, row = add(), self.claim()
            self.delete(task_id)
            self.end(row)

        ways = {"bulk": lambda: self.bob.post("/api/tasks/actions", {"action": "delete", "ids": [add()]}),
                "keeping": lambda: self.queue.actions.prune([finish(add())], self.clock.now() + 1),
                "on success": lambda: (self.shrink(self.bob, self.hand_in(), remove_on_success=True),
                                       self.end(self.claim())),
                "running": delete_running}

        for name, way in ways.items():
            with self.subTest(name):
                way()
                self.clean(10)
                self.assertEqual((self.on_disk(), self.database.value("SELECT count(*) FROM file")), ([], 0))


class Serving(FileCase):
    def test_what_a_task_left_is_listed_with_size_and_type(self):
        task_id = self.leave(out__png=b"\x89PNG\r\n\x1a\nxx", a__txt="höhe".encode(), b__bin=b"\0\1")
        self.assertEqual(self.check(self.bob.get("/api/tasks/%d/files" % task_id), 200)["files"], [
            {"name": "a.txt", "size": 5, "type": "text/plain", "id": None},
            {"name": "b.bin", "size": 2, "type": "application/octet-stream", "id": None},
            {"name": "out.png", "size": 10, "type": "image/png", "id": None}])

    def test_a_failed_task_leaves_them_too(self):
        self.assertEqual(self.listed(self.leave(kind="fail", why__txt=b"because")), ["why.txt"])

    def test_one_that_is_tried_again_has_none_yet(self):
        task_id = self.add(function="greet", name="x")
        row = self.claim()
        folder = jobqueue.task_folder(self.data, task_id)
        folder.mkdir(parents=True)
        (folder / "checkpoint").touch()
        self.end(row, "error")
        self.assertEqual((self.listed(task_id), (folder / "checkpoint").exists()), ([], True))

    def test_its_own_bytes_say_what_it_is_and_nothing_runs(self):
        shown = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff\xe0", "image/gif": b"GIF89a",
                 "image/webp": b"RIFF\0\0\0\0WEBP", "text/plain": b"a,b\n1,2\n"}
        hostile = {"x.html": b"<script>alert(1)</script>", "x.svg": b"<svg onload='alert(1)'/>",
                   "x.png": b"<html><script>", "x.js": b"alert(1)"}
        saved = {"x.pdf": b"%PDF-1.4\n", "x.zip": b"PK\3\4\0", "y.png": b"\0\0"}
        named = {"file%d" % at: data for at, data in enumerate(shown.values())}

        def make(folder):
            for name, data in {**hostile, **saved, **named}.items():
                (folder / name).write_bytes(data)

        task_id = self.leave(make)
        wanted = {**dict.fromkeys(hostile, "text/plain"), **dict.fromkeys(saved, jobqueue.BYTES_TYPE),
                  **dict(zip(named, shown))}
        for name, kind in wanted.items():
            reply = self.get(task_id, name)
            self.assertEqual((reply.status, reply.kind), (200, kind), name)
            self.assertEqual(reply.headers["content-security-policy"], "default-src 'none'; sandbox")
            self.assertEqual(reply.headers["x-content-type-options"], "nosniff")
            how = "attachment" if kind == jobqueue.BYTES_TYPE else "inline"
            self.assertTrue(reply.headers["content-disposition"].startswith(how + ";"), name)

    def test_any_name_is_told_and_found(self):
        def make(folder):
            (folder / 'Höhe "1"; x.txt').write_text("x")

        task_id = self.leave(make)
        reply = self.get(task_id, 'Höhe "1"; x.txt')
        self.assertEqual(reply.headers["content-disposition"],
                         "inline; filename*=UTF-8''H%C3%B6he%20%221%22%3B%20x.txt")

    def test_head_says_the_length_and_a_large_one_is_not_held_in_memory(self):
        task_id = self.leave(large__bin=b"\0" * (3 * MEBIBYTE))
        head = self.bob.ask("HEAD", "/api/tasks/%d/files/large.bin" % task_id)
        self.assertEqual((head.status, head.headers["content-length"], head.body),
                         (200, str(3 * MEBIBYTE), b""))
        answer = self.app.route(self.request_for("/api/tasks/%d/files/large.bin" % task_id))
        self.assertLessEqual(max(map(len, answer.body)), jobqueue.PIECE_BYTES)
        answer.body.close()

    def request_for(self, path):
        return jobqueue.Request(self.bob.environ("GET", path), self.queue.settings)

    def test_another_persons_files_are_not_found(self):
        task_id = self.leave(secret__txt=b"x")
        for path in ("files", "files/secret.txt", "files/nothing"):
            self.check(self.eve.get("/api/tasks/%d/%s" % (task_id, path)), 404)
            self.assertIn(self.nobody.get("/api/tasks/%d/%s" % (task_id, path)).status, (401,))

    def test_links_devices_folders_and_hard_links_are_not_followed_but_named(self):
        secret = self.folder / "secret"
        secret.write_text("secret")

        def make(folder):
            (folder / "link").symlink_to(self.database.path)
            os.mkfifo(folder / "fifo")
            os.link(secret, folder / "hard")
            (folder / "sub").mkdir()
            (folder / "sub" / "x").touch()
            (folder / ".hidden").touch()
            (folder / "good.txt").write_text("good")

        task_id = self.leave(make)
        self.assertEqual(self.listed(task_id), ["good.txt"])
        told = self.bob.get("/api/tasks/%d/log" % task_id).json["text"]
        self.assertIn("Not kept (not plain files, too many, or too large): fifo, hard, link, sub\n", told)
        for name in ("link", "fifo", "hard", "sub", ".hidden", "../" + self.database.path.name):
            self.assertEqual(self.get(task_id, name).status, 404, name)
        self.assertEqual(secret.read_text(), "secret")
        self.assertEqual(os.listdir(jobqueue.task_folder(self.data, task_id)), ["good.txt"])

    def test_what_becomes_a_link_after_it_was_listed_is_not_followed(self):
        task_id = self.leave(a__txt=b"x" * 10)
        path = jobqueue.task_folder(self.data, task_id) / "a.txt"
        path.unlink()
        path.symlink_to(self.database.path)
        self.check(self.get(task_id, "a.txt"), 404)
        folder = path.parent
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "a.txt").write_text("secret of another")
        path.unlink()
        folder.rmdir()
        folder.symlink_to(elsewhere)
        self.check(self.get(task_id, "a.txt"), 404)

    def test_a_folder_that_its_task_has_removed_stops_nothing(self):
        task_id = self.leave(lambda folder: (folder.rmdir(), folder.touch()))
        self.assertEqual(self.listed(task_id), [])
        self.assertFalse(jobqueue.task_folder(self.data, task_id).exists())

    def test_one_that_grows_is_sent_as_long_as_it_was(self):
        task_id = self.leave(a__txt=b"12345")
        with open(jobqueue.task_folder(self.data, task_id) / "a.txt", "ab") as file:
            file.write(b"6789")
        self.assertEqual(self.get(task_id, "a.txt").body, b"12345")

    def test_of_ten_thousand_the_first_hundred_are_kept(self):
        def make(folder):
            for number in range(10_000):
                (folder / ("%05d" % number)).touch()

        task_id = self.leave(make)
        self.assertEqual(self.listed(task_id), ["%05d" % number for number in range(100)])
        self.assertIn("00100, 00101", self.bob.get("/api/tasks/%d/log" % task_id).json["text"])
        self.assertEqual(len(os.listdir(jobqueue.task_folder(self.data, task_id))), 100)

    def test_what_exceeds_the_quota_is_not_kept(self):
        self.change_settings(max_files_mb=1)
        task_id = self.leave(a=b"x" * (MEBIBYTE * 2 // 3), b=b"x" * (MEBIBYTE * 2 // 3), c=b"x")
        self.assertEqual(self.listed(task_id), ["a", "c"])
        self.assertIn("large): b\n", self.bob.get("/api/tasks/%d/log" % task_id).json["text"])

    def test_a_retry_replaces_what_was_left(self):
        task_id = self.leave(kind="fail", why__txt=b"because")
        self.retry(task_id)
        row = self.claim()
        folder = jobqueue.task_folder(self.data, task_id)
        (folder / "why.txt").unlink()
        (folder / "out.txt").write_text("out")
        self.end(row)
        self.assertEqual(self.listed(task_id), ["out.txt"])

    def test_one_that_is_gone_is_not_found(self):
        task_id = self.leave(a__txt=b"x")
        jobqueue.remove_task_folder(self.data, task_id)
        self.check(self.get(task_id, "a.txt"), 404)


class UnderAClaim(FileCase):
    """What a worker elsewhere asks and sends; its claim is the authority."""

    def setUp(self):
        super().setUp()
        self.key = self.hand_in(body=b"photo", name="p.jpg")
        self.task_id = self.shrink(self.bob, self.key).json["id"]
        self.row = self.claim()
        self.runner = Visitor(self.app, token=self.row["claim"])
        self.place = "/api/worker/tasks/%d/" % self.task_id

    def test_it_fetches_what_the_task_was_given(self):
        reply = self.runner.get(self.place + "files/" + self.key)
        self.assertEqual((reply.status, reply.body), (200, b"photo"))

    def test_it_sends_and_what_is_sent_again_takes_the_others_place(self):
        for body in (b"first", b"second"):
            self.check(self.runner.upload(self.place + "files?name=out.txt", body), 201)
        self.end(self.row)
        self.assertEqual(self.listed(self.task_id), ["out.txt", "p.jpg"])
        self.assertEqual(self.get(self.task_id, "out.txt").body, b"second")

    def test_no_more_than_a_hundred(self):
        with mock.patch.object(jobqueue, "FILES_MAX", 3):
            for name in ("a", "b"):
                self.check(self.runner.upload(self.place + "files?name=" + name), 201)
            self.check(self.runner.upload(self.place + "files?name=c"), 409)

    def test_no_other_claim_and_no_token_will_do_nor_this_one_after_the_end(self):
        other = self.add("bob")
        asks = (lambda who, place: who.get(place + "files/" + self.key),
                lambda who, place: who.get(place + "results"),
                lambda who, place: who.upload(place + "files?name=x"))
        for ask in asks:
            for who in (self.nobody, self.ana, self.program("ana"), self.program("ana", "worker"),
                        Visitor(self.app, token="0" * 32), Visitor(self.app, token="")):
                self.assertEqual(ask(who, self.place).status, 401)
            self.assertEqual(ask(self.runner, "/api/worker/tasks/%d/" % other).status, 401)
        self.end(self.row)
        for ask in asks:
            self.assertEqual(ask(self.runner, self.place).status, 401)

    def test_what_comes_for_a_task_that_is_deleted_meanwhile_is_not_kept_for_ever(self):
        write_part = jobqueue.write_part

        def write_late(*given):
            self.write("DELETE FROM task")
            return write_part(*given)

        with mock.patch.object(jobqueue, "write_part", write_late):
            self.check(self.runner.upload(self.place + "files?name=late.txt"), 409)
        self.clean(86400 + 60)
        self.assertEqual(self.database.value("SELECT count(*) FROM file"), 0)

    def test_it_hears_the_results_of_what_came_before_in_their_order(self):
        first, second = self.add("bob"), self.add("bob")
        third = self.add("bob", options={"after": [second, first], "after_failure": "run"})
        self.end(self.claim(), "succeeded", '{"a":1}')
        self.end(self.claim(), "fail")
        self.clean(5)
        row = self.claim()
        self.assertEqual(row["id"], third)
        reply = Visitor(self.app, token=row["claim"]).get("/api/worker/tasks/%d/results" % third)
        self.assertEqual(reply.json, {"results": [None, {"a": 1}]})


class OverTheWire(ServerTestCase):
    def setUp(self):
        super().setUp()
        self.token = self.make_token("bob")[1].encode()

    def head(self, length):
        return (b"POST /api/files?name=x HTTP/1.1\r\n" + HOST + b"X-Api-Key: " + self.token
                + b"\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n" % length)

    def test_64_mebibytes_come_and_go(self):
        body = os.urandom(MEBIBYTE) * 64
        with Link(self.server.address) as link:
            status, _, answer = link.send(self.head(len(body)) + body).answer()
        self.assertEqual(status, 201, answer)
        [path] = self.queue.database.folder.glob("files-*/f_*")
        self.assertEqual(path.read_bytes(), body)

    def test_one_that_is_cut_in_the_middle_leaves_nothing(self):
        with Link(self.server.address) as link:
            link.send(self.head(8 * MEBIBYTE) + b"x" * (3 * MEBIBYTE))
        wait_until(lambda: self.database.value("SELECT count(*) FROM file") == 0
                   and not self.server.connections, what="the end of that")
        self.assertEqual(list(self.queue.database.folder.glob("files-*/*")), [])


if __name__ == "__main__":
    unittest.main()
