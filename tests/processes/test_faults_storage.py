"""What happens to the data: power cuts, full disks, damaged files, strangers, migrations.

A task that somebody was told about is there afterwards, or the queue says in one line that the
database cannot be used and leaves the file as it is. It never goes on with less than it had.
"""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import time
import unittest
from pathlib import Path

import jobqueue
from tests.helpers.faults import (
    MANY, QUICK, SiteCase, SmallDiskCase, WatchedSite, WriterCase, copy_data, mount, mounted,
    somebody_elses_site)
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import need, wait_until
from tests.helpers.working import TASKS

setUpModule = needs_sqlite("the disk with its file")


class TestPowerCut(WriterCase):
    """F6. A file system whose disk is a file: its copy holds what had been synced, no more."""

    ROUNDS = 20 if MANY else 2

    def make_disk(self):
        image = self.folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(48 << 20)
        need(shutil.which("mkfs.ext4"), "mkfs.ext4")
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        return image, mount(self, self.folder / "disk", "-o", "loop", image)

    def cut(self, image, children, chance):
        """What the disk holds when the power fails: (copy of it, what had been told by then)."""
        time.sleep(chance.uniform(0.2, 0.6))
        self.stop(children)
        copy = image.with_name("cut %d" % chance.getrandbits(30))
        told, before = self.acknowledged(children), None
        while before != image.stat().st_mtime_ns:       # the kernel may write in between, too
            before = image.stat().st_mtime_ns
            subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
        for child in children:
            child.send_signal(signal.SIGCONT)
        return copy, told

    def test_what_was_told_survives_it(self):
        self.check_survival("wal")

    def test_it_survives_without_a_log_too(self):
        self.check_survival("truncate")

    def check_survival(self, journal):
        chance = random.Random(6)
        image, disk = self.make_disk()
        data = self.new_folder(disk, journal)
        os.sync()
        children = [self.start(kind, data, journal, jobqueue.WAL_CHECKPOINT_BYTES, 0.002)
                    for kind in ("add", "add", "count", "count")]
        self.working(children)
        cuts = [self.cut(image, children, chance) for _ in range(self.ROUNDS)]
        for child in children:
            child.kill()
            child.wait(60)
        for copy, told in cuts:
            with mounted(self.folder / "after", "-o", "loop", copy) as room:
                self.check_folder(room / "data", told, journal)
        self.assertGreater(len(told), 10)


class TestTornLog(WriterCase):
    """F6. The end of the log, which nobody had synced, is missing or holds anything at all."""

    FREEZES, CUTS = (10, 20) if MANY else (2, 20)

    def freeze(self, data, children):
        """A copy of everything at one moment: (folder, what had been told by then)."""
        self.stop(children)
        room = self.folder / ("frozen %d" % len(list(self.folder.iterdir())))
        copy_data(data, room)
        told = self.acknowledged(children)
        for child in children:
            child.send_signal(signal.SIGCONT)
        return room, told

    def commits(self, log):
        """Where in the log each commit ends; what older rounds left behind has other salts."""
        page = struct.unpack_from(">I", log, 8)[0]
        place, found = 32, [32]
        while log[place + 8:place + 16] == log[16:24]:
            place += 24 + page
            if place > len(log):
                break
            if struct.unpack_from(">I", log, place - page - 20)[0]:
                found.append(place)
        return found

    def first_safe(self, room, told):
        """The end of what had surely been synced: adds that were told, and what was copied back."""
        name = next(room.glob("jobqueue-*.db")).name
        log = (room / (name + "-wal")).read_bytes()
        copied = struct.unpack_from("=I", (room / (name + "-shm")).read_bytes(), 128)[0]
        page = struct.unpack_from(">I", log, 8)[0]
        ends = [end for end in self.commits(log) if end >= 32 + copied * (24 + page)]
        wanted = {task_id for _, ids in told for task_id in ids}
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2
            room_cut = self.torn(room, log[:ends[middle]])
            with contextlib.closing(sqlite3.connect(str(room_cut / name))) as link:
                known = {row[0] for row in link.execute("SELECT id FROM task")}
            low, high = (low, middle) if wanted <= known else (middle + 1, high)
        return log, ends[low], ends[-1]

    def torn(self, room, log):
        """The frozen folder as a restart finds it, with this log."""
        torn = self.folder / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        copy_data(room, torn, "*-shm", "*-wal")
        (torn / (next(room.glob("jobqueue-*.db")).name + "-wal")).write_bytes(log)
        return torn

    def test_whatever_stands_there_what_was_told_is_found(self):
        chance, data = random.Random(60), self.new_folder(self.folder / "room", "wal")
        children = [self.start(kind, data) for kind in ("add", "count", "count")]
        self.working(children)
        for _ in range(self.FREEZES):
            time.sleep(chance.uniform(0.2, 0.5))
            room, told = self.freeze(data, children)
            log, safe, end = self.first_safe(room, told)
            for number in range(self.CUTS):
                cut = chance.randint(safe, end)
                garbage = bytes(chance.getrandbits(8) for _ in range(chance.randint(1, 3000)))
                tail = (b"", garbage, garbage + log[cut + len(garbage):], b"\0" * 2000)[number % 4]
                self.check_folder(self.torn(room, log[:cut] + tail), told, "wal")
        self.assertGreater(len(told), 10)

    def test_a_rollback_journal_at_any_moment_is_rolled_back(self):
        """A synced journal cannot be torn, so the copies are taken as they are."""
        chance, data = random.Random(61), self.new_folder(self.folder / "room", "truncate")
        children = [self.start(kind, data, "truncate") for kind in ("add", "count", "count")]
        self.working(children)
        for _ in range(5 * self.FREEZES):
            time.sleep(chance.uniform(0.01, 0.1))
            room, told = self.freeze(data, children)
            self.check_folder(room, told, "truncate")


class TestFullDisk(SmallDiskCase):
    """F7. Everything is on a file system of a few megabytes."""

    def setUp(self):
        site = WatchedSite(TASKS, linger=5, NbMaxWorker=2, nice=0)
        self.use(site)
        self.move_to_small_disk()
        site.write_tasks(TASKS + """
@task
def takes(text: str, until: str = "", size: int = 0):
    while until and not (HERE / until).exists():
        time.sleep(0.01)
    return "x" * size
""")
        site.start_server()
        self.visitor = self.browser()

    def take(self, **arguments):
        """The reply to an add."""
        body = {"function": "takes", "arguments": {"text": "", **arguments}}
        return self.send(self.visitor, "POST", "api/tasks", body)

    def add_until_full(self):
        """Ids of what was acknowledged."""
        acknowledged, refused = [], 0
        while refused < 3:
            reply = self.take(text="x" * 100_000)
            self.assertIn(reply.status, (201, 503, 507))
            if reply.status == 201:
                acknowledged.append(reply.value["id"])
            refused += reply.status == 507
        return acknowledged

    def make_room(self):
        """Everything is as it was; the id of a task that was added then."""
        self.free()
        return wait_until(lambda: self.take().value.get("id"), what="an add after room was made")

    def test_it_is_said_and_nothing_is_lost_and_it_goes_on_by_itself(self):
        running = self.post(self.visitor, until=self.hold()).value["id"]
        self.running(running)
        self.fill()
        ids = self.add_until_full()
        reply = self.send(self.visitor)
        self.assertEqual((reply.status, reply.value["service"]["code"]), (200, "storage"))
        self.release()
        wait_until(lambda: self.count(running, "END"), what="its end, which cannot be recorded")
        ids += [running, self.make_room()]
        self.wait_for_all(ids)
        rows = self.site.rows("SELECT id, status FROM task")
        self.assertLessEqual(set(ids), {row["id"] for row in rows})
        self.assertEqual({row["status"] for row in rows}, {2})
        self.check_ledger(self.ledger(), [running])
        self.check_sound()
        self.check_quiet()
        self.assertEqual(self.row(running)["attempts"], 1, "its outcome was known all the time")

    def test_a_result_for_which_there_is_no_room_now_is_recorded_later(self):
        task_id = self.take(until=self.hold(), size=600_000).value["id"]
        self.wait_for(task_id, 1)
        self.fill(spare=100_000)
        self.release()
        wait_until(lambda: shutil.disk_usage(self.ballast.parent).free < 50_000,
                   what="an attempt to record it")
        self.make_room()
        row = self.wait_for(task_id)
        self.assertEqual((len(row["result"]), row["attempts"]), (600_002, 1))


class TestWithoutRights(SiteCase):
    """F8. Files that may not be written or are gone; run as somebody to whom modes apply."""

    def setUp(self):
        self.use(somebody_elses_site(self, QUICK))
        self.site.settings(**self.settings)
        self.site.start_server()
        self.visitor = self.browser()
        self.assertEqual(self.add_one().status, 201)

    def add_one(self):
        body = {"function": "add", "arguments": {"a": 1, "b": 2}}
        return self.send(self.visitor, "POST", "api/tasks", body)

    def check_fault(self):
        """While it lasts: an answer to everything, and what is acknowledged stays."""
        acknowledged = []
        for _ in range(3):
            for path in ("", "api/tasks", "healthz"):
                reply = self.send(self.visitor, path=path)
                self.assertIn(reply.status, (200, 503), path)
            reply = self.add_one()
            self.assertIn(reply.status, (201, 503))
            if reply.status == 201:
                acknowledged.append(reply.value["id"])
        self.check_quiet()
        return acknowledged

    def check_after(self, acknowledged):
        """Once it is mended and everything was started anew."""
        self.site.stop_all()
        self.site.server.stdout.close()
        self.site.start_server()
        self.visitor = self.browser()
        self.assertEqual(self.add_one().status, 201)
        wait_until(lambda: self.site.value("SELECT count(*) FROM task WHERE status<>2") == 0,
                   what="the end of all tasks")
        known = {row[0] for row in self.site.rows("SELECT id FROM task")}
        self.assertLessEqual(set(acknowledged), known)
        self.check_sound()
        self.assertNotIn("Traceback", self.site.said())

    def refused(self):
        """Starting anew says why it cannot, in one line."""
        done = self.site.run("list", code=None)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_data_folder_that_may_only_be_read(self):
        self.site.data.chmod(0o500)
        acknowledged = self.check_fault()
        self.site.data.chmod(0o700)
        self.check_after(acknowledged)

    def test_a_database_that_may_only_be_read(self):
        self.site.database.chmod(0o400)
        acknowledged = self.check_fault()
        self.site.database.chmod(0o600)
        self.check_after(acknowledged)

    def test_a_log_that_may_only_be_read(self):
        paths = [Path(str(self.site.database) + end) for end in ("-wal", "-shm")]
        acknowledged = []
        for path in paths:
            path.chmod(0o400)
            acknowledged += self.check_fault()
        for path in paths:
            path.chmod(0o600)
        self.check_after(acknowledged)

    def test_a_data_folder_that_is_gone_for_a_while(self):
        away = self.site.home / "away"
        self.site.data.rename(away)
        acknowledged = self.check_fault()
        self.assertEqual(acknowledged, [], "nothing may be added to what nobody will find")
        self.assertFalse(self.site.data.exists(), "a fresh folder was made in its place")
        away.rename(self.site.data)
        self.check_after(acknowledged)

    def test_a_folder_in_the_place_of_the_database(self):
        path = self.site.database
        away = path.rename(self.site.home / "away")
        path.mkdir()
        acknowledged = self.check_fault()
        self.assertEqual(acknowledged, [])
        self.refused()
        path.rmdir()
        away.rename(path)
        self.check_after(acknowledged)


if __name__ == "__main__":
    unittest.main()
