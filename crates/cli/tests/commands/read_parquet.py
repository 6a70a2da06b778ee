"""Prints the rows of a folder in Hive layout, as pyarrow and as DuckDB read it."""

import json
import sys
from datetime import datetime, timezone

import duckdb
import pyarrow.dataset

COLUMNS = "id entity resource limit window start end amount unit events cost currency".split()


def shown(row):
    day = datetime.fromtimestamp(row["start"] / 1000, timezone.utc).date()
    assert (row.pop("kind"), str(row.pop("date"))) == ("day", str(day)), row
    for field in ("start", "end"):
        at = datetime.fromtimestamp(row[field] / 1000, timezone.utc)
        row[field] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {name: str(value) if name in ("amount", "cost") and value is not None else value
            for name, value in row.items()}


folder = sys.argv[1]
table = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
assert str(table.schema.field("amount").type) == "decimal128(38, 9)", table.schema
assert str(table.schema.field("start").type) == "timestamp[ms, tz=UTC]", table.schema
by_pyarrow = table.to_pylist()
for row in by_pyarrow:
    for field in ("start", "end"):
        row[field] = round(row[field].timestamp() * 1000)

columns = ", ".join(
    f'epoch_ms("{name}")' if name in ("start", "end") else f'"{name}"' for name in COLUMNS
)
files = f"{folder}/**/*.parquet"
query = f"SELECT {columns}, kind, date FROM read_parquet(?, hive_partitioning = true)"
rows = duckdb.execute(query, [files]).fetchall()
by_duckdb = [dict(zip([*COLUMNS, "kind", "date"], row)) for row in rows]

print(json.dumps({
    "pyarrow": [shown(row) for row in by_pyarrow],
    "duckdb": [shown(row) for row in by_duckdb],
}))
