"""Write one migration that makes the schema which all migrations make together, and remove those.

    python -m scripts.baseline            replace the files in db/migrations/ and write db/baseline.txt
    python -m scripts.baseline --print    print the migration and change nothing

It migrates a scratch database, reads its dump and writes it by table: columns and constraints, indexes, rows, rights. Comments
come from the migrations: those right above a table, a column, a constraint or an index that still exists. Before anything is
replaced, a second scratch database must have the same dump from the new file alone.

`db/baseline.txt` names the migrations that were replaced, with their checksums, and the last commit that has them. A database with exactly
those is adopted by `cortex db migrate`; any other is refused with that commit.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import re
import secrets
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from cortex_plane.db.database import SQL
from cortex_plane.db.schema import BASELINE, Script, scripts
from cortex_plane.embedded import EmbeddedPostgres
from scripts.schema import dump, normalised, pg_dump

WIDTH = 130
_HEAD = """\
-- The whole schema as one migration, written by `python -m scripts.baseline`.
--
-- Accounts, sessions and audit entries are never deleted (no verb has the right to), so the append-only tables that are
-- written with every step refer to as few rows as possible: each foreign key locks the row that it points to.
--
-- Three rules hold for every table of a tenant, and a test walks the catalogue to prove them:
--   1. row-level security is enabled and forced, and compares org_id with the setting app.org_id;
--   2. a reference to another tenant row is composite (org_id, id), because foreign keys bypass row-level security;
--   3. the app's role gets only the rights that the verbs need: what is append-only cannot be updated.
--
-- Lock order, for every transaction that takes more than one:
--   session → agent's claim lock → jobs (by id) → approval → notification → tool_call → session_head → org_head.
-- A head is locked last and updated once per commit.
--
-- A job is leased by at most one worker. Every write of an attempt names worker, epoch and the number of the write
-- before it: whoever lost the job changes nothing, and a write that is sent twice is applied once.
--
-- The primary key of a table is made after its other indexes. Without statistics, as in a new plane, several indexes that begin with the
-- org seem to cost the same, and the planner takes the one that was made last: it would read all rows of an org to find one by its id.

-- Time is the database's. Replaced in test databases only, so that time can be moved without waiting."""
_ORG = "nullif(current_setting('app.org_id', true), '')::uuid"
_TENANT = f"using (org_id = {_ORG}) with check (org_id = {_ORG})"
_TENANTS = """\
-- Row-level security of every table that belongs to an org.
do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array[
{tables}]
  loop
    execute format('alter table %I enable row level security', tenant_table);
    execute format('alter table %I force row level security', tenant_table);
    execute format($policy$
      create policy tenant on %I
        using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
        with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
    $policy$, tenant_table);
  end loop;
end
$$;
"""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--print", action="store_true", help="print the migration and change nothing")
    options = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="cortex-baseline-") as folder,
        EmbeddedPostgres(Path(folder), settings={"fsync": "off"}) as server,
    ):
        baseline = write_baseline(server.url())
    if options.print:
        print(baseline.text, end="")
        return 0
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=SQL, check=True, capture_output=True, text=True)
    replace_migrations(SQL, baseline, commit.stdout.strip())
    print(f"wrote {baseline.name}: now run `make docs`, and remove the tests of migrations that are gone")
    return 0


def write_baseline(server_url: str, folder: Path = SQL) -> Script:
    """The migration that replaces all of this folder. Fails where its schema would not be the same."""
    migrations = [script for script in scripts(folder) if script.kind == "migration"]
    number = migrations[-1].name.partition("_")[0]
    schema, rows, order = _scratch(server_url, folder, migrations)
    text = render(schema, rows, order, Comments.read(migrations))
    baseline = Script(f"{number}_baseline", "migration", text)
    again, same_rows, _ = _scratch(server_url, folder, [baseline])
    if (again, same_rows) != (schema, rows):
        lines = difflib.unified_diff((schema + rows).splitlines(), (again + same_rows).splitlines(), lineterm="", n=1)
        raise SystemExit("\n".join(["The baseline would make another schema:", *lines]))
    return baseline


def replace_migrations(folder: Path, baseline: Script, commit: str) -> None:
    """Remove the migrations, write the one that stands for them, and record which they were."""
    migrations = [script for script in scripts(folder) if script.kind == "migration"]
    lines = [
        f"# The migrations that {baseline.name} replaces, and their checksums. The last commit that has them:",
        f"commit {commit}",
        *(f"{script.checksum} {script.name}" for script in migrations),
    ]
    for script in migrations:
        (folder / "migrations" / f"{script.name}.sql").unlink()
    (folder / "migrations" / f"{baseline.name}.sql").write_text(baseline.text)
    (folder / BASELINE).write_text("\n".join(lines) + "\n")


def _scratch(server_url: str, folder: Path, migrations: list[Script]) -> tuple[str, str, list[str]]:
    """What these migrations make in a new database: the schema, the rows, and the tables in the order of their creation."""
    name = f"cortex_baseline_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    asyncio.run(_execute(server_url, f"create database {name}"))
    try:
        order = asyncio.run(_apply(url, [(folder / "roles.sql").read_text(), *(script.text for script in migrations)]))
        return normalised(dump(url)), _rows(url), order
    finally:
        asyncio.run(_execute(server_url, f"drop database {name} with (force)"))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _apply(url: str, texts: list[str]) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        for text in texts:
            await connection.execute(text)
        tables = await connection.fetch(
            "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') order by oid"
        )
        return [row["relname"] for row in tables]
    finally:
        await connection.close()


def _rows(url: str) -> str:
    command = [pg_dump(), "--data-only", "--column-inserts", f"--dbname={url}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    inserts = [line for line in normalised(printed).splitlines() if line.startswith("INSERT ")]
    return "\n".join(inserts)


# Reading -----------------------------------------------------------------------------------------------------


@dataclass
class Comments:
    """Why things are as they are, by what the words stand above."""

    of: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, migrations: list[Script]) -> Comments:
        comments = cls()
        for script in migrations:
            comments._read(script.text.splitlines())
        return comments

    def _read(self, lines: list[str]) -> None:
        table, above = "", list[str]()
        for line in lines:
            code = line.strip()
            if code.startswith("--"):
                # A heading with a rule is about a part of the file.
                above = [] if code.endswith("-----") else [*above, code]
                continue
            if found := re.match(r"(?:create (?:unlogged )?table|alter table) (\w+)", code):
                table = found[1]
            for key in _keys(code, table):
                if above:
                    self.of[key] = above
            above = []

    def above(self, key: str, indent: str = "") -> list[str]:
        return [indent + line for line in self.of.get(key, [])]


def _keys(code: str, table: str) -> Iterator[str]:
    if (found := re.match(r"create (?:unlogged )?table (\w+)", code)) or (
        found := re.match(r"create (?:unique )?index (\w+)", code)
    ):
        yield found[1]
    elif found := re.search(r"add column (\w+)", code):
        yield f"{table}.{found[1]}"
    elif found := re.search(r"constraint (\w+)", code):
        yield found[1]
    elif found := re.match(r"(\w+) ", code):
        yield f"{table}.{found[1]}"


@dataclass
class Table:
    name: str
    opening: str = ""
    columns: list[str] = field(default_factory=list)
    constraints: list[tuple[str, str]] = field(default_factory=list)
    ending: str = ""
    partition: str = ""
    after: list[str] = field(default_factory=list)
    indexes: list[tuple[str, str]] = field(default_factory=list)
    security: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
    rights: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))


class Schema:
    """The statements of a dump, by table."""

    def __init__(self, text: str) -> None:
        self.tables: dict[str, Table] = {}
        self.others: list[str] = []
        for statement in re.split(r"(?<=;)\n+(?=[A-Z])", text.strip()):
            self._read(plain(statement).removesuffix(";"))

    def _table(self, name: str) -> Table:
        return self.tables.setdefault(name, Table(name))

    def _read(self, statement: str) -> None:
        if found := re.fullmatch(
            r"(create (?:unlogged )?table) (\w+) \((.*?)\)( with \([^()]*\)| partition by .*)?", statement
        ):
            table = self._table(found[2])
            table.opening, table.ending = found[1], found[4] or ""
            for item in _items(found[3]):
                self._add_item(table, item)
        elif found := re.fullmatch(r"alter table only (\w+) attach partition (\w+) (.*)", statement):
            self._table(found[2]).partition = f"create table {found[2]} partition of {found[1]} {found[3]}"
        elif found := re.fullmatch(r"alter table only (\w+) add constraint (\w+) (.*)", statement):
            self._table(found[1]).constraints.append((found[2], found[3]))
        elif found := re.fullmatch(r"alter table (?:only )?(\w+) ((?:force|enable) row level security)", statement):
            self._table(found[1]).security.insert(0, found[2])
        elif found := re.fullmatch(
            r"alter table (\w+) alter column (\w+) add generated (.*) as identity \(.*\)", statement
        ):
            columns = self._table(found[1]).columns
            at = next(n for n, column in enumerate(columns) if column.startswith(f"{found[2]} "))
            columns[at] = columns[at].removesuffix(" not null") + f" generated {found[3]} as identity"
        elif found := re.fullmatch(r"alter table only (\w+) (alter column .*)", statement):
            self._table(found[1]).after.append(f"alter table {found[1]} {found[2]}")
        elif found := re.fullmatch(r"create (unique )?index (\w+) on (?:only )?(\w+) using btree (.*)", statement):
            kind = f"create {found[1] or ''}index {found[2]} on {found[3]} {found[4]}"
            self._table(found[3]).indexes.append((found[2], kind))
        elif found := re.fullmatch(r"create policy (\w+) on (\w+) (.*)", statement):
            self._table(found[2]).policies.append(f"create policy {found[1]} on {found[2]} {found[3]}")
        elif found := re.fullmatch(r"grant (.*) on table (\w+) to (\w+)", statement):
            self._grant(self._table(found[2]).rights[found[3]], found[1])
        elif re.match(r"create function|grant usage on schema|grant all on function", statement):
            self.others.append(statement)
        elif not re.match(r"alter index \w+ attach partition", statement):
            raise SystemExit(f"The baseline does not know what to do with: {statement}")

    def _add_item(self, table: Table, item: str) -> None:
        if found := re.fullmatch(r"constraint (\w+) (.*)", item):
            table.constraints.append((found[1], found[2]))
        else:
            table.columns.append(re.sub(r"(.*) (default .*?)( not null)$", r"\1 not null \2", item))

    def _grant(self, rights: dict[str, list[str]], granted: str) -> None:
        for right in granted.split(","):
            name, _, column = right.partition("(")
            # A right to the table and one to a column are two, also where the first covers the second.
            columns = rights[f"{name} (" if column else name]
            if column:
                columns.append(column.removesuffix(")"))


def _items(text: str) -> list[str]:
    """What stands between the commas of a list that are in no brackets and in no string."""
    items, depth, item = list[str](), 0, ""
    for part in re.findall(r"'(?:[^']|'')*'|[(\[]|[)\]]|,|[^'(\[)\],]+", text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(part, 0)
        if part == "," and depth == 0:
            items.append(item.strip())
            item = ""
        else:
            item += part
    return [*items, item.strip()]


def plain(statement: str) -> str:
    """As a person would write it: one line, lower case, without the schema and without what PostgreSQL adds by itself."""
    parts = re.split(r"('(?:[^']|'')*')", statement)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"\s+", " ", parts[n]).lower()
        parts[n] = parts[n].replace("public.", "").replace("timestamp with time zone", "timestamptz")
        # A literal has the type of what it is compared with or put into.
        parts[n] = (
            re.sub(r"^::(text\[\]|text|jsonb|integer|bigint|interval)(?![\w\[])", "", parts[n]) if n else parts[n]
        )
    text = "".join(parts)
    for operator, word in (("= any", "in"), ("<> all", "not in")):
        text = re.sub(rf"{operator} \(array\[((?:'(?:[^']|'')*'(?:, )?)+)\]\)", rf"{word} (\1)", text)
    text = re.sub(r"\(\((\w+) >= (\w+)\) and \(\1 <= (\w+)\)\)", r"(\1 between \2 and \3)", text)
    text = text.replace("(nullif(current_setting('app.org_id', true), ''))::uuid", _ORG)
    text = re.sub(r"references (\w+)\(", r"references \1 (", text.replace("as ( case", "as (case"))
    return _without_doubled_brackets(text)


def _without_doubled_brackets(text: str) -> str:
    """`check ((a = b))` is `check (a = b)`, and so are the conditions of policies and indexes."""
    for found in reversed(list(re.finditer(r"(?:check|using|where) (?=\(\()", text))):
        start = found.end()
        while text[start + 1] == "(" and _closing(text, start + 1) == _closing(text, start) - 1:
            end = _closing(text, start)
            text = text[:start] + text[start + 1 : end] + text[end + 1 :]
    return text


def _closing(text: str, opening: int) -> int:
    """Where the bracket closes that opens here."""
    depth = 0
    for found in re.finditer(r"'(?:[^']|'')*'|[()]", text[opening:]):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return opening + found.start()
    raise SystemExit(f"A bracket does not close in: {text}")


# Writing -----------------------------------------------------------------------------------------------------


def render(schema: str, rows: str, order: list[str], comments: Comments) -> str:
    found = Schema(schema)
    known = set[str]()
    later: list[str] = []
    tenants: list[str] = []
    functions = [wrap(statement) + ";" for statement in found.others if statement.startswith("create function")]
    parts = ["\n".join([_HEAD, *functions])]
    for name in order:
        if name not in found.tables:  # a partition of one month
            continue
        table = found.tables[name]
        known.add(name)
        parts.append("\n".join(_table(table, comments, known, later, tenants)))
    if later:
        parts.append("-- References to tables that come after their own.\n" + "\n".join(later))
    if rows:
        inserts = [
            re.sub(r"^INSERT INTO public\.(.*?) VALUES ", r"insert into \1 values ", line) for line in rows.splitlines()
        ]
        parts.append("-- Rows that every plane has.\n" + "\n".join(map(wrap, inserts)))
    parts.append(_TENANTS.format(tables=wrap(", ".join(f"'{name}'" for name in tenants), "    ", first="    ")).strip())
    parts.append("\n".join(f"{statement};" for statement in found.others if statement.startswith("grant")))
    return "\n\n".join(parts) + "\n"


def _table(table: Table, comments: Comments, known: set[str], later: list[str], tenants: list[str]) -> Iterator[str]:
    yield from comments.above(table.name)
    if table.partition:
        yield table.partition + ";"
    else:
        yield f"{table.opening} {table.name} ("
        items: list[tuple[str, str]] = [
            (f"{table.name}.{column.partition(' ')[0]}", column) for column in table.columns
        ]
        primary = ""
        self_references: list[str] = []
        for name, text in sorted(table.constraints, key=_rank):
            reference = re.search(r"references (\w+)", text)
            statement = wrap(f"alter table {table.name} add constraint {name} {text}") + ";"
            if name == f"{table.name}_pkey":
                primary = f"alter table {table.name} add {text};"
            elif reference and reference[1] == table.name:
                self_references.append(statement)
            elif reference and reference[1] not in known:
                later.append(statement)
            else:
                items.append((name, f"constraint {name} {text}"))
        for n, (key, text) in enumerate(items):
            yield from comments.above(key, "  ")
            yield wrap(text, "    ", first="  ") + ("," if n < len(items) - 1 else "")
        yield f"){table.ending};"
        for statement in table.after:
            yield statement + ";"
        for name, text in table.indexes:
            yield from comments.above(name)
            yield wrap(text) + ";"
        yield from [primary] if primary else []
        yield from self_references
    policies = list(table.policies)
    if sorted(table.security) == ["enable row level security", "force row level security"] and (
        f"create policy tenant on {table.name} {_TENANT}" in policies
    ):
        tenants.append(table.name)
        policies = [policy for policy in policies if f"policy tenant on {table.name} " not in policy]
    else:
        yield from (f"alter table {table.name} {statement};" for statement in table.security)
    for policy in policies:
        yield wrap(policy) + ";"
    for role, rights in table.rights.items():
        listed = [f"{right}{', '.join(columns)})" if columns else right for right, columns in rights.items()]
        yield wrap(f"grant {', '.join(listed)} on {table.name} to {role}") + ";"


def _rank(constraint: tuple[str, str]) -> int:
    return next(n for n, kind in enumerate(("primary", "unique", "foreign", "")) if constraint[1].startswith(kind))


def wrap(text: str, indent: str = "  ", *, first: str = "") -> str:
    """Lines of a readable width, broken at blanks outside of strings."""
    lines, line = list[str](), first
    for word in re.findall(r"(?:'(?:[^']|'')*'|[^\s'])+", text):
        if line.strip() and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = indent
        line += word if not line.strip() else f" {word}"
    return "\n".join([*lines, line])


if __name__ == "__main__":
    sys.exit(main())
