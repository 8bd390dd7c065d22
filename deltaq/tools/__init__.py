"""Work with whole topics from Python: what the `deltaq` command does, as functions on `Topic`
handles with a root.

Modules:

* `positions`, `reading`, `writing`, `records`, `files`, `frames`, `pandas_frames`, `spreadsheets`,
  `registry_values`: whole topics from Python: where reading begins and ends, records read, written,
  as plain values, from files, and as tables of other libraries, with values of the schema registry
  decoded; openpyxl is known only in `spreadsheets`, polars in `frames`, pandas in `pandas_frames`
* `file_rows`, `json_lines`, `csv_files`, `cells`, `workbook_limits`: rows of any file as messages,
  by one set of rules; lines of JSON and CSV as rows; cells as values, and back; what a spreadsheet
  may have before openpyxl parses it
* `model_rows`: rows of files and frames as the model of a handle writes them
* `cost`, `prices`, `speed`: what rates cost a day on an object store, and the price lists, as pure
  functions; a short measurement of a root
* `doctor`, `rates`: `deltaq doctor`: whether a root is sound, down to its data files; live rates
* `sql`, `duckdb_tables`: SQL over topics as tables, with duckdb, which is known only in
  `duckdb_tables`
* `copying`, `copy_plan`: copies of topics in other roots; what a copy lacks, as pure functions
* `redrive`: dead letters copied back to their topics, each once
* `statistics`, `differences`, `offset_resets`, `transactions`: what a topic holds, how two differ,
  planned resets of a group, what each `transactional.id` is doing
"""

from __future__ import annotations

from deltaq.tools.copying import CopyProgress, CopyReport, copy
from deltaq.tools.cost import (
    Cost,
    GroupLoad,
    ShareGroupLoad,
    TopicLoad,
    estimate,
    load_of,
    queue_load_of,
)
from deltaq.tools.differences import Difference, diff
from deltaq.tools.doctor import Finding, examine
from deltaq.tools.files import load_file
from deltaq.tools.frames import (
    from_arrow,
    from_file,
    from_pandas,
    from_polars,
    to_arrow,
    to_csv,
    to_pandas,
    to_polars,
    to_xlsx,
)
from deltaq.tools.offset_resets import (
    PlannedReset,
    Shift,
    commit_resets,
    committed_offsets,
    plan_resets,
)
from deltaq.tools.positions import Last, Place, offset_ranges, parse_place
from deltaq.tools.prices import S3_STANDARD, PriceList
from deltaq.tools.reading import first, foldl, last, matching, messages
from deltaq.tools.records import Record, records_of
from deltaq.tools.speed import Speed, measure_speed
from deltaq.tools.sql import from_duckdb, sql, to_duckdb
from deltaq.tools.statistics import MessageSize, TopicStats, stats
from deltaq.tools.writing import Sending, transform

__all__ = [
    "S3_STANDARD",
    "CopyProgress",
    "CopyReport",
    "Cost",
    "Difference",
    "Finding",
    "GroupLoad",
    "Last",
    "MessageSize",
    "Place",
    "PlannedReset",
    "PriceList",
    "Record",
    "Sending",
    "ShareGroupLoad",
    "Shift",
    "Speed",
    "TopicLoad",
    "TopicStats",
    "commit_resets",
    "committed_offsets",
    "copy",
    "diff",
    "estimate",
    "examine",
    "first",
    "foldl",
    "from_arrow",
    "from_duckdb",
    "from_file",
    "from_pandas",
    "from_polars",
    "last",
    "load_file",
    "load_of",
    "matching",
    "measure_speed",
    "messages",
    "offset_ranges",
    "parse_place",
    "plan_resets",
    "queue_load_of",
    "records_of",
    "sql",
    "stats",
    "to_arrow",
    "to_csv",
    "to_duckdb",
    "to_pandas",
    "to_polars",
    "to_xlsx",
    "transform",
]
