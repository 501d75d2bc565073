"""Every SQL text of the two files: old enough for SQLite 3.15, and each in its place.

The developers' SQLite understands more than the users' do, so a run of the suite would not notice.
"""

import ast
import contextlib
import re
import unittest

import jobqueue
from tests.helpers import postgres
from tests.helpers.support import ROOT, need_part

FILES = ("jobqueue.py", "worker.py")
STARTS = (
    "SELECT INSERT UPDATE DELETE CREATE ALTER DROP PRAGMA BEGIN COMMIT ROLLBACK SAVEPOINT RELEASE VACUUM "
    "REINDEX ANALYZE ATTACH REPLACE WITH EXPLAIN"
).split()
VERBS = ("insert", "ensure", "insert_all", "upsert", "update")
LOOKS_LIKE_SQL = re.compile(r"\s*(--.*\n\s*)*(%s)\b" % "|".join(STARTS))

# What SQLite 3.15 does not understand, and since when it is known.
TOO_NEW = {
    "RETURNING (3.35)": r"\bRETURNING\b",
    "upsert (3.24)": r"\bON\s+CONFLICT\b[^;]*?\bDO\b",
    "window functions (3.25)": r"\bOVER\s*\(",
    "STRICT (3.37)": r"\)\s*STRICT\b",
    "JSON functions (3.38)": r"\bjson(_\w+)?\s*\(",
    "-> (3.38)": r"->",
    "FILTER (3.30)": r"\bFILTER\s*\(",
    "NULLS FIRST (3.30)": r"\bNULLS\s+(FIRST|LAST)\b",
    "format (3.38)": r"\bformat\s*\(",
    "iif (3.32)": r"\biif\s*\(",
    "unixepoch (3.38)": r"\bunixepoch\s*\(",
    "TRUE and FALSE (3.23)": r"\b(TRUE|FALSE)\b",
    "UPDATE ... FROM (3.33)": r"\bUPDATE\s+\w+\s+SET\b(?:(?!\bSELECT\b|\(|\bWHERE\b).)*\bFROM\b",
    "LIMIT in UPDATE or DELETE": r"\A\s*(UPDATE|DELETE)\b(?:[^()]|\((?:[^()]|\([^()]*\))*\))*\bLIMIT\b",
    "generated columns (3.31)": r"\bGENERATED\s+ALWAYS\b|\bAS\s*\([^)]*\)\s*(STORED|VIRTUAL)\b",
    "DROP or RENAME COLUMN (3.25)": r"\b(DROP|RENAME)\s+COLUMN\b",
    "VACUUM INTO (3.27)": r"\bVACUUM\s+(\w+\s+)?INTO\b",
    "IS DISTINCT FROM (3.39)": r"\bDISTINCT\s+FROM\b",
    "RIGHT or FULL JOIN (3.39)": r"\b(RIGHT|FULL)\s+(OUTER\s+)?JOIN\b",
    "digits with _ (3.46)": r"\b\d+_\d+\b",
}
WRITES_STATE = (
    r"\bUPDATE\s+task\s+SET\b(?:(?!\bWHERE\b).)*\b(status|claim|attempts|retries_left|crashes|cancel_requested|"
    r"lease_\w+|turn|run_at)\s*=",
    r"\bINSERT\s+(OR\s+\w+\s+)?INTO\s+task\b(?!_)",
    r"\bREPLACE\s+INTO\s+task\b(?!_)",
    r"\bDELETE\s+FROM\s+task\b(?!_)",
)


# What another database does not understand, or says otherwise: only these rooms may use it.
DIALECT = (
    r"\bINDEXED\b|\bINSERT\s+OR\b|\bREPLACE\s+INTO\b|\bCROSS\s+JOIN\b|\browid\b|\bsqlite_\w+|\bPRAGMA\b|"
    r"\bBEGIN\b|\bIS\s+(NOT\s+)?\?|\?\d|\btotal\s*\(|\bstrftime\b|\bjulianday\b|\bVACUUM\b|\bGLOB\b"
)
POSTGRES_ROOMS = ("store/postgres_sql", "store/postgres_connection", "store/postgres")
DIALECT_ROOMS = (*POSTGRES_ROOMS, "store/schema", "store/connection", "store/database",
                 "store/sqlite_connection", "store/write_lock", "store/sqlite")


class Statement:
    """One SQL text: where it stands (file, line, class, function) and what it says."""

    def __init__(self, file, line, scope, text):
        self.file, self.line, self.scope, self.text = file, line, scope, text

    def __repr__(self):
        return "%s:%d %s: %s" % (self.file, self.line, ".".join(self.scope), " ".join(self.text.split())[:90])


def as_text(node):
    """The text of a string expression: constants, + and %, with ? for what is filled in; None if none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(as_text(part) or "?" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = as_text(node.left), as_text(node.right)
        if left is not None or right is not None:
            return "%s%s" % (left or "?", right or "?")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left = as_text(node.left)
        return left and re.sub(r"%[sd]", "?", left)
    return None


def by_verb(node):
    """The statement that a call such as update("task", {"status": 4}, "id=?") makes; None for other calls."""
    verb = getattr(node.func, "attr", None)
    if verb not in VERBS or not node.args or as_text(node.args[0]) is None:
        return None
    table, row = node.args[0].value, node.args[1] if len(node.args) > 1 else None
    names = [as_text(key) or "?" for key in row.keys] if isinstance(row, ast.Dict) else ["?"]
    if verb == "update":
        return "UPDATE %s SET %s WHERE %s" % (
            table, ", ".join(name + "=?" for name in names), as_text(node.args[2]) or "?")
    return "INSERT INTO %s (%s)" % (table, ", ".join(names))


def statements(file, source):
    """Every SQL statement of a source text, scripts taken apart; also what Connection's verbs make."""
    found = []

    def visit(node, scope):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            scope = scope + (node.name,)
        text = by_verb(node) if isinstance(node, ast.Call) else None
        if text is not None:
            found.append(Statement(file, node.lineno, scope, text))
        text = as_text(node)
        if text is not None and not is_docstring(node):
            if LOOKS_LIKE_SQL.match(text):
                found.extend(
                    Statement(file, node.lineno, scope, without_comments(part).strip().rstrip(";"))
                    for part in jobqueue.statements(text.rstrip() + ";")
                )
            return
        for child in ast.iter_child_nodes(node):
            visit(child, scope)

    tree = ast.parse(source)
    documentation = {
        id(body[0].value)
        for node in ast.walk(tree)
        for body in [getattr(node, "body", None)]
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr)
    }

    def is_docstring(node):
        return id(node) in documentation

    visit(tree, ())
    return found


def without_comments(text):
    return re.sub(r"--[^\n]*", "", text)


def too_new(found):
    """(feature, statement) for each that SQLite 3.15 would refuse."""
    return [
        (feature, statement)
        for statement in found
        for feature, pattern in TOO_NEW.items()
        if re.search(pattern, without_comments(statement.text), re.IGNORECASE | re.DOTALL)
    ]


def state_written_outside(found):
    """Statements that change a task's state, outside its four classes and the triggers."""
    return [
        statement
        for statement in found
        if statement.scope[:1] not in (("Adding",), ("Actions",), ("Followers",), ("Claims",))
        and not statement.text.startswith("CREATE TRIGGER")
        and any(re.search(pattern, statement.text, re.IGNORECASE | re.DOTALL) for pattern in WRITES_STATE)
    ]


def unfenced(found):
    """Updates and deletions of a task that name neither its status nor its claim in their WHERE."""
    return [
        statement
        for statement in found
        if re.match(r"\s*(UPDATE\s+task|DELETE\s+FROM\s+task)\b(?!_)", statement.text)
        and not re.search(r"\bWHERE\b.*\bstatus\s*(=|IN|<>)", statement.text, re.DOTALL)
    ]


def room_of(statement, source):
    """Return the room from which a statement of a built file comes."""
    above = "\n".join(source.splitlines()[: statement.line])
    return re.findall(r"^# ([\w/]+)\.py -{5,}$", above, re.MULTILINE)[-1]


def dialect_outside(found, source):
    """Statements in words of SQLite's own, outside the rooms that may use them."""
    return [
        statement
        for statement in found
        if re.search(DIALECT, without_comments(statement.text), re.IGNORECASE)
        and room_of(statement, source) not in DIALECT_ROOMS
    ]


def all_statements():
    """What SQLite is told: the rooms about PostgreSQL have another dialect."""
    found = []
    for name in FILES:
        source = (ROOT / name).read_text("utf-8")
        found += [one for one in statements(name, source) if room_of(one, source) not in POSTGRES_ROOMS]
    return found


class TestSql(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need_part("source")
        cls.found = all_statements()

    def test_the_statements_are_found(self):
        self.assertGreater(len(self.found), 120)
        texts = " ".join(statement.text for statement in self.found)
        for words in (
            "CREATE TABLE IF NOT EXISTS activity",
            "UPDATE task SET status=RUNNING",
            "BEGIN IMMEDIATE",
            "wal_checkpoint",
            "INSERT INTO log",
            "UPDATE worker SET state",
        ):
            self.assertIn(words, texts)

    def test_nothing_is_newer_than_sqlite_3_15(self):
        self.assertEqual(too_new(self.found), [])

    def test_a_tasks_state_is_written_by_four_classes_and_triggers_only(self):
        self.assertEqual(state_written_outside(self.found), [])

    def test_every_change_of_a_task_names_the_state_it_expects(self):
        self.assertEqual(unfenced(self.found), [])

    def test_sqlites_own_words_stand_in_the_rooms_about_databases(self):
        for name in FILES:
            source = (ROOT / name).read_text("utf-8")
            found = dialect_outside(statements(name, source), source)
            self.assertEqual(found, [], "use the verbs and hints of store/connection")

    def test_there_is_one_checkpoint_in_one_method(self):
        where = [statement.scope for statement in self.found if "wal_checkpoint" in statement.text.lower()]
        self.assertEqual(where, [("DataFile", "_checkpoint")])

    def test_every_transaction_that_writes_begins_immediate(self):
        begins = {statement.text.strip() for statement in self.found
                  if statement.text.strip().startswith("BEGIN")}
        self.assertEqual(begins - {jobqueue.Database.snapshot_words[0]}, {"BEGIN IMMEDIATE"})

    def test_nothing_maps_the_database_into_memory_or_turns_checkpoints_on(self):
        for statement in self.found:
            self.assertNotRegex(
                statement.text,
                r"(?i)mmap_size|busy_timeout|synchronous=OFF|"
                r"wal_autocheckpoint\s*=\s*[1-9]",
            )

    def test_every_index_that_is_asked_for_exists(self):
        made = set(re.findall(r"CREATE INDEX IF NOT EXISTS (\w+)", " ".join(one.text for one in self.found)))
        hints = [value for name, value in vars(jobqueue).items() if name.startswith("BY_")]
        used = set(re.findall(r"INDEXED BY (\w+)", " ".join(hints)))
        self.assertGreater(len(used), 3)
        self.assertLessEqual(used, made)

    def test_values_are_bound_and_never_written_into_a_statement(self):
        """`%` puts in columns, conditions and question marks, all of them ours."""
        for name in FILES:
            for node in ast.walk(ast.parse((ROOT / name).read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    self.assertIsNone(
                        LOOKS_LIKE_SQL.match(as_text(node)), "f-string in %s:%d" % (name, node.lineno)
                    )


def known_texts():
    """Every statement that is known without running: constants, and what `%` puts hints into."""
    known = {}
    for name in FILES:
        for node in ast.walk(ast.parse((ROOT / name).read_text("utf-8"))):
            if isinstance(node, (ast.Constant, ast.BinOp)):
                try:
                    text = eval(compile(ast.Expression(node), name, "eval"), dict(vars(jobqueue)))
                except Exception:
                    continue
                if isinstance(text, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE) [^%]*\Z", text):
                    known[text] = "%s:%d" % (name, node.lineno)
    return known


# The beginning of a statement, and one whose table was a variable of ours.
PART = r"(\b(IGNORE|SELECT id|AND|FROM|WHERE|SELECT|TABLE|INTO|INSERT|UPDATE|DELETE)|[(,])\s*\Z|<function"


@unittest.skipUnless(postgres.ADDRESS, "needs JOBQUEUE_TEST_DATABASE")
class TestPostgres(unittest.TestCase):
    def test_it_understands_every_statement(self):
        address, remove = postgres.fresh_database()
        self.addCleanup(remove)
        with contextlib.closing(postgres.connect(address)) as link:
            understood = 0
            for text, place in known_texts().items():
                marks = tuple("$%d" % (number + 1) for number in range(text.count("?")))
                if re.search(PART, text) or re.search(r"\bsqlite_\w+|\\\d", text):
                    continue
                with self.subTest(place):
                    understood += 1
                    link.execute("PREPARE one AS " + jobqueue.to_postgres(text) % marks)
                    link.execute("DEALLOCATE one")
            self.assertGreater(understood, 100)


class TestTheCheckItself(unittest.TestCase):
    def features(self, text):
        return [feature for feature, _ in too_new(statements("seed.py", "x = %r" % text))]

    def test_it_sees_each_feature_that_is_too_new(self):
        seeds = {
            "RETURNING": "UPDATE task SET a=1 WHERE id=2 RETURNING id",
            "upsert": "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b=2",
            "window": "SELECT row_number() OVER (ORDER BY id) FROM t",
            "STRICT": "CREATE TABLE t (a INTEGER) STRICT",
            "JSON": "SELECT json_extract(a, '$.b') FROM t",
            "->": "SELECT a ->> '$.b' FROM t",
            "FILTER": "SELECT count(*) FILTER (WHERE a=1) FROM t",
            "NULLS": "SELECT a FROM t ORDER BY a NULLS LAST",
            "iif": "SELECT iif(a, 1, 2) FROM t",
            "unixepoch": "SELECT unixepoch('now')",
            "UPDATE ... FROM": "UPDATE t SET a=u.a FROM u WHERE t.id=u.id",
            "LIMIT": "DELETE FROM t WHERE a IN (SELECT 1 LIMIT 5) ORDER BY id LIMIT 10",
            "generated": "CREATE TABLE t (a INTEGER, b INTEGER AS (a + 1) STORED)",
            "DROP": "ALTER TABLE t DROP COLUMN a",
            "VACUUM": "VACUUM INTO 'file'",
            "TRUE": "SELECT 1 FROM t WHERE a=TRUE",
        }
        for feature, text in seeds.items():
            with self.subTest(feature):
                self.assertTrue(
                    any(name.startswith(feature) or feature in name for name in self.features(text))
                )

    def test_it_lets_old_sql_pass(self):
        for text in (
            "UPDATE t SET a=(SELECT b FROM u LIMIT 1) WHERE id=(SELECT 1 FROM v LIMIT 1) AND c=0",
            "INSERT OR REPLACE INTO t (a) VALUES (1)",
            "SELECT a FROM (SELECT 1 AS a) LIMIT 3",
            "WITH RECURSIVE n(x) AS (SELECT 1) SELECT x FROM n",
            "CREATE TABLE t (a INTEGER PRIMARY KEY) WITHOUT ROWID",
            "CREATE INDEX i ON t (a) WHERE b=0",
            "SELECT 1 FROM t WHERE (a, b) < (1, 2)",
            "SELECT count(*) FROM (SELECT 1 FROM t INDEXED BY i WHERE a=? LIMIT 5)",
            "DELETE FROM t WHERE id IN (SELECT id FROM t WHERE a=1 LIMIT 5)",
        ):
            self.assertEqual(self.features(text), [], text)

    def test_it_reads_texts_that_are_put_together(self):
        source = (
            "def f(db):\n"
            "    db.run('UPDATE t SET a=1 ' 'WHERE id=2 '\n           'RETURNING id')\n"
            "    db.run('SELECT %s FROM t ' % columns + 'ORDER BY a NULLS FIRST')\n"
            "    db.run(f'DELETE FROM {table} WHERE a=1 LIMIT 2')\n"
        )
        self.assertEqual(len(too_new(statements("seed.py", source))), 3)

    def test_it_sees_state_that_is_written_elsewhere(self):
        for text in (
            "UPDATE task SET message=?, status=3 WHERE id=1",
            "DELETE FROM task WHERE id=1 AND status=0",
            "INSERT INTO task (id) VALUES (1)",
            "INSERT OR REPLACE INTO task (id) VALUES (1)",
        ):
            source = "class Workers:\n    def f(self, db):\n        db.run(%r)\n" % text
            self.assertEqual(len(state_written_outside(statements("seed.py", source))), 1, text)
            self.assertEqual(
                state_written_outside(statements("seed.py", source.replace("Workers", "Claims"))), []
            )

    def test_it_sees_what_the_verbs_write(self):
        source = "class Workers:\n    def f(self, db):\n        db.update('task', {'status': 2}, 'id=?')\n"
        found = statements("seed.py", source)
        self.assertEqual((len(state_written_outside(found)), len(unfenced(found))), (1, 1))
        found = statements("seed.py", source.replace("update('task', {'status': 2}, ", "insert('task', "))
        self.assertEqual(len(state_written_outside(found)), 1)

    def test_it_sees_words_of_sqlites_own(self):
        for text in (
            "SELECT a FROM t INDEXED BY i",
            "INSERT OR IGNORE INTO t (a) VALUES (1)",
            "SELECT a FROM t CROSS JOIN u ON u.id=t.id",
            "SELECT a FROM t ORDER BY rowid",
            "SELECT seq FROM sqlite_sequence",
            "PRAGMA user_version",
            "BEGIN IMMEDIATE",
            "SELECT a FROM t WHERE b IS NOT ?",
        ):
            for room, wanted in (("tasks/actions", 1), ("store/database", 0)):
                source = "# %s.py -----------\nx = %r\n" % (room, text)
                self.assertEqual(len(dialect_outside(statements("seed.py", source), source)), wanted, text)

    def test_it_sees_a_change_that_expects_nothing(self):
        source = "x = 'UPDATE task SET status=2 WHERE id=?'"
        self.assertEqual(len(unfenced(statements("seed.py", source))), 1)
        source = "x = 'UPDATE task SET status=2 WHERE id=? AND status=1 AND claim=?'"
        self.assertEqual(unfenced(statements("seed.py", source)), [])
