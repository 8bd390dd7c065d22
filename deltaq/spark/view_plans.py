"""How Spark evaluates the views of a program: each by its rules or in full, with the tables of
state that it needs; or why it cannot. Needs no Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from deltaq.errors import InvalidConfig
from deltaq.serde.json_text import compact_json
from deltaq.views.catalog import ViewCatalog
from deltaq.views.incremental import RuledView
from deltaq.views.planning import read_sql
from deltaq.views.planning_spark import check_for_spark, spark_query, spark_type
from deltaq.views.program import View, ViewProgram
from deltaq.views.rules import NoRule, RulePlan, StateTable
from deltaq.views.tick_clock import CLOCK

_WEIGHT = {"_w": "bigint"}


@dataclass(frozen=True, slots=True)
class SparkPlans:
    """`ruled` are the views by rules, and `in_full` the SQL of the others, as Spark takes it.
    `tables` are all tables of state by name, with their columns as Spark has them in `types`, where
    those of statements are, too. `all_rows` names the table with all rows of an input or view,
    where these are needed.
    """

    ruled: Mapping[str, RuledView]
    in_full: Mapping[str, str]
    tables: Mapping[str, StateTable]
    types: Mapping[str, Mapping[str, str]]
    all_rows: Mapping[str, str]

    @property
    def digest(self) -> str:
        """What names the rules: state is of use only for those that made it."""
        said = [
            [of.name, of.build, of.change, of.merged(""), *self.types[of.name].items()]
            for of in self.tables.values()
        ]
        return hashlib.blake2b(compact_json(said).encode(), digest_size=16).hexdigest()


def plans_for_spark(
    catalog: ViewCatalog, program: ViewProgram, kept_inputs: Collection[str]
) -> SparkPlans:
    """The plans of a program; `kept_inputs` are those of which all rows are needed. Raises
    InvalidConfig, naming the view, for one that Spark cannot evaluate.
    """
    ruled, in_full = dict[str, RuledView](), dict[str, str]()
    needed = set(kept_inputs)
    for view in program.views:
        of_rules = catalog.ruled(view.name)
        sql = _checked(catalog, program, view, of_rules)
        if of_rules is None:
            in_full[view.name] = sql
            needed |= {view.name, *view.reads}
        else:
            ruled[view.name] = of_rules
    kept = RulePlan("_kept")  # no view has such a name
    all_rows = {
        name: ruled[name].all_rows if name in ruled else kept.state(catalog.relation(name).rows)
        for name in sorted(needed)
    }
    tables = {of.name: of for view in ruled.values() for of in view.plan.states}
    tables |= {of.name: of for of in kept.states}
    types = {table: rows_of(catalog.types[name]) for name, table in all_rows.items()}
    types |= {table: of for view in ruled.values() for table, of in _types(catalog, view)}
    return SparkPlans(ruled, in_full, tables, types, all_rows)


def _types(catalog: ViewCatalog, view: RuledView) -> Iterator[tuple[str, dict[str, str]]]:
    """The columns of the tables of a view's rules, which have the types of what they read."""
    tables = [of.name for of in view.plan.states] + [of.name for of in view.plan.statements]
    for table in tables:
        kinds = catalog.types_of(table).items()
        yield table, {column: spark_type(kind) or kind for column, kind in kinds}


def _checked(
    catalog: ViewCatalog, program: ViewProgram, view: View, ruled: RuledView | None
) -> str:
    """The SQL of a view as Spark takes it."""
    functions = [of.signature.name for of in program.functions]
    columns = {name: of for name, of in catalog.types.items() if name in view.reads}
    try:
        if CLOCK in view.reads:
            raise NoRule("the time of the tick")
        read_sql(view.sql, catalog.reader)
        result, is_exact = catalog.types[view.name], ruled is not None and _is_exact(ruled)
        check_for_spark(view.sql, columns, result, functions, has_exact_sums=is_exact)
        return spark_query(view.sql, columns)
    except NoRule as error:
        raise InvalidConfig(
            f"view {view.name!r} is not for Spark: {error}; or run the group with DuckDB",
            key=view.name,
        ) from None


def _is_exact(ruled: RuledView) -> bool:
    """Whether no statement calls `avg`: where all aggregates are exact sums, rules divide them."""
    branches = [of for statement in ruled.plan.statements for of in statement.branches]
    texts = (of.sql(*(at.state for at in of.lookups)) for of in branches)
    return not any("avg(" in text.lower() for text in texts)


def rows_of(types: Mapping[str, str]) -> dict[str, str]:
    """The columns of an input or view with weights, with their types in Spark. One that Spark does
    not have is null: what would read it is refused.
    """
    own = {name: spark_type(kind) or "string" for name, kind in types.items()}
    return {**own, **_WEIGHT}
