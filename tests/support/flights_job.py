"""The job on Spark in a folder, and what must come out of it."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.support import delta_tables, root_files, stored_state
from tests.support.job_fixture import Expected, JobFixture, Row, multiset
from tests.support.processes import Ended

_ROWS = 300
_SCHEMA = pa.schema(
    [
        ("number", pa.int64()), ("carrier", pa.string()), ("origin", pa.string()), ("aircraft", pa.string()),
        ("delay", pa.float64()),
    ]
)  # fmt: skip
_FIRST_MTIME = 1_700_000_000


class FlightsJob(JobFixture):
    """The job on Spark. `place`: where its files are, unless below its folder."""

    place: Path | None = None

    @property
    def input(self) -> Path:
        return self.place or self.folder / "flights"

    def deliver(self, files: int) -> None:
        """Makes that many files be there; they never change, and one of them is one batch."""
        folder = self.input
        folder.mkdir(exist_ok=True)
        for i in range(files):
            path = folder / f"{i:04d}.parquet"
            if not path.exists():
                pq.write_table(pa.Table.from_pylist(file_rows(i), _SCHEMA), folder / f".{path.name}")
                os.utime(folder / f".{path.name}", (_FIRST_MTIME + i, _FIRST_MTIME + i))
                (folder / f".{path.name}").rename(path)

    def run_to(self, files: int, **settings: object) -> Ended:
        self.deliver(files)
        return self.finish(**settings)

    @property
    def delivered(self) -> int:
        return len(list(self.input.glob("[0-9]*.parquet")))

    @property
    def files_done(self) -> int:
        """How many files are in checkpoints."""
        found = root_files.entries(self.root)
        return root_files.files_read(found[-1]) if found else 0

    def rows(self, table: str) -> list[Row]:
        return delta_tables.rows(self.table(table))

    def check(self) -> None:
        for process in self.processes:
            process.wait_family()
        self.check_results()
        self.check_clean()

    def check_results(self) -> None:
        wanted = expected(self.delivered)
        legs, routes = self.rows("legs"), self.rows("routes")
        assert Counter(r["number"] for r in legs) == Counter(range(self.delivered * _ROWS))
        assert multiset(legs) == multiset(wanted.movements)
        assert multiset(routes) == multiset(wanted.totals)
        assert stored_state.read_state(self.root, "aircraft") == wanted.balances
        assert stored_state.read_state(self.root, "by-route") == wanted.turnovers

    def check_clean(self) -> None:
        """One collection leaves no garbage, and the last start has swept the tables."""
        self.collect()
        root_files.check_no_orphans(self.root)
        newest = root_files.head(self.root).doc["generation"]
        assert [g for g in map(_generation, self.leftovers()) if g < newest] == []
        older = {name: g for name, g in root_files.scratch_generations(self.local).items() if g < newest}
        assert older == {}

    def leftovers(self) -> list[str]:
        return [name for table in ("legs", "routes") for name in delta_leftovers(self.table(table))]


def file_rows(file: int) -> list[Row]:
    rng = random.Random(file)
    return [
        {
            "number": file * _ROWS + n,
            "carrier": rng.choice(["AA", "B6", "UA"]),
            "origin": rng.choice(["EWR", "JFK", "LGA"]),
            "aircraft": rng.choice([None, *(f"N{i:03d}" for i in range(60))]),
            "delay": rng.choice([None, *(float(i) for i in range(-20, 60))]),
        }
        for n in range(_ROWS)
    ]


def expected(files: int) -> Expected:
    flights: Counter[str] = Counter()
    totals: dict[str, float] = {}
    batches: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], Counter[str]] = {}
    result = Expected([], [], {}, {})
    for file in range(files):
        rows = file_rows(file)
        for row in rows:
            aircraft, key = row["aircraft"] or "UNKNOWN", (row["carrier"], row["origin"])
            flights[aircraft] += 1
            totals[aircraft] = totals.get(aircraft, 0.0) + (row["delay"] or 0.0)
            seen.setdefault(key, Counter())[aircraft] += 1
            figures = {"flights": flights[aircraft], "total": totals[aircraft]}
            result.movements.append({"number": row["number"], "aircraft": aircraft, **figures})
        for key in sorted({(r["carrier"], r["origin"]) for r in rows}):
            batches[key] += 1
            counted = {"flights": seen[key].total(), "aircraft": len(seen[key])}
            result.totals.append({"carrier": key[0], "origin": key[1], "batch": batches[key], **counted})
    result.balances.update({("flights", (a,), None): n for a, n in flights.items()})
    result.balances.update({("total", (a,), None): t for a, t in totals.items()})
    result.turnovers.update({("batches", key, None): n for key, n in batches.items()})
    result.turnovers.update({("aircraft", key, a): n for key, c in seen.items() for a, n in c.items()})
    return result


def delta_leftovers(table: Path) -> list[str]:
    """Data files that the newest version of a Delta table does not have; nothing removes any from these tables."""
    named = {Path(uri).name for uri in DeltaTable(table).file_uris()}
    return sorted({p.name for p in table.glob("*.parquet")} - named)


def _generation(name: str) -> int:
    match = re.search(r"-g(\d+)-o\d+-s\d+-", name)
    assert match is not None, name
    return int(match[1])
