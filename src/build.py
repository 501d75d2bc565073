#!/usr/bin/env python3
"""Build jobqueue.py and worker.py from the rooms in this folder.

    python3 src/build.py                             write both files
    python3 src/build.py --check                     exit 1 if a file differs from its rooms
    python3 src/build.py --where jobqueue.py:5299    print the room and line behind a line
    python3 src/build.py --where < traceback.txt     the same for each line of a traceback

A room is a module of Python: a docstring, imports, code. ROOMS has the rooms of each file in
their order. A built file is made in these steps:

1. Each room is parsed: its docstring, its imports, the names that it defines and uses.
2. What does not fit is refused with the room and line (check_room). A room may import names from
   earlier rooms only, so the rooms form layers.
3. The code of the rooms is joined. Imports between rooms are dropped, all others are gathered at
   the top. A docstring becomes a comment under a banner with the room's path. Types are left out,
   but for those of TYPED rooms. There annotations become texts: so Python 3.6, which many hosts
   call python3, reads the file as far as its refusal. The lines of before_imports.py go first.
4. The rooms are imported as modules, in a process of their own, beside the built files.
5. The built files replace the old ones.
"""
from __future__ import annotations

import argparse
import ast
import builtins
import collections
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent
ROOT = SOURCE.parent
ROOMS = {
    "jobqueue.py": """
        base/head base/types base/limits base/errors base/time_and_text base/plain_values base/schedule_rules
        base/values base/options
        store/connection store/schema store/database store/sqlite_connection store/write_lock store/sqlite
        store/postgres_sql store/postgres_connection store/postgres store/data_folder store/log_and_activity
        store/state store/settings
        tasks/queues tasks/followers tasks/files tasks/adding tasks/task_list tasks/actions tasks/leases
        tasks/claims
        upkeep/tick_history upkeep/schedule_rows upkeep/schedules upkeep/worker_modes upkeep/workers
        upkeep/reaper upkeep/starter upkeep/catalogue upkeep/rollup upkeep/metrics upkeep/retention
        upkeep/finding_table upkeep/conditions upkeep/alerts upkeep/summary upkeep/notifications
        upkeep/plan upkeep/forecast upkeep/tick
        access/people access/accounts access/saved access/requests access/remote_workers access/python_task
        access/python_interface access/django_project access/django_backend access/host access/findings
        access/import_checks access/backup
        web/http_answer web/http_request web/handlers_tasks web/handlers_site web/routes web/openapi
        web/application web/connections web/servers web/printing web/serve web/clients web/command_rows
        web/commands_tasks web/commands_site web/command_line
        """.split(),
    "worker.py": """
        worker/head worker/python_types worker/signatures worker/commands worker/requests
        worker/task_files worker/outcomes worker/leftovers worker/django_tasks worker/runner worker/log
        worker/samples worker/child worker/attempt worker/place worker/runners worker/recorder worker/worker
        worker/remote_site worker/remote worker/entry
        """.split(),
}
# Rooms that keep their types in the built file: people's own code uses them beside an editor or a type
# checker, or the program itself reads the types of its samples. All others would cost each start that
# compiles the file an eighth more.
TYPED = {"base/types", "base/errors", "access/python_task", "access/python_interface", "worker/signatures"}
BEFORE = SOURCE / "before_imports.py"   # lines that both built files begin with
STUB = "src/stubs/jobqueue.pyi"
BANNER_COLUMNS = 79
GENERATED = "# Built from src/ by src/build.py: edit there."
UNCHECKED = "# mypy: ignore-errors"     # the rooms are checked; users of a built file check their own code
CONTENTS = "Contents (each room uses only the rooms above it)"
KNOWN = {*dir(builtins), "__file__", "__name__", "__doc__"}
GUARD = "TYPE_CHECKING"         # `if TYPE_CHECKING:` holds what only a type checker needs


@dataclass
class Import:
    """A name that a room imports: from an earlier room (`room`), or from a module outside."""

    name: str
    line: int
    room: str | None = None
    module: str = ""            # empty for a plain `import name`
    original: str = ""          # the name in the module
    guarded: bool = False       # stands in `if TYPE_CHECKING:`
    exported: bool = False      # `import name as name`: other rooms may import it from here


@dataclass
class Room:
    """A parsed room. `body` is its code without docstring and imports; it begins at `first_line`."""

    path: str
    nodes: list[ast.AST] = field(default_factory=list)
    doc: str = ""
    imports: list[Import] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    first_line: int = 1
    defined: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)       # of those, what the built file uses

    @property
    def file(self) -> str:
        """The path from the root of the repository, for messages."""
        return "src/%s.py" % self.path

    def line_of(self, name: str) -> int:
        """Return the first line that defines or uses a name."""
        return min((getattr(node, "lineno", 1) for node in self.nodes
                    if name in (getattr(node, "id", None), getattr(node, "name", None))), default=1)


@dataclass
class Line:
    """A line of a built file, and the line of a room behind it."""

    text: str
    room: Room | None = None
    number: int = 0


class Span(NamedTuple):
    """A part of a text: lines and columns from 0, columns in bytes."""

    line: int
    column: int
    last_line: int
    last_column: int

    def text(self, lines: list[bytes]) -> bytes:
        """Return the part, its lines with a space between."""
        if self.line == self.last_line:
            return lines[self.line][self.column:self.last_column]
        return b" ".join([lines[self.line][self.column:], *lines[self.line + 1:self.last_line],
                          lines[self.last_line][:self.last_column]])


class Edit(NamedTuple):
    """A part of a text, and what stands in its place."""

    span: Span
    text: bytes


class Refused(Exception):
    """Rooms that do not fit together: one sentence for each fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))


# Reading a room

def read_room(path: str) -> Room:
    """Parse one room; Refused if it is missing, or no Python."""
    file = SOURCE / (path + ".py")
    try:
        text = file.read_text("utf-8")
        tree = ast.parse(text)
    except OSError as error:
        raise Refused(["src/%s.py: %s" % (path, error.strerror)]) from None
    except SyntaxError as error:
        raise Refused(["src/%s.py:%s: %s" % (path, error.lineno, error.msg)]) from None
    room = Room(path, list(ast.walk(tree)), ast.get_docstring(tree) or "")
    end = 0
    for statement in tree.body:
        if not (is_docstring(statement) or read_imports(room, statement)):
            break
        end = statement.end_lineno or 0
    lines = text.splitlines()
    while end < len(lines) and not lines[end].strip():
        end += 1
    built = built_lines(tree, lines, path in TYPED)
    room.body, room.first_line = built[end:], end + 1
    room.used = used_names(tree)
    room.needed = room.used if path in TYPED else used_names(ast.parse("\n".join(built)))
    room.defined = bound_names(tree.body) - {part.name for part in room.imports if not part.exported}
    return room


def built_lines(tree: ast.Module, lines: list[str], is_typed: bool) -> list[str]:
    """Return the lines of a room as the built file has them: without types, or in a TYPED room with
    annotations as texts. A line of the room is one of the built file."""
    encoded = [line.encode() for line in lines]             # columns are counted in bytes
    removals = {} if is_typed else dict(removable_types(tree, encoded))
    gone = {part for node in removals for part in ast.walk(node)}
    edits = list(removals.values())
    for annotation in annotations_in(tree):
        if annotation not in gone and not isinstance(annotation, ast.Constant):
            span = Span(annotation.lineno - 1, annotation.col_offset, *node_end(annotation))
            edits.append(Edit(span, b'"%s"' % b" ".join(span.text(encoded).replace(b'"', b"'").split())))
    for span, text in sorted(edits, reverse=True):
        rest = encoded[span.last_line][span.last_column:]
        encoded[span.line] = encoded[span.line][:span.column] + text + rest
        encoded[span.line + 1:span.last_line + 1] = [b""] * (span.last_line - span.line)
    return [line.decode() for line in encoded]


def removable_types(tree: ast.Module, lines: list[bytes]) -> Iterator[tuple[ast.AST, Edit]]:
    """Yield the annotations and guarded statements that nothing needs at run time, with their removal.
    Annotations in the body of a class stay: a NamedTuple's are its fields."""
    in_classes = {statement for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
                  for statement in node.body}
    for statement in tree.body:
        if is_guard(statement) and not getattr(statement, "orelse", None):
            yield statement, Edit(Span(statement.lineno - 1, 0, *node_end(statement)), b"")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns:
            arrow = lines[node.returns.lineno - 1].rfind(b" ->", 0, node.returns.col_offset)
            yield node.returns, Edit(Span(node.returns.lineno - 1, arrow, *node_end(node.returns)), b"")
        elif isinstance(node, ast.arg) and node.annotation:
            column = node.col_offset + len(node.arg.encode())
            line, end = node_end(node)
            spaced = lines[line][end:].startswith(b" = ")       # without a type it is a=1, not a = 1
            yield node.annotation, Edit(Span(node.lineno - 1, column, line, end + 3 * spaced), b"=" * spaced)
        elif isinstance(node, ast.AnnAssign) and node.value and node not in in_classes:
            yield node.annotation, Edit(Span(*node_end(node.target), *node_end(node.annotation)), b"")


def annotations_in(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield all annotations."""
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation:
                yield annotation


def node_end(node: ast.AST) -> tuple[int, int]:
    """Return line (from 0) and column of a node's end."""
    return getattr(node, "end_lineno", 1) - 1, getattr(node, "end_col_offset", 0)


def is_guard(statement: ast.stmt) -> bool:
    """True for an `if TYPE_CHECKING:`."""
    return isinstance(statement, ast.If) and getattr(statement.test, "id", "") == GUARD


def is_docstring(statement: ast.stmt) -> bool:
    """True for a bare text, as a docstring is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def read_imports(room: Room, statement: ast.stmt) -> bool:
    """Add the names that a statement imports to the room; False for one that is no import."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        room.imports += imports_of(room, statement, guarded=False)
        return True
    inner = getattr(statement, "body", []) if is_guard(statement) else []
    imports = [part for part in inner if isinstance(part, (ast.Import, ast.ImportFrom))]
    if not imports or len(imports) != len(inner):
        return False
    for part in imports:
        room.imports += imports_of(room, part, guarded=True)
    return True


def imports_of(room: Room, statement: ast.Import | ast.ImportFrom, guarded: bool) -> Iterator[Import]:
    """Yield the names that an import statement imports."""
    home, module = None, getattr(statement, "module", None) or ""
    level = getattr(statement, "level", 0)
    if level:
        home = "/".join(room.path.split("/")[:-level] + module.split("."))
    for alias in statement.names:
        yield Import(alias.asname or alias.name, statement.lineno, home, module, alias.name, guarded,
                     alias.asname == alias.name)


class Names(ast.NodeVisitor):
    """Finds all global names that a module uses: those that no enclosing scope binds."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._scopes: list[tuple[type[ast.AST], set[str]]] = []

    def visit_Name(self, node: ast.Name) -> None:
        """Add a name unless a scope around it binds it. Functions do not see the names of their class."""
        last = len(self._scopes) - 1
        if not any(node.id in names for place, (kind, names) in enumerate(self._scopes)
                   if kind is not ast.ClassDef or place == last):
            self.used.add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Look at decorators, defaults and annotations outside, at the body inside."""
        self._visit([*node.decorator_list, node.args, node.returns])
        self._enter(ast.FunctionDef, arguments_of(node.args) | bound_names(node.body), node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Look at defaults outside, at the expression inside."""
        self._visit([node.args])
        self._enter(ast.Lambda, arguments_of(node.args), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Look at decorators and bases outside, at the body inside."""
        self._visit([*node.decorator_list, *node.bases, *node.keywords])
        self._enter(ast.ClassDef, bound_names(node.body), node.body)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        """Look at a comprehension, which binds its targets."""
        self._visit([node.generators[0].iter])
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._enter(ast.ListComp, bound_names([part.target for part in node.generators]),
                    [*node.generators, *results])

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def _enter(self, kind: type[ast.AST], names: set[str], nodes: Iterable[ast.AST]) -> None:
        self._scopes.append((kind, names))
        self._visit(nodes)
        self._scopes.pop()

    def _visit(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node:
                self.visit(node)


def used_names(tree: ast.Module) -> set[str]:
    """Return all global names that a module uses."""
    names = Names()
    names.visit(tree)
    return names.used


def arguments_of(node: ast.arguments) -> set[str]:
    """Return the names of a function's arguments."""
    return {part.arg for part in ast.iter_child_nodes(node) if isinstance(part, ast.arg)}


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that statements bind in their own scope."""
    names: set[str] = set()
    coming = list(nodes)
    while coming:
        node = coming.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp,
                                 ast.DictComp, ast.GeneratorExp)):
            coming += ast.iter_child_nodes(node)
    return names


# Refusing what does not fit

def check_rooms(rooms: list[Room]) -> list[str]:
    """Return a sentence for each fault of the rooms of one built file, each with room and line."""
    faults: list[str] = []
    earlier: dict[str, Room] = {}
    homes: dict[str, str] = {}                  # name: where it is defined
    outside: dict[str, tuple[str, str]] = {}    # name: the module and the name in it
    later = {room.path for room in rooms}
    for room in rooms:
        later.discard(room.path)
        faults += check_room(room, earlier, later)
        for name in sorted(room.defined):
            if name in homes:
                faults.append("%s:%d: %s is defined in %s too" % (
                    room.file, room.line_of(name), name, homes[name]))
            homes[name] = room.file
        for imported in room.imports:
            source = (imported.module, imported.original)
            if imported.room is None and not imported.exported and (
                    outside.setdefault(imported.name, source) != source):
                faults.append("%s:%d: %s is imported from another module elsewhere" % (
                    room.file, imported.line, imported.name))
        earlier[room.path] = room
    for room in rooms:
        faults += ["%s:%d: %s is the name of an imported module or of something in one" % (
            room.file, room.line_of(name), name) for name in sorted(room.defined.intersection(outside))]
    return faults


def check_room(room: Room, earlier: dict[str, Room], later: set[str]) -> list[str]:
    """Return the faults of one room: its docstring, its imports, its names."""
    faults = [] if room.doc else [(1, "a room opens with a docstring")]
    for imported in room.imports:
        if imported.room is not None:
            faults += [(imported.line, fault) for fault in check_import(imported, earlier, later)]
        elif imported.module.partition(".")[0] in ("src", "tests") or imported.original == "src":
            faults.append((imported.line, "another room is imported as in `from ..base.errors import wrong`"))
        if imported.name not in room.used and imported.module != "__future__" and not imported.exported:
            faults.append((imported.line, "%s is imported and not used" % imported.name))
    for node in room.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno >= room.first_line and (
                node.col_offset == 0 or isinstance(node, ast.ImportFrom) and node.level):
            faults.append((node.lineno, "rooms are imported above the code"))
        if isinstance(node, ast.If) and is_guard(node) and len({
                isinstance(part, (ast.Import, ast.ImportFrom)) for part in node.body}) == 2:
            faults.append((node.lineno, "imports for the type checker stand in an `if` of their own"))
    here = {imported.name for imported in room.imports} | room.defined | KNOWN
    faults += [(room.line_of(name), "%s is neither defined nor imported" % name)
               for name in sorted(room.used - here)]
    return ["%s:%d: %s" % (room.file, line, words) for line, words in sorted(faults)]


def check_import(imported: Import, earlier: dict[str, Room], later: set[str]) -> Iterator[str]:
    """Yield what is wrong with an import from another room."""
    path = str(imported.room)
    if path in later:
        yield "src/%s.py is a later room; only earlier ones can be imported" % path
    elif path not in earlier:
        yield "src/%s.py is no earlier room" % path
    elif imported.original not in earlier[path].defined:
        yield "src/%s.py does not define %s" % (path, imported.original)
    if imported.name != imported.original:
        yield "%s is imported under another name" % imported.original
    if imported.original.startswith("_"):
        yield "%s is private to its room; drop the underscore" % imported.original


# Joining

def join(rooms: list[Room]) -> list[Line]:
    """Return the lines of the built file."""
    head = rooms[0]
    lines = [Line("#!/usr/bin/env python3"), Line(GENERATED), Line(UNCHECKED), *docstring(rooms)]
    lines += map(Line, [*BEFORE.read_text("utf-8").split('"""\n', 1)[1].splitlines(), ""])
    lines += map(Line, [*gathered_imports(rooms, guarded=False), ""])
    lines += code_of(head)
    lines += map(Line, gathered_imports(rooms, guarded=True))
    for room in rooms[1:]:
        lines += [Line(""), Line(""), *banner(room), Line(""), *code_of(room)]
    return lines


def docstring(rooms: list[Room]) -> Iterator[Line]:
    """Yield the built file's docstring: that of the head, and the rooms with a line about each."""
    yield from map(Line, ('"""' + rooms[0].doc).splitlines())
    yield from (Line(""), Line(CONTENTS))
    width = max(len(room.path) for room in rooms) + 3
    for room in rooms[1:]:
        yield Line("    %-*s   %s" % (width, room.path + ".py", room.doc.partition("\n")[0]))
    yield Line('"""')


def banner(room: Room) -> Iterator[Line]:
    """Yield the comment that opens a room in the built file: its path and its docstring."""
    yield Line(("# %s.py " % room.path).ljust(BANNER_COLUMNS, "-"), room, 1)
    yield Line("#", room, 1)
    for number, text in enumerate(room.doc.splitlines(), 1):
        yield Line(("# " + text).rstrip(), room, number)


def stub(rooms: list[Room]) -> list[Line]:
    """Return the lines by which a type checker sees the rooms as one module, for those of worker.py."""
    return [Line('"""The names of all rooms: written by src/build.py for the type checker."""'),
            *(Line("from src.%s import *" % room.path.replace("/", ".")) for room in rooms)]


def code_of(room: Room) -> list[Line]:
    """Return the lines of a room's code."""
    return [Line(text, room, number) for number, text in enumerate(room.body, room.first_line)]


def gathered_imports(rooms: list[Room], guarded: bool) -> list[str]:
    """Return the import statements of all rooms from outside, each once, in the order of the alphabet.
    An import that some room needs at run time is not repeated among the guarded ones."""
    needed: dict[bool, set[tuple[str, str, str]]] = {True: set(), False: set()}
    for room in rooms:
        for imported in room.imports:
            if imported.room is None and (imported.exported or imported.name in room.needed):
                needed[imported.guarded].add((imported.module, imported.original, imported.name))
    chosen = needed[True] - needed[False] if guarded else needed[False]
    plain = sorted(name for module, name, _ in chosen if not module)
    by_module = collections.defaultdict(list)
    for module, original, name in sorted(chosen):
        if module:
            by_module[module].append(original if original == name else "%s as %s" % (original, name))
    by_module.pop("__future__", None)
    ours = wrapped("from jobqueue import ", by_module.pop("jobqueue", []))
    statements = ["import " + name for name in plain if name != "jobqueue"]
    statements += [line for module in sorted(by_module)
                   for line in wrapped("from %s import " % module, by_module[module])]
    if "jobqueue" in plain:
        ours.insert(0, "import jobqueue")
    statements += ["", *ours] if ours else []
    if guarded:
        lines = [("    " + line).rstrip() for line in statements]
        return ["", "if %s:" % GUARD, *lines] if lines else []
    return statements


def wrapped(start: str, names: list[str]) -> list[str]:
    """Return an import statement in lines of at most 100 columns; none without names. Constants come
    first, then classes."""
    if not names:
        return []
    names = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    if len(start + ", ".join(names)) <= 100:
        return [start + ", ".join(names)]
    lines, margin = [start + "("], " " * (len(start) + 1)
    for name in names:
        if len(lines[-1] + name) > 97:
            lines[-1] = lines[-1].rstrip()
            lines.append(margin)
        lines[-1] += name + ", "
    return [*lines[:-1], lines[-1].rstrip(", ") + ")"]


# Importing the rooms

def import_rooms(built: dict[str, list[Line]]) -> None:
    """Import each room as a module, beside the new built files; Refused if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ROOMS:
            Path(folder, name).write_text(text_of(built[name]), "utf-8")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            import_here([path for paths in ROOMS.values() for path in paths], folder, writing)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            fault = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise Refused([fault or "src/: importing the rooms ends the process"])


def import_here(paths: Iterable[str], folder: str, writing: int) -> None:
    """Import rooms in this process, a child, and end it; a fault is written to `writing`."""
    code, path = 1, ""
    try:
        sys.dont_write_bytecode = True
        sys.path[:0] = [folder, str(ROOT)]
        for path in paths:
            __import__("src." + path.replace("/", "."))
        code = 0
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                  if frame.filename.startswith(str(SOURCE / path.partition("/")[0]))]
        place = "%s:%s" % (os.path.relpath(frames[-1].filename, ROOT), frames[-1].lineno) if frames else path
        os.write(writing, ("%s: %s cannot be imported: %s: %s" % (
            place, path, type(error).__name__, error)).encode())
    finally:
        os._exit(code)


# What is built

def build() -> dict[str, list[Line]]:
    """Return the lines of each built file; Refused if rooms do not fit."""
    rooms = {name: [read_room(path) for path in paths] for name, paths in ROOMS.items()}
    faults = [fault for some in rooms.values() for fault in check_rooms(some)]
    if faults:
        raise Refused(faults)
    return {**{name: join(some) for name, some in rooms.items()}, STUB: stub(rooms["jobqueue.py"])}


def text_of(lines: list[Line]) -> str:
    """Return a built file's text."""
    return "".join(line.text + "\n" for line in lines)


def replace(built: dict[str, list[Line]]) -> None:
    """Write the built files, each in one step."""
    for name, lines in built.items():
        new = ROOT / (name + ".new")
        new.write_text(text_of(lines), "utf-8")
        os.replace(new, ROOT / name)


def differences(built: dict[str, list[Line]]) -> Iterator[str]:
    """Yield a sentence for each built file that is not as its rooms are, with the first such line."""
    for name, lines in built.items():
        there = (ROOT / name).read_text("utf-8").splitlines() if (ROOT / name).exists() else []
        for number, (line, old) in enumerate(zip(lines, there), 1):
            if line.text != old:
                yield "%s:%d: differs from %s; run python3 src/build.py" % (name, number, place_of(line))
                break
        else:
            if len(lines) != len(there):
                yield "%s: has %d lines where its rooms have %d; run python3 src/build.py" % (
                    name, len(there), len(lines))


# Finding a line

def place_of(line: Line) -> str:
    """Return the room and line behind a line of a built file."""
    return "%s:%d" % (line.room.file, line.number) if line.room else "src/build.py"


def where(built: dict[str, list[Line]], name: str, number: int) -> str:
    """Return the room and line behind one line of a built file; Refused if it has no such line."""
    lines = built[name]
    if not 0 < number <= len(lines):
        raise Refused(["%s has %d lines, and no line %d" % (name, len(lines), number)])
    line = lines[number - 1]
    return place_of(line) if line.room else "%s:%d: written by src/build.py" % (name, number)


def translate(built: dict[str, list[Line]], text: str) -> str:
    """Return a traceback with the rooms and their lines in place of those of built files."""
    def replaced(match: re.Match[str]) -> str:
        lines, number = built[match[1]], int(match[2])
        line = lines[number - 1] if 0 < number <= len(lines) else Line("")
        return 'File "%s", line %d' % (line.room.file, line.number) if line.room else match[0]
    names = "|".join(map(re.escape, ROOMS))
    return re.sub(r'File "(?:[^"\n]*/)?(%s)", line (\d+)' % names, replaced, text)


def main() -> int:
    """Run this program; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a built file differs from its rooms")
    parser.add_argument("--where", nargs="?", const="-", metavar="FILE:LINE",
                        help="print the room and line; without FILE:LINE a traceback is read and translated")
    options = parser.parse_args()
    name, _, number = os.path.basename(options.where or "").partition(":")
    if options.where not in (None, "-") and not (name in ROOMS and number.isdigit()):
        parser.error("--where takes a line of %s, such as jobqueue.py:5299" % " or ".join(ROOMS))
    try:
        built = build()
        if not options.where:
            import_rooms(built)
        if options.where:
            print(translate(built, sys.stdin.read().rstrip("\n")) if options.where == "-" else
                  where(built, name, int(number)))
        elif options.check:
            faults = list(differences(built))
            if faults:
                raise Refused(faults)
        else:
            replace(built)
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
