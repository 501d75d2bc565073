"""Counts shapes of sentences and names in src/ that are hard to read.

It is a list of shapes, not a judge of taste. test_words.py holds the numbers, which only go down.
    python3 -m tests.helpers.words [SHAPE]    print each place of a shape, or the counts by room
"""
import ast
import collections
import io
import re
import sys
import tokenize

from tests.helpers.support import ROOT

FIRST_WORDS = "What Who Of By From With".split()
EMPTY_NAMES = frozenset("one found known told said given left wanted some others other asked seen kept "
                        "made what".split())
LONGEST_WORDS = 25
# A pronoun without a noun near it. "who" is a pronoun of the noun before it, as in "an admin who".
NO_NOUN = "^|[,;:(.]|\\b(?:of|for|from|by|to|and|or|that|with|is|as|than|but|if|about|says?|see|knows?)"
SHAPES = {
    "what": re.compile(r"\bwhat(?:ever)?\b", re.IGNORECASE),
    "who": re.compile(r"(?:%s)\s*\bwho\b|\bwhoever\b" % NO_NOUN, re.IGNORECASE),
    "nobody": re.compile(r"\b(?:nobody|somebody|anybody|everybody|others)\b|\bof those\b", re.IGNORECASE)}


def rooms():
    """Return the paths of all rooms."""
    return sorted((ROOT / "src").glob("*/[a-z]*.py"))


def texts(path):
    """Yield (line, kind, text) of each docstring and comment of a file; comments in a row are one."""
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), "docstring", text
    last, lines = (0, 0), []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#!|# (?:mypy|type|noqa)", token.string):
            is_alone = not token.line[:token.start[1]].strip()
            if lines and not (is_alone and token.start == (last[0] + 1, last[1])):
                yield last[0], "comment", " ".join(lines)
                lines = []
            lines.append(token.string.lstrip("# "))
            last = token.start
    if lines:
        yield last[0], "comment", " ".join(lines)


def sentences(text):
    """Yield the sentences of a text; an item of a list is one, and a paragraph ends one."""
    for part in re.split(r"\n\s*\n|\n\s*(?:\d+\.|[-*]) |\n(?=    \w)", text):
        for sentence in re.split(r"(?<=[.!?;])\s+", " ".join(part.split())):
            if sentence:
                yield sentence


def first_words(path):
    """Yield the docstrings that begin with one of FIRST_WORDS."""
    for line, kind, text in texts(path):
        if kind == "docstring" and re.match(r"(?:%s)\b" % "|".join(FIRST_WORDS), text):
            yield line, text.splitlines()[0]


def pronouns(path, shape):
    """Yield the sentences in which a pronoun of SHAPES stands for a thing."""
    for line, _, text in texts(path):
        for sentence in sentences(text):
            for _ in SHAPES[shape].findall(sentence):
                yield line, sentence


def long_sentences(path):
    """Yield the sentences with more words than LONGEST_WORDS."""
    for line, _, text in texts(path):
        for sentence in sentences(text):
            if len(re.findall(r"[\w'.()/<>=-]+", sentence)) > LONGEST_WORDS:
                yield line, sentence


def empty_names(path):
    """Yield the parameters and local variables with an empty name; each function counts one once."""
    tree = ast.parse(path.read_text("utf-8"))
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
            continue
        names = {}
        inner = {id(node) for child in ast.walk(function) if child is not function
                 and isinstance(child, (ast.FunctionDef, ast.Lambda)) for node in ast.walk(child)}
        for node in ast.walk(function):
            name = (node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name)
                    and isinstance(node.ctx, ast.Store) else None)
            if name in EMPTY_NAMES and id(node) not in inner:
                names.setdefault(name, node.lineno)
        for name, line in names.items():
            yield line, name


COUNTERS = {"first words": first_words, "long": long_sentences, "names": empty_names,
            **{shape: lambda path, shape=shape: pronouns(path, shape) for shape in SHAPES}}


def count(shape):
    """Return how often a shape is in all rooms."""
    return sum(len(list(COUNTERS[shape](path))) for path in rooms())


def count_sentences():
    """Return the number of sentences in all rooms."""
    return sum(1 for path in rooms() for _, _, text in texts(path) for _ in sentences(text))


def print_places(shapes):
    """Print each place of these shapes, or how many each room has."""
    sums = collections.Counter()
    for path in rooms():
        for shape in shapes or COUNTERS:
            for line, text in COUNTERS[shape](path):
                sums[shape] += 1
                sums[str(path.relative_to(ROOT))] += 1
                if shapes:
                    print("%s:%d: %s" % (path.relative_to(ROOT), line, text))
    for name, number in sorted(sums.items(), key=lambda item: item[1]):
        print("%5d %s" % (number, name))
    print("%5d sentences" % count_sentences())


if __name__ == "__main__":
    print_places(sys.argv[1:])
