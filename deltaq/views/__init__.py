"""SQL views over topics, which never show a wrong result: each version that a reader can see equals
the SQL over the offsets that it names, and all views of a group have the same offsets.

Modules:

* `group`, `file_options`: a group of views as users see it; options in the files of a folder
* `query`, `rows_apart`, `one_result`, `program`: what the SQL of a view says, what tells its
  rows apart, and why it has no single right result, as pure functions; the views of a group in
  their order
* `view_columns`, `stored_types`: the columns of a view, and which it cannot have; their types in
  its topic, as pure functions
* `compared_types`: whether the joins of a view compare row keys without a cast
* `engine`, `inputs`, `input_names`: the views in DuckDB, in full or by rules; the topics and tables
  that they read, at a cut; which of these a name in SQL means
* `declared`, `column_text`, `decoding`, `registry_inputs`: columns that are declared for topics of
  bytes, and as text; records decoded into them; columns and values of the schema registry
* `delta_tables`: Delta tables that other programs write; deltalake is known only here
* `plain_floats`: floats in one form, where DuckDB takes different ones for equal
* `functions`, `operators`: Python functions that the SQL calls; SQL that is written by methods
* `tick_clock`: the one time of a tick, which views read
* `rules`, `planning`, `planning_parts`, `planning_names`, `planning_sums`, `planning_time`,
  `parse_trees`, `incremental`: how rows change with what they are made from; the SQL of a view as
  rules, its parts, its names, its aggregates, and the time in it; whether sqlglot reads it as
  DuckDB; such a view at work
* `state`, `runs`: the rows that rules find by key: new ones in a table, old ones in sorted files
* `checkpoints`: such state in the root, from which a new runner goes on
* `evaluation`: what a runner needs of an engine, and of the place of its state
* `catalog`, `planning_spark`: what DuckDB knows about views that another engine evaluates; their
  SQL for Spark, and what is refused there
* `modes`, `explaining`: when a view is evaluated by rules, and why not
* `ticks`, `tables`: what each tick has published; the topics of the views
* `runner`, `holding`, `health`: evaluates and publishes, tick after tick; what maintenance keeps
  for it; how far it is
* `reading`, `following`, `checking`: a cut for readers; the changes of a view; the proof
* `listing`, `graph`: the groups of a root, their lag and their end; what reads what
"""

from __future__ import annotations

from deltaq.views.checking import ViewMismatch
from deltaq.views.explaining import ViewRules
from deltaq.views.following import ViewChange
from deltaq.views.group import Views
from deltaq.views.health import ViewsHealth
from deltaq.views.operators import Selection, source
from deltaq.views.reading import ViewCut, ViewRows
from deltaq.views.ticks import Tick

__all__ = [
    "Selection",
    "Tick",
    "ViewChange",
    "ViewCut",
    "ViewMismatch",
    "ViewRows",
    "ViewRules",
    "Views",
    "ViewsHealth",
    "source",
]
