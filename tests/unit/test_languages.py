"""The texts of the page and of the server: each is translated into every language that the page offers."""
import ast
import json
import re
import unittest

import jobqueue
from tests.helpers.support import ROOT, need_part

STATIC = ROOT / "static"
LANGUAGES = sorted((STATIC / "languages").glob("??.json"))
OF_SERVER = sorted((STATIC / "languages").glob("*-server.json"))
LITERAL = r"""(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
# t('text'), t.n('form for one | form for more', ...), textWith('text', ...); long ones are joined by +
CALL = re.compile(r"\b(?:t|t\.n|textWith)\(\s*(%s(?:\s*\+\s*%s)*)" % (LITERAL, LITERAL))
OTHER_CALL = re.compile(r"\b(?:t|t\.n|textWith)\((?!\s*['\"])\s*([\w.]+)")
MARKED = re.compile(r'<\w+(?=[^>]* data-t)(?:[^>]*aria-label="([^"]+)")?[^>]*>([^<]*)')
PLACE = re.compile(r"{(\w+)}")
# What is put in, in templates of Python.
VALUE = re.compile(r"{\w+[^}]*}|%(?:\(\w+\))?[.0-9]*[a-z]")
# What the server puts together of several texts.
TOGETHER = re.compile(r"every .*|, which comes about .*|, and .*|The queue .* is (?:paused|served by).*|"
                      r"the data is .*|the clocks go .*|a worker could not .*|schedules and retries .*|"
                      r"cron came last at .*|It is not known yet how long .*|All workers are busy.|"
                      r"Waiting for cron; .*|.* failed|Next, .*")
# What looks like a sentence, but is read by programs.
SENTENCE = re.compile(r"'(?=[A-Z]?[a-z]+ [a-z])[^'\n]*'|'[A-Z][a-z]+'")
WORDS = ("Escape", "Enter", "Home", "End", "Hours", "Date", "Month", "Notification", "Authorization",
         "GET", "Probe 1", "import sys", "from jobqueue import command")
PROGRAM = re.compile(r"'(?:%s)'|(?:class|kind): '[^']*'|(?:find|closest|querySelector(?:All)?|table)\('[^']*'"
                     % "|".join(WORDS))


def setUpModule():
    need_part("source")


def scripts():
    """The modules that browsers load, without their comments: name -> text."""
    found = {}
    for path in sorted(STATIC.glob("*.js")):
        if path.name != "types.js":
            text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
            found[path.name] = re.sub(r"^ *//.*$|(?<=\s)// .*$", "", text, flags=re.MULTILINE)
    return found


def keys_in(text):
    """The English texts of a module."""
    for call in CALL.finditer(text):
        parts = re.findall(LITERAL, call[1])
        yield "".join(re.sub(r"\\(.)", r"\1", part[1:-1]) for part in parts)


def keys():
    """Each English text of the page."""
    found = {key for text in scripts().values() for key in keys_in(text)}
    index = (STATIC / "index.html").read_text("utf-8")
    return found | {label or text for label, text in MARKED.findall(index)}


class Texts(unittest.TestCase):
    """What is written in the modules."""

    def test_each_text_is_given_as_it_is(self):
        for name, text in scripts().items():
            if name not in ("language.js", "dom.js", "app.js", "said.js"):       # these hold the verbs
                self.assertEqual(OTHER_CALL.findall(text), [], name)

    def test_no_text_is_left_without_translation(self):
        for name, text in scripts().items():
            rest = PROGRAM.sub("", CALL.sub("", text))
            if name != "language.js":                                 # it names the languages
                self.assertEqual(SENTENCE.findall(rest), [], name)

    def test_no_text_has_lines_that_begin_with_spaces_for_browsers_do_not_get_those(self):
        for name, text in scripts().items():
            while re.search(r"{[^{}`]*}", text):                      # what is computed within
                text = re.sub(r"\$?{[^{}`]*}", "", text)
            for literal in re.findall(r"`[^`]*`", text):
                self.assertNotIn("\n ", literal, name)

    def test_the_texts_are_found(self):
        found = keys()
        self.assertGreater(len(found), 300)
        self.assertLessEqual({"Tasks", "Pages", "Skip to content", "yesterday {time}"}, found)

    def test_what_depends_on_a_count_has_two_forms(self):
        for name, text in scripts().items():
            for call in re.finditer(r"\bt(\.n)?\(\s*(%s(?:\s*\+\s*%s)*)" % (LITERAL, LITERAL), text):
                self.assertEqual(" | " in call[2], bool(call[1]), (name, call[2]))

    def test_the_handbook_tells_of_all_keys(self):
        text = scripts()["live.js"]
        keys_there = set(re.findall(r"^  \['(.+?)', t\(", text, re.MULTILINE))
        page = (STATIC / "docs" / "page.md").read_text("utf-8").partition("## Keys")[2]
        told = "".join(re.findall(r"^\|([^|]*`[^|]*)\|", page, re.MULTILINE))
        self.assertEqual(set(re.findall(r"`(.+?)`", told)), keys_there)
        self.assertGreater(len(keys_there), 8)


def told():
    """What is said by the server and shown: texts of its tables, and why a forecast is not known."""
    for one in jobqueue.SETTINGS.values():
        yield from (one.group, one.label, one.help, *(() if one.unit == "seconds" else (one.unit,)))
        yield from set(one.schema.get("enum", ())) & {"no", "yes", "always"}
    for one in jobqueue.ALERTS.values():
        yield from (one.title, one.sentence)
    for _, _, *texts in jobqueue.FINDINGS.values():
        yield from (text for text in texts[:2] if not VALUE.search(text))
        yield from texts[3:]
    yield from (*jobqueue.HOST_TOPICS, *jobqueue.TOPICS, *(door[0] for door in jobqueue.DOORS.values()))
    for path in (STATIC / "hosts").glob("[a-z]*"):
        yield re.search(jobqueue.WHAT_FOR, path.read_text("utf-8"))[1]
    for node in ast.walk(parsed()):
        if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant):
            yield node.value.value


def parsed():
    """The source of jobqueue.py."""
    return ast.parse((ROOT / "jobqueue.py").read_text("utf-8"))


class Server(unittest.TestCase):
    """static/languages/*-server.json: English text of jobqueue.py -> translation."""

    def test_each_language_has_them(self):
        self.assertEqual([path.name[:2] for path in OF_SERVER], [path.stem for path in LANGUAGES])

    def test_each_text_that_is_shown_is_translated(self):
        wanted = {text for text in told() if len(re.findall(r"\w+", VALUE.sub("", text))) > (
            1 if VALUE.search(text) else 0)}
        self.assertGreater(len(wanted), 150)
        self.assertLessEqual({"Keep finished tasks", "0: for ever.", "It waits for other tasks.", "days",
                              "For cron", "Nothing is running: {why}. Next try {next}."}, wanted)
        for path in OF_SERVER:
            texts = json.loads(path.read_text("utf-8"))
            self.assertEqual(sorted(wanted - texts.keys() - keys()), [], path.name)

    def test_all_have_the_same_and_no_others(self):
        known = {VALUE.sub("{}", node.value).rstrip(".") for node in ast.walk(parsed())
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)} | set(told())
        for path in OF_SERVER:
            texts = json.loads(path.read_text("utf-8"))
            self.assertEqual(list(texts), list(json.loads(OF_SERVER[0].read_text("utf-8"))), path.name)
            self.assertEqual(list(texts), sorted(texts), path.name)
            self.assertEqual([key for key in texts if not (
                key in known or VALUE.sub("{}", key).rstrip(".") in known or TOGETHER.fullmatch(key))], [])

    def test_values_keep_their_places(self):
        for path in OF_SERVER:
            for key, text in json.loads(path.read_text("utf-8")).items():
                with self.subTest(path.name, key=key):
                    self.assertTrue(text.strip())
                    self.assertEqual(sorted(PLACE.findall(text)), sorted(PLACE.findall(key)))


class Translations(unittest.TestCase):
    """static/languages/*.json: English text -> translation."""

    def test_the_page_offers_them(self):
        script = (STATIC / "language.js").read_text("utf-8")
        offered = re.search(r"LANGUAGES = {(.*?)}", script, re.DOTALL)[1]
        self.assertEqual(sorted(re.findall(r"\b(\w\w): '", offered)),
                         sorted(["en", *(path.stem for path in LANGUAGES)]))

    def test_each_text_is_translated_and_nothing_else(self):
        for path in LANGUAGES:
            with self.subTest(language=path.stem):
                texts = json.loads(path.read_text("utf-8"))
                self.assertEqual(sorted(keys() - texts.keys()), [], "not translated")
                self.assertEqual(sorted(texts.keys() - keys()), [], "not used")
                self.assertEqual([key for key, text in texts.items() if not text.strip()], [])

    def test_values_keep_their_places(self):
        for path in LANGUAGES:
            for key, text in json.loads(path.read_text("utf-8")).items():
                with self.subTest(language=path.stem, key=key):
                    self.assertEqual(set(PLACE.findall(text)), set(PLACE.findall(key)))
                    self.assertIn(text.count(" | "), {0, key.count(" | ")})

    def test_texts_stand_in_the_order_of_the_alphabet(self):
        for path in LANGUAGES:
            texts = list(json.loads(path.read_text("utf-8")))
            self.assertEqual(texts, sorted(texts), path.name)
