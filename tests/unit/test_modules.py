"""The page's modules: no circle of imports, no import of a name that is not there, no file that nobody loads.

Read by regular expressions: neither Node nor a browser is needed.
"""
import re
import unittest

from tests.helpers.support import ROOT, need_part

STATIC = ROOT / "static"
TYPES = "types.js"              # only comments import it, for the type checker; no browser loads it
COMMENT = re.compile(r"/\*.*?\*/|^ *//[^\n]*|(?<=\s)//\s[^\n]*", re.DOTALL | re.MULTILINE)
# import { a, b as c } from './x.js'; import * as x from './x.js'; import './x.js'; export { a } from './x.js'
WHOLE = re.compile(r"^(?:import|export)\b(?:([^'\";]*?)\bfrom\b)?\s*['\"]\./([\w.-]+)['\"]", re.MULTILINE)
# import('./x.js'), wherever it stands
LATER = re.compile(r"\bimport\(\s*['\"]\./([\w.-]+)['\"]\s*\)")
# What is taken of it at once: { a } = await import(...), import(...).then(({ a }) =>, (await import(...)).a
TAKEN = re.compile(r"(?:\{([^{}]*)\} = await )?" + LATER.pattern + r"(?:\.then\(\(\{([^{}]*)\}\)|\)\.(\w+))?")
EXPORT = re.compile(
    r"^export (?:(?:async )?(?:function\*?|class|const|let|var) (\w+)|(?:\{([^}]*)\}(?: from '[^']*')?);)",
    re.MULTILINE)
SCRIPT = re.compile(r'<script\b[^>]*\bsrc="static/([\w.-]+)"')


def setUpModule():
    need_part("source")


def modules():
    """name -> text without comments"""
    return {path.name: COMMENT.sub("", path.read_text("utf-8")) for path in sorted(STATIC.glob("*.js"))}


def imports(texts):
    """{name: names of the modules that it imports, at once or later}"""
    return {name: {found for _, found in WHOLE.findall(text)} | set(LATER.findall(text))
            for name, text in texts.items()}


def circles(graph):
    """Modules of which each reaches all others, and itself."""
    def reached(name):
        found, left = set(), {name}
        while left:
            left = {other for one in left for other in graph.get(one, ())} - found
            found |= left
        return found

    reach = {name: reached(name) for name in graph}
    return sorted({tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
                   for name in graph if name in reach[name]})


def names_in(braces, side):
    """Of "{ a, b as c }": with the side 0 what it is called inside of the module, with -1 outside."""
    parts = re.findall(r"\w+(?:\s*(?:\bas\b|:)\s*\w+)?", braces or "")
    return {re.split(r"\s*\bas\b\s*|\s*:\s*", part)[side] for part in parts}


def exports(text):
    """The names that a module gives."""
    found = set()
    for name, braces in EXPORT.findall(text):
        found |= {name} if name else names_in(braces, -1)
    return found


def missing(texts):
    """(module, name, module that should export it) for every imported name that is not there."""
    wanted = set()
    for name, text in texts.items():
        for braces, other in WHOLE.findall(text):
            wanted |= {(name, one, other) for one in names_in("".join(re.findall(r"{[^}]*}", braces)), 0)}
        for before, other, then, after in TAKEN.findall(text):
            wanted |= {(name, one, other) for one in names_in(before, 0) | names_in(then, 0) | {after} - {""}}
    known = {name: exports(text) for name, text in texts.items()}
    return sorted(one for one in wanted if one[1] not in known.get(one[2], ()))


def unused(texts, index):
    """Modules that neither another one imports nor index.html begins with."""
    used = {other for name, others in imports(texts).items() for other in others if other != name}
    return sorted(texts.keys() - used - set(SCRIPT.findall(index)))


class Modules(unittest.TestCase):
    """static/*.js as they are."""

    def setUp(self):
        self.texts = modules()
        self.index = (STATIC / "index.html").read_text("utf-8")

    def test_there_is_no_circle_of_imports(self):
        self.assertEqual(circles(imports(self.texts)), [])

    def test_each_imported_name_is_exported(self):
        self.assertEqual(missing(self.texts), [])

    def test_each_view_has_what_shows_it(self):
        pages = re.search(r"^const PAGES = {(.*?)^};", self.texts["app.js"], re.MULTILINE | re.DOTALL)[1]
        views = set(LATER.findall(pages))
        self.assertLessEqual({"overview.js", "task.js", "pages.js"}, views)
        for name in views | {"tasks.js"}:
            self.assertIn("show", exports(self.texts[name]), name)

    def test_each_file_is_loaded_by_somebody(self):
        self.assertEqual(unused(self.texts, self.index), [TYPES])
        words = [path.read_text("utf-8") for path in STATIC.glob("*.js")]
        self.assertGreater(len([text for text in words if "} from './%s' */" % TYPES in text]), 9)

    def test_no_file_says_what_is_not_understood_here(self):
        for name, text in self.texts.items():
            with self.subTest(name):
                self.assertEqual(len(re.findall(r"^import\b", text, re.M)), len(
                    re.findall(r"^import\b", "\n".join(one[0] for one in WHOLE.finditer(text)), re.M)))
                self.assertEqual(len(re.findall(r"\bimport\(", text)), len(LATER.findall(text)))
                self.assertEqual(len(re.findall(r"^export\b", text, re.M)), len(EXPORT.findall(text)))


class Checks(unittest.TestCase):
    """What is planted is found."""

    def setUp(self):
        self.texts = modules()

    def plant(self, name, line):
        return {**self.texts, name: self.texts[name] + "\n" + line + "\n"}

    def test_the_imports_are_read(self):
        graph = imports(self.texts)
        self.assertEqual(graph["api.js"], {  # three of them later
            "clock.js", "digits.js", "language.js", "narrow.js", "said.js"})
        self.assertLessEqual({"tasks.js", "overview.js", "forms.js", "alerts.js"}, graph["app.js"])
        self.assertEqual(graph[TYPES], set())                                           # it has only comments
        self.assertGreater(len(graph), 25)

    def test_a_circle_of_whole_imports_is_seen(self):
        for line in ("import { said } from './said.js';", "import {\n  said,\n} from './said.js';",
                     "import * as all from './said.js';", "import './said.js';",
                     "export { said } from './said.js';"):
            with self.subTest(line):
                self.assertEqual(circles(imports(self.plant("format.js", line))), [("format.js", "said.js")])

    def test_a_circle_over_a_later_import_is_seen(self):
        for line in ("const later = () => import('./api.js');", "  await import('./api.js').then(show);",
                     "const { get } = await import(\n  './api.js');"):
            with self.subTest(line):
                self.assertEqual(circles(imports(self.plant("said.js", line))), [("api.js", "said.js")])

    def test_a_circle_of_several_and_one_of_one_are_seen(self):
        texts = self.plant("dom.js", "import { errorLine } from './said.js';")
        texts["log.js"] += "\nimport { LogView } from './log.js';\n"
        self.assertEqual(circles(imports(texts)), [("dom.js", "format.js", "said.js"), ("log.js",)])

    def test_what_comments_import_is_no_circle(self):
        line = ("/** @import {Row} from './said.js' */\n// import './said.js';\n"
                "/**\n * @type {typeof import('./said.js').said}\n */\nlet one;   // import('./said.js')\n")
        self.assertEqual(COMMENT.sub("", line).split(), ["let", "one;"])

    def test_a_name_that_is_not_exported_is_seen(self):
        for line in ("import { h, hh } from './dom.js';", "import { hh as h } from './dom.js';",
                     "const { hh } = await import('./dom.js');", "(await import('./dom.js')).hh();",
                     "import('./dom.js').then(({ h, hh: two }) => two(h));"):
            with self.subTest(line):
                self.assertEqual(missing(self.plant("clock.js", line)), [("clock.js", "hh", "dom.js")])

    def test_a_module_that_is_not_there_is_seen(self):
        self.assertEqual(missing(self.plant("clock.js", "import { h } from './doom.js';")),
                         [("clock.js", "h", "doom.js")])

    def test_a_file_that_nobody_loads_is_seen(self):
        index = '<link rel="modulepreload" href="static/lost.js">\n<script src="static/theme.js"></script>'
        self.texts["lost.js"] = "import { h } from './dom.js';\nconst again = () => import('./lost.js');\n"
        self.assertEqual(unused(self.texts, index), ["app.js", "lost.js", TYPES])
