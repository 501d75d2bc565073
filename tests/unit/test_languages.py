"""The texts of the page: each is marked, and translated into every language that it offers."""
import json
import re
import unittest

from tests.helpers.support import ROOT

STATIC = ROOT / "static"
LANGUAGES = sorted((STATIC / "languages").glob("*.json"))
LITERAL = r"""(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
# t('text'), t.n('form for one | form for more', ...), textWith('text', ...); long ones are joined by +
CALL = re.compile(r"\b(?:t|t\.n|textWith)\(\s*(%s(?:\s*\+\s*%s)*)" % (LITERAL, LITERAL))
OTHER_CALL = re.compile(r"\b(?:t|t\.n|textWith)\((?!\s*['\"])\s*([\w.]+)")
MARKED = re.compile(r'<\w+(?=[^>]* data-t)(?:[^>]*aria-label="([^"]+)")?[^>]*>([^<]*)')
PLACE = re.compile(r"{(\w+)}")
# What looks like a sentence, but is read by programs.
SENTENCE = re.compile(r"'(?=[A-Z]?[a-z]+ [a-z])[^'\n]*'|'[A-Z][a-z]+'")
WORDS = ("Escape", "Enter", "Home", "End", "Hours", "Date", "Month", "Notification", "Authorization",
         "GET", "Probe 1", "import sys", "from jobqueue import command")
PROGRAM = re.compile(r"'(?:%s)'|(?:class|kind): '[^']*'|(?:find|closest|querySelector(?:All)?|table)\('[^']*'"
                     % "|".join(WORDS))


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
            if name not in ("language.js", "dom.js", "app.js"):       # these hold the verbs
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
