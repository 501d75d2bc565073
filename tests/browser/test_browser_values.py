"""Values in the forms and results of a real Chromium: types, emptied fields, digits, odd names."""
import json

from tests.helpers.browser import ELEMENT, BrowserTestCase
from tests.helpers.values import CASES, TASKS

MORE = '''
@task
def emptied(
        limit: Optional[int] = 100, note: Optional[str] = "hello", tags: List[str] = ["a"],
        kind: Optional[Literal["x", "y"]] = "x", flag: Optional[bool] = True, word: str = "w", n: int = 5):
    return [limit, note, tags, kind, flag, word, n]

@task
def proto(constructor: str = "c", toString: int = 3, hasOwnProperty: str = "h"):
    return [{"constructor": constructor, "n": toString}, {"n": 2}]

@task
def large(id: int = 5):
    return {"id": 823475887319941131, "far": 10**40, "list": [9007199254740993],
            "text": "[12345678901234567890]"}

@task
def single():
    return -823475887319941131
'''
# Of fields that a text cannot simply be put into.
IN_FORM = {"datetime": "2026-01-31T12:00", "date": "2026-01-31", "time": "14:30"}


class Values(BrowserTestCase):

    TASKS = TASKS + MORE

    def result(self, number):
        self.site.wait_for_all([number])
        row = self.site.rows("SELECT result, error_message FROM task WHERE id=?", (number,))[0]
        return row["error_message"] or json.loads(row["result"])

    def added(self, browser):
        """The id of the task that the form adds now."""
        browser.click("button", "Add task")
        browser.see("#", ".facts")
        return int(browser.run("return location.hash").rsplit("/", 1)[1])

    def fill(self, browser, case):
        """Put a value into the field x, whatever control that is."""
        script = """const field = document.querySelector('[name="arguments.x"]');
            if (field.type === 'checkbox') field.checked = true;
            else if (field.tagName === 'SELECT') field.value = [...field.options].find(
              (one) => one.text.toLowerCase() === arguments[0]).value;
            else field.value = arguments[0];
            field.dispatchEvent(new Event('input', { bubbles: true }));"""
        browser.run(script, case)

    def test_each_type_arrives_by_its_control(self):
        ana = self.open("ana", "#/new")
        for name, case in CASES.items():
            with self.subTest(name):
                ana.go("#/new/t_" + name)
                ana.find("h1", "t_" + name)
                lines = ana.count("textarea:not(.mono)[name='arguments.x']")
                text = IN_FORM.get(name, case.text.replace(",", "\n") if lines else case.text)
                if name == "bytes":
                    (self.site.home / "bytes").write_bytes(b"hi")
                    place = ana.find("[type=file][name='arguments.x']")
                    ana.ask("POST", "/element/%s/value" % place[ELEMENT],
                            {"text": str(self.site.home / "bytes")})
                    ana.see("stored")
                else:
                    self.fill(ana, text)
                result = self.result(self.added(ana))
                self.assertEqual(result[:17] if name == "datetime" else result,
                                 case.repr[:17] if name == "datetime" else case.repr)

    def test_an_emptied_field_says_nothing_and_not_the_default(self):
        ana = self.open("ana", "#/new/emptied")
        ana.find("h1", "emptied")
        number = self.added(ana)
        self.assertEqual(self.result(number), [100, "hello", ["a"], "x", True, "w", 5])
        ana.go("#/new/emptied")
        ana.find("h1", "emptied")
        ana.run("for (const one of document.querySelectorAll('[name^=\"arguments.\"]')) one.value = '';")
        self.assertEqual(self.result(self.added(ana)), [None, None, [], None, None, "", 5])
        ana.go("#/new/emptied?task=%d" % number)
        ana.find("h1", "emptied")
        ana.run("document.querySelector('[name=\"arguments.limit\"]').value = ''")
        self.assertEqual(self.result(self.added(ana)), [None, "hello", ["a"], "x", True, "w", 5])

    def test_names_that_every_object_has_are_names_as_any(self):
        ana = self.open("ana", "#/new/proto")
        ana.find("h1", "proto")
        self.assertEqual(ana.run("return document.forms[0].elements['arguments.constructor'].value"), "c")
        self.assertEqual(self.result(self.added(ana)), [{"constructor": "c", "n": 3}, {"n": 2}])
        ana.see("2", "main table")
        self.assertNotIn("native code", ana.text("main"))

    def test_whole_numbers_keep_their_digits(self):
        ana = self.open("ana", "#/tasks/%d" % self.done("large"))
        for text in ("823475887319941131", "1" + "0" * 40, "[9007199254740993]", "[12345678901234567890]"):
            ana.see(text, "main")
        ana.go("#/tasks/%d" % self.done("single"))
        ana.see("-823475887319941131", ".scalar")
