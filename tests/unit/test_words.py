"""Sentences and names in src/ that are hard to read: their number only goes down."""
import unittest

from tests.helpers import words

# What is left. Lower a number when you mend something; raise none.
LEFT = {"first words": 0, "what": 3, "who": 0, "nobody": 3, "long": 2, "names": 4}
MUST = {
    "what": ("Return what was typed.", "Do whatever is due.", "The thread does what follows a commit."),
    "who": ("Who ticks next sees it.", "Return the Response for who asks.", "Whoever comes first makes it.",
            "The time of who came first."),
    "nobody": ("Nobody waits for it.", "It lets others write.", "Somebody else was quicker.")}
MUST_NOT = {
    "what": ("Return the typed text.", "somewhat later"),
    "who": ("An admin who has a password.", "A user, such as an admin who left.", "the whole file"),
    "nobody": ("The other workers wait.", "Those rows are removed.", "another process")}


class Words(unittest.TestCase):

    def test_each_shape_catches_what_it_must_and_nothing_else(self):
        for shape, texts in MUST.items():
            for text in texts:
                self.assertTrue(words.SHAPES[shape].search(text), (shape, text))
        for shape, texts in MUST_NOT.items():
            for text in texts:
                self.assertFalse(words.SHAPES[shape].search(text), (shape, text))

    def test_there_are_no_more_of_them_than_before(self):
        for shape, most in LEFT.items():
            found = words.count(shape)
            self.assertLessEqual(found, most, "see python3 -m tests.helpers.words %r" % shape)
            self.assertEqual(found, most, "there are fewer %r: lower the number in LEFT" % shape)

    def test_few_sentences_are_long(self):
        self.assertLess(words.count("long") / words.count_sentences(), 0.02)

    def test_a_room_is_read_whole(self):
        texts = [text for path in words.rooms() for _, _, text in words.texts(path)]
        self.assertGreater(len(texts), 2000)
        self.assertGreater(sum(text.startswith("Return ") for text in texts), 400)


if __name__ == "__main__":
    unittest.main()
