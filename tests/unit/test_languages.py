"""The texts of the page and of the server: each is translated into every language that the page offers."""
import ast
import functools
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
VALUE = re.compile(r"{\w*[^}]*}|%(?:\(\w+\))?[.0-9]*[a-z]")
# What the server puts together of parts of which none looks like it.
TOGETHER = re.compile("|".join((
    ", and .*", "(?:every|the Python found here) .*", "(?:WAL|TRUNCATE) on .*",
    "{count} tasks(?: of {filter})?",
    "(?:idle|limit|refused) after .*", "{name}: (?:else|every)where", "must be at (?:least|most) .*",
    ".*, and is not followed", "is not understood: .*",
    "(?:intact, )?{size} MB, schema .*", "{function} failed", "{program} (?:ended with|was ended by) .*")))
# Rooms of which the page shows nothing: they are for programs, the command line, the host's owner.
NOT_THE_PAGE = """
base/options store/schema store/state store/sqlite_connection store/write_lock store/sqlite store/postgres_sql
store/postgres_connection store/postgres store/data_folder access/remote_workers access/python_task
access/python_interface access/django_project access/django_backend access/import_checks access/backup
web/routes web/openapi web/application
web/connections web/servers
web/printing web/serve web/clients web/command_rows web/commands_tasks web/commands_site web/command_line
worker/child worker/remote_site worker/remote worker/entry""".split()
# Whose texts are for those, too: what names errors, writes a log, reads a text.
NOT_SHOWN = (
    "_kind", "complain", "print_errors", "print", "_say", "_does", "Malformed", "UnsupportedType",
    "SetupError", "RuntimeError", "namedtuple", "split", "search", "compile", "fullmatch", "sub")
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef
SOME_WORDS = re.compile(r"[a-z]{2}[,:;]? [a-z%({]")
NO_WORDS = re.compile(r"\b(?:SELECT|UPDATE|INSERT|DELETE|CREATE|WHERE|FROM|ALTER|ORDER BY|INDEXED|JOIN)\b|\\|"
                      r"coalesce\(|"
                      "charset=|filename=|cpu_seconds|no-cache|mod_wsgi (?:daemon|embedded)")
ELSEWHERE = re.compile("|".join((
    # mails
    "It began at %s", "%d of your tasks ended",
    "Resolved: .*", "The last lines of task %d:",
    "A worker lived for %d s", "This is a test of .*", r"Task %d \(%s\) .*",
    "%s: and others",
    # help of /metrics
    "(?:Running|Waiting) time of .*", "Ended tasks by outcome.*", "Tasks that may start now",
    "Worker processes",
    # rules in English, of which the page has its own words
    "and every", "that is a", "last working day", "%s %s of %s", "every %d %ss", 'as "every 5m".*',
    r"weekly \(.*",
    # requests that the page never sends so, and how JSON is read
    "must be (?:sent alone|the same for all|the value of the answer before).*", "or ids must be given.*",
    "Another worker has this task, or it has ended", "Its outcome cannot be kept",
    r"is not JSON that can be kept \(%s\)", "A body of the type multipart.*",
    "was used for another request", "a value of the type .*", "%s is not a JSON number", "an object names .*",
    "a text holds NUL .*", "not a time with .*", "must be a time with .*",
    # what functions and logs say
    "%d to go", "Traceback .*", "a message of .*", r"\[... %d bytes .*", "Not kept .*",
    "It is no plain file", ' *File "%s", line .*', "(?:%s: )?its message could not be shown",
    r"%s… \(%d more characters\)",
    "The file has become shorter", ", left behind.*", "values that cannot be inspected.*", "blocked signals",
    "signal handlers", "an open file", "another priority", "other (?:functions|settings) of Python",
    "text streams", "hooks of Python", "another locale or zone", "a start method",
    # what stops the program, and names alone
    "jobqueue.*", "%s is not complete.*", "The database %.* cannot be used.*", "as it is",
    "%s %s, SQLite %s", "%s: %s%.1f MB.*")))
# What looks like a sentence, but is read by programs.
SENTENCE = re.compile(r"'(?=[A-Z]?[a-z]+ [a-z])[^'\n]*'|'[A-Z][a-z]+'")
WORDS = ("Escape", "Enter", "Home", "End", "Hours", "Date", "Month", "Notification",
         "GET", "from jobqueue import task", r"def hello\(name: str\):")
PROGRAM = re.compile(r"'(?:%s)'|(?:class|kind|rel): '[^']*'|"
                     r"(?:find|closest|querySelector(?:All)?|table|said)\('[^']*'"
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
                self.assertNotRegex(literal, r"\n\s|; +// ", name)

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
    """What is said by the server in its tables, where a single word is one, too."""
    for one in jobqueue.SETTINGS.values():
        yield from (one.group, one.label, one.help, *(() if one.unit == "seconds" else (one.unit,)))
        yield from set(one.schema.get("enum", ())) & {"no", "yes", "always"}
    for one in jobqueue.FINDINGS.values():
        yield from filter(None, [one.alert])
    yield from (*jobqueue.HOST_TOPICS, *jobqueue.VISIT_TOPICS, *jobqueue.TOPICS)
    yield from jobqueue.DOORS.values()
    for path in (STATIC / "hosts").glob("[a-z]*"):
        yield re.search(jobqueue.WHAT_FOR, path.read_text("utf-8"))[1]
    yield from (field.name for field in jobqueue.CRON_FIELDS)


def shape(text):
    """What is made of a text of the source looks so: anything may stand for its values, and more beside it
    where it begins or ends with a space."""
    before, after = (".*" if text[place].isspace() else "" for place in (0, -1))
    parts = map(re.escape, VALUE.split(text.strip().rstrip(".")))
    return re.compile(before + ".*".join(parts) + after + "[.]?", re.DOTALL)


def plain(text):
    """A text without its values, and without the marks at its ends."""
    return " ".join(VALUE.sub("{}", text).split()).strip(" .:,;")


def parsed(name):
    """The source of that name."""
    return ast.parse((ROOT / name).read_text("utf-8"))


@functools.lru_cache(maxsize=None)
def words_of(name):
    """Each text of a source that people may read on the page: (room, text). Whatever looks like words is
    one, unless it stands where only programs, the command line or the host's owner read it."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    rooms = [line.startswith("# ") and line.endswith("----") and line[2:].partition(".py ")[0]
             for line in lines]

    def walk(node, room):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:]
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in NOT_SHOWN:
                return
            if name == "about":                 # a field's schema, and what --help says of it
                node = node.args[0]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield room, node.value
        annotations = getattr(node, "annotation", None), getattr(node, "returns", None)
        for child in ast.iter_child_nodes(node):
            if child not in annotations:
                yield from walk(child, room)

    found, room = [], ""
    for node in parsed(name).body[1:]:
        room = next(filter(None, reversed(rooms[:node.lineno])), room)
        found += walk(node, room)
    return found


def sentences():
    """What people may read: see words_of()."""
    for name in "jobqueue.py", "worker.py":
        for room, text in words_of(name):
            if room not in NOT_THE_PAGE and SOME_WORDS.search(text) and not (
                    NO_WORDS.search(text) or ELSEWHERE.fullmatch(text.strip(" .\n"))):
                yield text


class Server(unittest.TestCase):
    """static/languages/*-server.json: English text of jobqueue.py -> translation."""

    def test_each_language_has_them(self):
        self.assertEqual([path.name[:2] for path in OF_SERVER], [path.stem for path in LANGUAGES])

    def test_each_text_that_is_shown_is_translated(self):
        wanted = {text for text in told() if len(re.findall(r"\w+", VALUE.sub("", text))) > (
            1 if VALUE.search(text) else 0)}
        self.assertGreater(len(wanted), 120)
        self.assertLessEqual({"Keep finished tasks", "0: keep them for ever.", "days", "For cron"}, wanted)
        for path in OF_SERVER:
            texts = json.loads(path.read_text("utf-8"))
            self.assertEqual(sorted(wanted - texts.keys() - keys()), [], path.name)

    def test_each_sentence_of_the_sources_is_translated(self):
        wanted = set(sentences())
        self.assertGreater(len(wanted), 350)
        for text in ("is still in use", "{name} is damaged: {why}", "too many workers", "has been used",
                     "ran longer than %g s", "No task starts: {why}. Next try {next}."):
            self.assertIn(text, wanted)
        texts = [*json.loads(OF_SERVER[0].read_text("utf-8")), *keys()]
        known = "\n".join(map(plain, texts))
        self.assertEqual(sorted(text for text in wanted if plain(text) not in known
                                and not any(map(shape(text).fullmatch, texts))), [],
                         "Translate them in each XX-server.json, or say above why the page never shows them.")

    def test_all_have_the_same_and_no_others(self):
        known = {plain(node.value) for name in ("jobqueue.py", "worker.py") for node in ast.walk(parsed(name))
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        known |= set(map(plain, told()))
        shapes = [shape(text) for text in set(sentences()) if len(VALUE.sub("", text)) > 7]
        texts = list(json.loads(OF_SERVER[0].read_text("utf-8")))
        self.assertEqual(texts, sorted(texts))
        for path in OF_SERVER[1:]:
            self.assertEqual(list(json.loads(path.read_text("utf-8"))), texts, path.name)
        self.assertEqual([key for key in texts if not (
            plain(key) in known or TOGETHER.fullmatch(key) or any(one.fullmatch(key) for one in shapes))], [])

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
