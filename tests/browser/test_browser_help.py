"""Finding help and functions: the handbook inside the page, and the search of functions."""
import unittest

from tests.helpers.browser import BrowserTestCase
from tests.helpers.support import ROOT

DOCS = sorted(path.stem for path in (ROOT / "static" / "docs").glob("*.md"))
# What is left of Markdown on the page, and links to sections that are not there.
LEFT_OVER = """
const article = document.querySelector('.handbook article');
const words = [...article.querySelectorAll(':not(pre):not(code)')].flatMap(({ childNodes }) =>
  [...childNodes]).filter(({ nodeType }) => nodeType === 3).map(({ data }) => data).join(' ');
return words.match(/\\*\\w|\\*\\*|`|\\]\\(|^#|\\|/g) || [];"""
LINKS = """
return [...document.querySelectorAll('.handbook article a, .contents a')]
  .map((a) => a.getAttribute('href'))"""
SECTIONS = "return [...document.querySelectorAll('.handbook article [id]')].map(({ id }) => id)"


class Help(BrowserTestCase):

    def test_each_page_is_shown_without_marks_and_its_links_lead_to_sections(self):
        browser = self.open("ana")
        links, sections = set(), {}
        for name in DOCS:
            browser.go("#/help/" + name)
            title = (ROOT / "static" / "docs" / (name + ".md")).read_text("utf-8").partition("\n")[0][2:]
            browser.find(".handbook h1", title)
            self.assertEqual(browser.run(LEFT_OVER), [], name)
            self.assertEqual(self.serious(browser), [], name)
            links.update(browser.run(LINKS))
            sections[name] = browser.run(SECTIONS)
        self.assertGreater(len(links), 60)
        for link in sorted(links):
            name, _, section = link.removeprefix("#/help/").partition("?section=")
            self.assertIn(name, DOCS, link)
            if section:
                self.assertIn(section, sections[name], link)

    def test_help_is_about_the_page_where_one_is(self):
        browser = self.open("ana")
        for address, title in (("#/schedules", "Schedules"), ("#/workers", "Several machines"),
                               ("#/new", "Functions"), ("#/tasks", "Tasks"), ("#/alerts", "Alerts")):
            browser.go(address)
            browser.find("main h1")
            browser.click("#help")
            browser.find(".handbook h1", title)

    def test_the_search_finds_sections_of_all_pages(self):
        browser = self.open("bob")
        browser.go("#/help")
        browser.find(".handbook h1", "Handbook")
        browser.type(".seek input", "prometheus scrape")
        browser.click(".hits a", "Metrics: Prometheus")
        browser.find(".handbook h1", "Metrics")
        browser.type(".seek input", "qwertyuiop")
        browser.see("Nothing found.", ".hits")

    def test_a_page_that_is_not_there_says_so(self):
        browser = self.open("bob")
        browser.go("#/help/nothing")
        browser.see("There is nothing here", "main")


class ManyFunctions(BrowserTestCase):
    TASKS = "from jobqueue import task\n" + "".join(
        "@task\ndef job_%02d(x: int = 1):\n    return x\n" % number for number in range(30))

    def test_enter_opens_the_only_function_that_matches(self):
        browser = self.open("bob")
        browser.go("#/new")
        browser.find(".choices a", "job_07")
        browser.type(".seek", "job_0")
        browser.press("Enter")
        browser.type(".seek", "job_07")
        browser.press("Enter")
        browser.find("main h1", "job_07")


if __name__ == "__main__":
    unittest.main()
