"""Files with real workers: given, left, sent from elsewhere, handed over by command line and Python."""
import http.client
import os
import re
import shutil
import unittest
from urllib.parse import urlsplit

import jobqueue
from tests.helpers import postgres
from tests.helpers.faults import SmallDiskCase, plant
from tests.helpers.support import Site, wait_until
from tests.processes.test_remote import RemoteCase

TASKS = '''
import os, signal, time
from pathlib import Path
from typing import List, Optional
from jobqueue import command, current_task, task

HERE = Path(__file__).parent

@task(timeout=600)
def shrink(photo: Path, more: List[Path] = [], until: str = "") -> Path:
    """Make a photo smaller, and spoil the copy it was given."""
    data = photo.read_bytes() + b"".join(one.read_bytes() for one in more)
    photo.write_bytes(b"spoilt")
    while until and not (HERE / until).exists():
        time.sleep(0.01)
    small = current_task().folder / ("small " + photo.name)
    small.write_bytes(data[:100])
    return small

@task(max_retries=1, retry_delay=0)
def goes_on(photo: Path) -> list:
    folder = current_task().folder
    (folder / ("of attempt %d" % current_task().attempt)).write_bytes(photo.read_bytes())
    (folder / "scratch").mkdir(exist_ok=True)
    if current_task().attempt == 1:
        raise ValueError("once more")
    return sorted(path.name for path in folder.iterdir())

@task
def fails(how: str):
    (current_task().folder / "why.txt").write_text("because")
    if how == "raises":
        raise ValueError("no")
    os.kill(os.getpid(), signal.SIGKILL)

@task
def elsewhere(name: str) -> Path:
    (HERE / name).write_text("made elsewhere")
    return HERE / name

@task
def nothing(photo: Optional[Path] = None) -> Path:
    return Path("/no/such/file")

@task
def several() -> dict:
    folder = current_task().folder
    names = [".hidden.png", "photo\u202egnp.exe", "first.txt", "linked.txt"]
    for name in names:
        (folder / name).write_text(name)
    os.link(folder / "linked.txt", folder / "other name.txt")
    return {"first": folder / names[2], "number": 7, "hidden": folder / names[0],
            "turned": folder / names[1], "linked": folder / names[3]}

@task
def a_list() -> list:
    (current_task().folder / "a.txt").write_text("a")
    return [current_task().folder / "a.txt", HERE / "tasks.py", HERE / "none", 3]

@task
def spelled(photo: Path) -> list:
    import unicodedata
    composed = unicodedata.normalize("NFC", photo.name)
    return [photo.name == composed, (photo.parent / composed).exists()]

@task
def before(n: int) -> int:
    return n

@task
def paths(photo: Path) -> list:
    folder = Path(os.environ["JOBQUEUE_DATA"]) if "JOBQUEUE_DATA" in os.environ else HERE / "data"
    print(photo, current_task().folder)
    return [photo.name, sorted(name for name in os.environ if name.startswith("JOBQUEUE_")),
            sorted(path.name for path in folder.rglob("*.php*"))]

@task
def sums() -> int:
    return sum(current_task().results)

command("copy", ["sh", "-c", 'cat "$1" > "$JOBQUEUE_FOLDER/copy"', "sh", "{photo}"], photo=Path)
'''


class FileCase(unittest.TestCase):
    """A site with these functions, and a photo to hand over."""

    def setUp(self):
        self.site = Site(TASKS, linger=5, nice=0)
        self.addCleanup(self.site.close)
        self.photo = self.site.home.parent / "a photo.jpg"
        self.photo.write_bytes(b"\xff\xd8\xff of a beach")

    def add(self, function, *words):
        return int(self.site.run("add", function, *words).stdout)

    def wait(self, task_id, status="succeeded"):
        task = self.site.wait(task_id)
        self.assertEqual(task["status"], status, task)
        return task

    def names(self, task_id):
        return [file["name"] for file in self.site.json("files", task_id)["files"]]


class OnTheCommandLine(FileCase):
    def test_a_photo_goes_in_and_a_picture_comes_out(self):
        task_id = self.add("shrink", "photo=@%s" % self.photo)
        self.photo.unlink()                     # it was copied
        self.assertEqual(self.wait(task_id)["result"], "small a photo.jpg")
        self.assertEqual(self.names(task_id), ["small a photo.jpg", "a photo.jpg"])
        self.site.run("files", str(task_id), "--save", "out")
        saved = self.site.home / "out" / "small a photo.jpg"
        self.assertEqual(saved.read_bytes(), b"\xff\xd8\xff of a beach")
        self.assertEqual(saved.stat().st_mode & 0o777, 0o600)

    def test_what_a_task_prints_and_inherits_opens_nothing_else(self):
        evil = self.site.home.parent / "evil.PHP.jpg"
        evil.write_bytes(b"<?php")
        task_id = self.site.wait(int(self.site.run(
            "add", "paths", "photo=@%s" % evil,
            environment={"JOBQUEUE_ALERT_WEBHOOK": "https://example.org/secret"}).stdout))["id"]
        name, variables, served = self.wait(task_id)["result"]
        self.assertEqual((name, served), ("evil_PHP.jpg", []))
        self.assertLessEqual(set(variables), {"JOBQUEUE_TASKS", "JOBQUEUE_DATA", "JOBQUEUE_UMASK"})
        log = self.site.run("log", str(task_id)).stdout
        word = re.match("jobqueue-(.*)[.]", next(self.site.data.glob("jobqueue-*")).name)[1]
        self.assertIn("/work-", log)
        self.assertNotIn(word, log)
        self.assertEqual(self.names(task_id), ["evil.PHP.jpg"])

    def test_nothing_is_overwritten_and_no_name_leads_out(self):
        task_id = self.add("shrink", "photo=@%s" % self.photo)
        self.wait(task_id)
        out = self.site.home / "out"
        out.mkdir()
        (out / "small a photo.jpg").symlink_to(self.site.home / "elsewhere")
        self.assertIn("exists", self.site.run("files", str(task_id), "--save", "out", code=1).stderr)
        self.assertFalse((self.site.home / "elsewhere").exists())

    def test_half_a_file_is_not_saved(self):
        address = self.site.start_server()
        (self.site.home / "token").write_text(self.site.token("bob"))
        elsewhere = ("--server", address, "--token-file", "token")
        task_id = self.add("shrink", "photo=@%s" % self.photo, *elsewhere)
        self.wait(task_id)
        (kept,) = self.site.data.glob("work-*/*/small a photo.jpg")
        whole = kept.read_bytes()
        for there in (), elsewhere:
            kept.write_bytes(whole[:5])
            self.site.run("files", str(task_id), "--save", "out", *there, code=1)
            self.assertEqual(os.listdir(self.site.home / "out"), [])
            kept.write_bytes(whole)
            self.site.run("files", str(task_id), "--save", "out", *there)
            shutil.rmtree(self.site.home / "out")

    def test_a_pipe_is_refused_and_not_taken_for_an_empty_file(self):
        os.mkfifo(self.site.home / "pipe")
        for path in ("pipe", "/dev/stdin", "."):
            done = self.site.run("add", "shrink", "photo=@" + path, given="bytes", code=1)
            self.assertIn("%s is not a plain file" % path, done.stderr)
        self.assertIn("pipe is not a plain file", self.site.python(
            "from pathlib import Path\nfrom tasks import shrink\n"
            "try:\n    shrink.enqueue(Path('pipe'))\nexcept Exception as error:\n    print(error)"))

    def test_lists_and_rows_of_a_csv_have_files(self):
        task_id = self.add("shrink", "photo=@%s" % self.photo, "more=@%s,@%s" % (self.photo, self.photo))
        self.assertEqual(self.names(task_id)[-3:], ["a photo.jpg"] * 3)
        (self.site.home / "rows.csv").write_text("photo\n@%s\n@%s\n" % (self.photo, self.photo))
        self.site.run("add", "shrink", "--each", "rows.csv")
        self.assertIn("a photo.jpg", self.names(task_id + 2))

    def test_with_another_site_they_are_sent_and_fetched(self):
        address = self.site.start_server()
        token = self.site.home / "token"
        token.write_text(self.site.token("bob"))
        there = ("--server", address, "--token-file", "token")
        task_id = int(self.site.run("add", "shrink", "photo=@%s" % self.photo, *there).stdout)
        self.wait(task_id)
        self.site.run("files", str(task_id), "--save", "out", *there)
        self.assertEqual((self.site.home / "out" / "small a photo.jpg").read_bytes(), self.photo.read_bytes())

    def test_a_command_gets_the_path_and_leaves_files(self):
        task_id = self.add("copy", "photo=@%s" % self.photo)
        self.wait(task_id)
        self.assertEqual(self.names(task_id), ["copy", "a photo.jpg"])


class InPython(FileCase):
    def test_paths_are_copied_and_the_files_of_a_task_can_be_read(self):
        said = self.site.python(
            "from pathlib import Path; from jobqueue import JobQueue; from tasks import shrink\n"
            "photo = Path(%r)\n"
            "for task in (shrink.enqueue(photo), shrink.enqueue(photo=photo, more=[photo]),\n"
            "             JobQueue().enqueue('shrink', {'photo': photo})):\n"
            "    print([(f.name, f.size, len(f.path.read_bytes())) for f in task.wait(60).files])"
            % str(self.photo))
        photo = ("a photo.jpg", 14, 14)
        self.assertEqual(said.splitlines(), [
            str([("small a photo.jpg", 14, 14), photo]), str([("small a photo.jpg", 28, 28), photo, photo]),
            str([("small a photo.jpg", 14, 14), photo])])

    def test_the_results_of_what_came_before_are_there_in_order(self):
        said = self.site.python(
            "from tasks import before, sums\n"
            "tasks = before.enqueue(1), before.enqueue(20)\n"
            "print(sums.using(after=tasks).enqueue().wait(60).result)")
        self.assertEqual(said, "21")


class Leaving(FileCase):
    def test_a_retry_gets_what_the_first_got_and_finds_what_that_left(self):
        task_id = self.add("goes_on", "photo=@%s" % self.photo)
        result = self.wait(task_id)["result"]
        self.assertEqual(result, [".given", "of attempt 1", "of attempt 2", "scratch"])
        self.assertEqual(self.names(task_id), ["of attempt 1", "of attempt 2", "a photo.jpg"])
        for path in self.site.data.glob("work-*/*/*"):
            self.assertEqual(path.read_bytes(), self.photo.read_bytes())

    def test_a_failed_one_and_one_that_was_killed_leave_files(self):
        for how in ("raises", "dies"):
            task_id = self.add("fails", "how=" + how)
            self.site.wait(task_id)
            self.assertEqual(self.names(task_id), ["why.txt"])

    def test_a_path_that_is_returned_from_elsewhere_is_copied(self):
        task_id = self.add("elsewhere", "name=x.txt")
        self.assertEqual(self.wait(task_id)["result"], "x.txt")
        self.assertEqual(self.names(task_id), ["x.txt"])
        task_id = self.add("nothing")
        self.assertEqual((self.wait(task_id)["result"], self.names(task_id)), ("/no/such/file", []))

    def test_each_name_in_a_list_or_a_dictionary_leads_to_a_file(self):
        task_id = self.add("several")
        result = self.wait(task_id)["result"]
        self.assertEqual(result, {"first": "first.txt", "number": 7, "hidden": "hidden.png",
                                  "turned": "photo_gnp.exe", "linked": "linked.txt"})
        self.assertLess({"first.txt", "hidden.png", "photo_gnp.exe", "linked.txt"},
                        {*self.names(task_id), "other name.txt"})
        task_id = self.add("a_list")
        result = self.wait(task_id)["result"]
        self.assertEqual(result, ["a.txt", "tasks.py", result[2], 3])
        self.assertEqual(self.names(task_id), ["a.txt", "tasks.py"])

    def test_a_name_that_a_mac_spells_is_found_by_the_usual_spelling(self):
        photo = self.photo.with_name("U\u0308bung a\u0308.jpg")
        photo.write_bytes(b"x")
        task_id = self.add("spelled", "photo=@%s" % photo)
        self.assertEqual(self.wait(task_id)["result"], [True, True])
        self.assertEqual(self.names(task_id), ["\u00dcbung \u00e4.jpg"])

    def test_nothing_is_left_of_a_task_that_only_reads(self):
        task_id = self.add("nothing", "photo=@%s" % self.photo)
        self.wait(task_id)
        wait_until(lambda: not list(self.site.data.glob("work-*/*")), what="its folder's end")


class Elsewhere(RemoteCase):
    """A worker on another machine fetches and sends files under its claim."""

    def setUp(self):
        super().setUp()
        self.machine.write_tasks(TASKS)
        self.photo = self.site.home.parent / "photo.jpg"
        self.photo.write_bytes(os.urandom(3_000_000))

    def shrink(self, *more):
        return int(self.site.run("add", "shrink", "photo=@%s" % self.photo, *more).stdout)

    def test_they_travel_over_http(self):
        self.begin()
        task_id = self.shrink()
        self.assertEqual(self.wait(task_id)["result"], "small photo.jpg")
        self.site.run("files", str(task_id), "--save", "out")
        self.assertEqual((self.site.home / "out" / "small photo.jpg").read_bytes(),
                         self.photo.read_bytes()[:100])
        wait_until(lambda: not list((self.machine.home / "data-remote").glob("*/work-*/*")), what="its end")

    def test_results_of_what_came_before_do_too(self):
        self.begin()
        ids = [self.site.add("before", n=n) for n in (1, 20)]
        task_id = int(self.site.run("add", "sums", "--after", ",".join(map(str, ids))).stdout)
        self.assertEqual(self.wait(task_id)["result"], 21)

    def test_a_refused_file_is_named_in_the_log(self):
        self.begin()
        task_id = self.shrink("until=go")
        wait_until(lambda: self.site.json("show", task_id)["status"] == "running", what="its start")
        wait_until(lambda: list((self.machine.home / "data-remote").glob("*/work-*/*/.given/*/*")), what="it")
        self.site.run("settings", "max_files_mb", "1")
        self.let_go()
        self.wait(task_id)
        self.assertIn("Not kept: small photo.jpg (the site refuses: ", self.site.run("log", task_id).stdout)


@unittest.skipUnless(postgres.ADDRESS, "there is no PostgreSQL: JOBQUEUE_TEST_DATABASE")
class OnAnotherMachine(unittest.TestCase):
    """One database, the page on one machine, the workers on another."""

    def setUp(self):
        self.site = Site(TASKS, NbMaxWorker=0)
        self.addCleanup(self.site.close)
        self.photo = self.site.home.parent / "photo.jpg"
        self.photo.write_bytes(b"of a beach")
        self.site.start_server()
        self.machine = Site(TASKS, users=False, folder="strong machine",
                            database=self.site.place["JOBQUEUE_DATABASE"])
        self.addCleanup(self.machine.close)
        plant(self.machine, "def machine_name():\n    return 'strong'\n")

    def shrink(self, **settings):
        task_id = int(self.site.run("add", "shrink", "photo=@%s" % self.photo).stdout)
        self.site.settings(NbMaxWorker=1, worker_mode="service", **settings)
        self.machine.start_worker("--service")
        return self.site.wait(task_id, 60)

    def test_files_travel_to_the_page_and_back(self):
        task = self.shrink(page_address=self.site.address)
        self.assertEqual((task["status"], task["result"]), ("succeeded", "small photo.jpg"), task)
        self.site.run("files", task["id"], "--save", "out")
        self.assertEqual((self.site.home / "out" / "small photo.jpg").read_bytes(), b"of a beach")
        wait_until(lambda: not list(self.machine.data.glob("work-*/*")), what="that it is tidied up")

    def test_without_an_address_the_task_fails_with_one_clear_sentence(self):
        task = self.shrink()
        self.assertEqual(task["status"], "failed")
        self.assertEqual(task["error"]["message"],
                         "its files are on another machine, and the setting page_address is empty")

    def test_the_command_line_there_says_where_to_go(self):
        said = self.machine.run("add", "shrink", "photo=@%s" % self.photo, code=1).stderr
        self.assertIn("on another machine", said)


class WhileTheDiskFills(SmallDiskCase):
    """F7. An upload for which there is room at first."""

    def test_it_is_507_and_nothing_is_left(self):
        site = Site(TASKS, NbMaxWorker=0)
        self.use(site)
        self.move_to_small_disk(300)
        address = urlsplit(site.start_server())
        link = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        self.addCleanup(link.close)
        body = os.urandom(1 << 20)
        link.putrequest("POST", "/api/files?name=x")
        for header in (("X-Api-Key", site.token("bob")), ("Content-Type", jobqueue.BYTES_TYPE),
                       ("Content-Length", str(64 << 20))):
            link.putheader(*header)
        link.endheaders()
        for _ in range(16):
            link.send(body)
        self.fill(spare=8 << 20)
        try:
            for _ in range(48):
                link.send(body)
        except ConnectionError:
            pass
        self.assertEqual(link.getresponse().status, 507)
        self.free()
        self.assertEqual(list(site.data.glob("files-*/*")), [])
        self.assertEqual(site.rows("SELECT * FROM file WHERE until>0"), [])
        self.assertGreater(shutil.disk_usage(self.ballast.parent).free, 280 << 20)


if __name__ == "__main__":
    unittest.main()
