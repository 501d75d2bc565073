"""The class for PHP: by curl and by streams, on the command line and behind a form of php -S."""

import json
import shutil
import subprocess
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from tests.helpers.between import Between
from tests.helpers.support import ROOT, Site, free_port, need, wait_until

CLIENT = ROOT / "static" / "hosts" / "jobqueue.php"
TASKS = '''
import time
from pathlib import Path

from jobqueue import current_task, task

@task
def echo(value=None, count: int = 1):
    return {"value": value, "count": count}

@task
def shout(file: Path):
    (current_task().folder / "loud.txt").write_text(file.read_text().upper())

@task
def sleep():
    time.sleep(60)

@task
def fail():
    raise ValueError("no such town")
'''
SCRIPT = '''<?php
require %r;
try {
    $jobs = new JobQueue($argv[1], $argv[2], 5, 30);
    echo json_encode((function () use ($jobs) { %s })());
} catch (JobQueueException $error) {
    echo json_encode(["status" => $error->status, "reason" => $error->reason, "fields" => $error->fields,
        "message" => $error->getMessage(), "retry" => $error->retryAfter]);
}
'''
FORM = '''<?php
require %r;
$jobs = new JobQueue(%r, %r);
$task = $jobs->enqueue('echo', ['value' => $_POST['message']]);
echo "Thank you. Your message has the number {$task['id']}.";
'''


class PhpCase(unittest.TestCase):
    disabled = "curl_init"              # streams

    @classmethod
    def setUpClass(cls):
        need(shutil.which("php"), "php-cli")
        cls.site = Site(TASKS, NbMaxWorker=1, linger=0)
        cls.addClassCleanup(cls.site.close)
        cls.address = cls.site.start_server()
        cls.token = cls.site.home / "token.txt"
        cls.token.write_text(cls.site.token("bob") + "\n")

    def php(self, text, address=None, token=None):
        """The JSON that a function of PHP returns, or its exception."""
        path = self.site.home / "script.php"
        path.write_text(SCRIPT % (str(CLIENT), text))
        done = subprocess.run(
            ["php", "-d", "error_reporting=-1", "-d", "zend.exception_ignore_args=0",
             "-d", "display_errors=stderr",
             "-d", "disable_functions=%s" % self.disabled, str(path), address or self.address,
             str(token or self.token)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=180)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return json.loads(done.stdout)

    def between(self):
        between = Between(self.address.rstrip("/"))
        self.addCleanup(between.close)
        return between


class Streams(PhpCase):
    def test_a_task_is_added_and_waited_for(self):
        task = self.php("$task = $jobs->enqueue('echo', ['value' => ['Zoë', 1.0, true], 'count' => 3],"
                        " ['priority' => -5]); return $jobs->wait($task['id'], 60);")
        self.assertEqual((task["status"], task["priority"]), ("succeeded", -5))
        self.assertEqual(task["result"], {"value": ["Zoë", 1.0, True], "count": 3})
        self.assertEqual(self.php("return $jobs->get(%d);" % task["id"])["id"], task["id"])
        failed = self.php("return $jobs->wait($jobs->enqueue('fail', [], ['max_retries' => 0])['id']);")
        self.assertEqual((failed["status"], failed["error"]["message"]), ("failed", "no such town"))

    def test_many_are_added_at_once(self):
        ids = self.php("return $jobs->enqueueMany('echo', (function () { for ($i = 0; $i < 20; $i++) {"
                       " yield ['count' => $i]; } })());")
        self.assertEqual(len(ids), 20)
        self.assertEqual(self.php("return $jobs->enqueueMany('echo', []);"), [])
        self.assertEqual(self.php("return $jobs->get(%d)['arguments'];" % ids[7]), {"count": 7})

    def test_a_file_goes_in_and_another_comes_out(self):
        source = self.site.home / "quiet words.txt"
        source.write_text("hello")
        text = self.php("$id = $jobs->upload(%r); $task = $jobs->wait($jobs->enqueue('shout',"
                        " ['file' => $id])['id']); return $jobs->file($task['id'], 'loud.txt');"
                        % str(source))
        self.assertEqual(text, "HELLO")
        source.write_text("")
        self.assertRegex(self.php("return $jobs->upload(%r);" % str(source)), "^f_")

    def test_a_task_is_cancelled_and_deleted(self):
        task = self.php("return $jobs->cancel($jobs->enqueue('echo', [], ['delay' => 3600])['id']);")
        self.assertEqual(task["status"], "cancelled")
        gone = self.php("$jobs->delete(%d); return $jobs->get(%d);" % (task["id"], task["id"]))
        self.assertEqual((gone["status"], gone["reason"]), (404, "not_found"))
        late = self.php("return $jobs->wait($jobs->enqueue('echo', [], ['delay' => 3600])['id'], 0.5);")
        self.assertEqual(late["reason"], "timeout")

    def test_an_error_has_a_code_a_message_and_the_fields(self):
        wrong = self.php("return $jobs->enqueue('echo', ['count' => 'many']);")
        self.assertEqual((wrong["status"], wrong["fields"][0]["field"]), (422, "arguments.count"))
        stranger = self.site.home / "wrong.txt"
        stranger.write_text("jq_" + "0" * 32)
        refused = self.php("return $jobs->get(1);", token=stranger)
        self.assertEqual(refused["status"], 401)
        self.assertNotIn("0" * 32, json.dumps(refused))
        text = self.php(r"return $jobs->enqueue('echo', ['value' => \"\xff\"]);".replace('\\"', '"'))
        self.assertEqual(text["reason"], "invalid")

    def test_what_is_no_jobqueue_is_told_apart(self):
        nothing = self.php("return $jobs->get(1);", "http://127.0.0.1:%d/" % free_port())
        self.assertEqual((nothing["status"], nothing["reason"]), (0, "unreachable"))
        between = self.between()
        between.always = "html"
        other = self.php("return $jobs->get(1);", between.address)
        self.assertEqual(other["reason"], "foreign")
        for address in ("example.org", "ftp://example.org/", "https://me:secret@example.org/"):
            with self.subTest(address):
                self.assertEqual(self.php("return 1;", address)["reason"], "invalid")
        empty = self.site.home / "empty.txt"
        empty.write_text("")
        self.assertEqual(self.php("return 1;", token=empty)["reason"], "invalid")

    def test_each_add_counts_once_although_connections_are_cut(self):
        between = self.between()
        harms = ("after", "half", "before", "twice")
        between.harm["post tasks"] = [harms[n // 5 % 4] if n % 5 == 4 else None for n in range(60)]
        ids = self.php("$ids = []; for ($i = 0; $i < 40; $i++) {"
                       " $ids[] = $jobs->enqueue('echo', ['value' => 'cut', 'count' => $i],"
                       " ['delay' => 3600])['id']; } return $ids;", between.address)
        self.assertEqual(len(set(ids)), 40)
        rows = self.site.rows("SELECT id FROM task WHERE arguments LIKE '%cut%' ORDER BY id")
        self.assertEqual([row[0] for row in rows], sorted(ids))

    def test_a_busy_site_is_asked_again_after_its_pause(self):
        between = self.between()
        between.harm["post tasks"] = ["busy", "busy"]
        start = time.monotonic()
        task = self.php("return $jobs->enqueue('echo', [], ['delay' => 3600]);", between.address)
        self.assertGreaterEqual(time.monotonic() - start, 2)
        self.assertEqual(task["status"], "scheduled")
        between.harm["post tasks"] = ["busy"] * 9
        busy = self.php("global $argv; $jobs = new JobQueue($argv[1], $argv[2], 5, 3);"
                        " return $jobs->enqueue('echo');", between.address)
        self.assertEqual((busy["status"], busy["retry"]), (503, 1))
        self.assertLess(len(between.calls), 9)

    def test_a_full_quota_is_an_error_that_says_when_to_come_again(self):
        self.addCleanup(self.site.run, "user", "quota", "eve", "none")
        eve = self.site.home / "eve.txt"
        eve.write_text(self.site.token("eve"))
        self.site.run("user", "quota", "eve", 1)
        full = self.php("for (;;) { $jobs->enqueue('echo', [], ['delay' => 3600]); }", token=eve)
        self.assertEqual((full["status"], full["reason"], full["retry"]), (429, "too_many", 60))

    def test_a_key_repeats_an_add_and_cannot_hold_a_header(self):
        ids = self.php("return [$jobs->enqueue('echo', [], ['delay' => 600], 'order 7')['id'],"
                       " $jobs->enqueue('echo', [], ['delay' => 600], 'order 7')['id']];")
        self.assertEqual(ids[0], ids[1])
        for key in ('""', r'"a\r\nX-Api-Key: zz"'):
            with self.subTest(key):
                refused = self.php("return $jobs->enqueue('echo', [], [], %s);" % key)
                self.assertEqual(refused["reason"], "invalid")

    def test_no_trace_shows_the_token(self):
        shown = self.php("try { $jobs->get(999999); } catch (JobQueueException $error) {"
                         " return print_r($error->getTrace(), true); }")
        self.assertIn("ask", shown)
        self.assertNotIn(self.token.read_text().strip(), shown)

    def test_a_cancel_is_not_repeated_after_a_gateways_503(self):
        task = self.php("return $jobs->enqueue('echo', [], ['delay' => 3600]);")
        between = self.between()
        between.always = "busy"
        refused = self.php("return $jobs->cancel(%d);" % task["id"], between.address)
        self.assertEqual(refused["reason"], "foreign")
        self.assertEqual(len(between.calls), 1)

    def test_a_cancel_without_an_answer_is_not_repeated(self):
        task = self.php("return $jobs->enqueue('echo', [], ['delay' => 3600]);")
        between = self.between()
        between.harm["post tasks"] = ["after"]
        lost = self.php("return $jobs->cancel(%d);" % task["id"], between.address)
        self.assertEqual(lost["reason"], "unreachable")
        self.assertIn("Check whether the request was done", lost["message"])
        self.assertEqual(len(between.calls), 1)


class Curl(Streams):
    disabled = ""

    @classmethod
    def setUpClass(cls):
        need(shutil.which("php"), "php-cli")
        done = subprocess.run(["php", "-m"], stdout=subprocess.PIPE, encoding="utf-8")
        need("curl" in done.stdout.split(), "php-curl")
        super().setUpClass()


class Form(PhpCase):
    def test_a_form_adds_a_task(self):
        port, folder = free_port(), Path(self.site.home) / "web"
        folder.mkdir()
        (folder / "contact.php").write_text(FORM % (str(CLIENT), self.address, str(self.token)))
        server = subprocess.Popen(["php", "-S", "127.0.0.1:%d" % port, "-t", str(folder)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        body = urllib.parse.urlencode({"message": "Hello, are you open on Sunday?"}).encode()

        def sent():
            try:
                with urllib.request.urlopen("http://127.0.0.1:%d/contact.php" % port, body, 30) as answer:
                    return answer.read().decode()
            except OSError:
                return None
        said = wait_until(sent, what="the answer of the form")
        task_id = int(said.rstrip(".").split()[-1])
        self.assertIn("Sunday", self.site.value("SELECT arguments FROM task WHERE id=%d" % task_id))
