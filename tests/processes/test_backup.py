"""Daily backups by real processes, and `restore` beside them."""

import json
import signal

from tests.helpers.faults import SiteCase, SmallDiskCase, plant
from tests.helpers.postgres import needs_sqlite
from tests.helpers.support import wait_until

setUpModule = needs_sqlite("files")

# Whoever makes a backup while "kill at" says so dies with half of it.
HALF = r'''
DISK_LOW_BYTES = 0
copy_really = FileConnection.copy_to


def copy_or_die(self, path):
    with contextlib.suppress(OSError):
        os.unlink(HOME / "kill at" / "backup")
        with open(path, "wb") as file:
            file.write(b"SQLite format 3\0" + bytes(50_000))
        os.kill(os.getpid(), signal.SIGKILL)
    copy_really(self, path)


FileConnection.copy_to = copy_or_die
'''
# The disk has room until one writes.
BLIND = HALF + "\n\ndef free_bytes(path):\n    return 1 << 40\n"


class BackupCase(SiteCase):
    planted = HALF

    def setUp(self):
        super().setUp()
        plant(self.site, self.planted)
        self.backups = self.site.data / "backups"

    def names(self):
        return sorted(path.name for path in self.backups.glob("*"))

    def whole(self):
        return [name for name in self.names() if not name.endswith(".part")]

    def known(self):
        """What the queue remembers of the daily backup."""
        text = self.site.value("SELECT value FROM state WHERE name='daily_backup'")
        return json.loads(text) if text else {}

    def make(self):
        """Somebody ticks; what became of the backup of this day."""
        self.site.settings(backup_hour=0)
        self.site.run("tick")
        return wait_until(lambda: self.known().get("done") and self.known(), what="the backup")

    def again(self):
        """An hour later somebody ticks."""
        self.site.rows("UPDATE state SET value=? WHERE name='daily_backup'",
                       (json.dumps({**self.known(), "at": 0}),))
        self.site.run("tick")
        wait_until(lambda: self.known()["done"], what="another one")

    def restored(self, file):
        """A data folder that was made from it."""
        room = self.site.home.parent / "restored"
        self.site.run("restore", file, "--data", room)
        return room


class TestDailyBackup(BackupCase):
    settings = {"linger": 5, "NbMaxWorker": 4, "nice": 0}

    def test_one_is_made_while_four_workers_drain_and_passes_check(self):
        ids = self.enqueue("double", [{"n": n} for n in range(400)])
        self.make()
        self.wait_for_all(ids)
        [name] = self.whole()
        room = self.restored(self.backups / name)
        report = self.site.run("check", "--quick", "--json", "--data", room, code=None)
        said = {check["name"]: check for check in json.loads(report.stdout)["checks"]}
        self.assertEqual((said["Database"]["verdict"], said["Data"]["verdict"]), ("ok", "ok"))
        found = self.site.json("list", "--limit", 1000, "--data", room)["tasks"]
        self.assertEqual({task["id"] for task in found}, set(ids))
        self.assertEqual(self.site.value(
            "SELECT count(*) FROM task WHERE status<>2 OR crashes+interruptions>0"), 0)

    def test_any_number_that_tick_at_once_make_one(self):
        self.site.settings(backup_hour=0)
        children = [self.site._start(["-m", "jobqueue", "tick"]) for _ in range(8)]
        self.assertEqual([child.wait(60) for child in children], [0] * 8)
        wait_until(lambda: self.known().get("done"), what="the backup")
        first = (self.backups / self.whole()[0]).stat().st_ino
        for _ in range(3):
            self.site.run("tick")
        self.assertEqual([(self.backups / name).stat().st_ino for name in self.names()], [first])

    def test_one_that_is_killed_leaves_nothing_that_looks_like_a_backup_and_is_made_again(self):
        self.arm("backup")
        self.site.settings(backup_hour=0)
        self.site.run("tick")
        self.killed("backup")
        wait_until(lambda: not any("--backup" in line for line in self.site.processes().values()),
                   what="its end")
        self.assertEqual(self.whole(), [])
        self.assertEqual(self.known()["done"], False)
        self.again()
        self.assertEqual(len(self.whole()), 1)
        self.assertIsNone(self.known()["error"])


class TestFullDisk(SmallDiskCase, BackupCase):
    """F7."""

    planted = BLIND

    def setUp(self):
        super().setUp()
        self.move_to_small_disk()
        self.backups = self.site.data / "backups"

    def test_it_is_told_nothing_is_left_and_it_is_made_once_there_is_room(self):
        self.fill(spare=96 << 10)
        self.site.settings(backup_hour=0)       # who sets it may tick, too
        self.site.run("tick")
        wait_until(lambda: self.known().get("error"), what="the failure")
        self.assertIn("full", self.known()["error"])
        self.assertEqual(self.names(), [])
        self.assertNotIn("Traceback", self.site.said())
        self.free()
        self.again()
        self.assertEqual(len(self.whole()), 1)


class TestRestore(BackupCase):
    def test_it_is_refused_while_a_server_or_a_worker_lives_and_done_after_them(self):
        first = self.add("double", n=1)
        self.wait_for(first)
        file = self.site.home.parent / "copy"
        self.site.run("backup", file)
        second = self.add("double", n=2)
        self.wait_for(second)
        self.site.stop_all(signal.SIGTERM)
        worker = self.site.start_worker("--service")
        wait_until(lambda: self.site.value("SELECT 1 FROM worker WHERE state='idle'"), what="a worker")
        self.assertIn("Something uses the database", self.site.run("restore", file, code=5).stderr)
        worker.terminate()
        worker.wait(60)
        self.site.start_server()
        self.assertIn("Something uses the database", self.site.run("restore", file, code=5).stderr)
        self.site.stop_server()
        self.site.stop_all(signal.SIGTERM)
        kept = self.site.json("restore", file)["kept"]
        self.assertEqual([task["id"] for task in self.site.json("list")["tasks"]], [first])
        self.site.run("restore", kept)
        self.assertEqual([task["id"] for task in self.site.json("list")["tasks"]], [second, first])
        self.assertEqual(self.site.damage(), [])
