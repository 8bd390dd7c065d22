"""SQL views over topics, evaluated by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Literal

from pyspark.sql import SparkSession

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig
from deltaq.spark.native_paths import hadoop_root
from deltaq.spark.view_engine import SparkViewEngine
from deltaq.spark.view_state import StateFolder, StatePart
from deltaq.store import Store
from deltaq.views import Tick, Views
from deltaq.views.catalog import catalog
from deltaq.views.checkpoints import CheckpointList, StateCheckpoint
from deltaq.views.evaluation import SavedState
from deltaq.views.modes import Mode
from deltaq.views.planning_spark import SPARK_SETTINGS
from deltaq.views.program import ViewProgram

SPARK_VERSION = "4.2"
"""The version of Spark whose SQL is known to give what DuckDB gives."""

_INNER = "spark/"
"""The folder of the state, in that of the checkpoints of a group."""


def run_views(
    spark: SparkSession,
    group: Views,
    *,
    every: float = 60.0,
    until: Literal["now"] | None = None,
    retract_on_retention: bool = False,
) -> Tick | None:
    """Run a group of views as `Views.run` does, but evaluate them in Spark. The ticks are the same:
    a group may be run by DuckDB and by Spark in turn, and only one runner writes.

    It is for changes of millions of rows: a tick takes seconds, however small it is. Each view is
    evaluated by rules, where there are some and its mode is not `full`. What joins and groups need
    is kept in the root, in Parquet that Spark writes beside the ticks, so the session must be able
    to write there. The driver reads the inputs, and publishes what has changed.

    Raises as `Views.run`, and InvalidConfig for a version of Spark other than `SPARK_VERSION`, and
    for a view whose rows Spark might not have as DuckDB has them.
    """
    if not spark.version.startswith(f"{SPARK_VERSION}."):
        raise InvalidConfig(
            f"views are evaluated by Spark {SPARK_VERSION}, and this is Spark {spark.version}: "
            "install deltaq[spark,views], or run the group with DuckDB",
            key="spark",
        )
    return group.run_with(
        lambda program, modes, store, clock: SparkEvaluator(
            spark, program, modes, store, clock, keeps_inputs=retract_on_retention
        ),
        every=every,
        until=until,
        retract_on_retention=retract_on_retention,
    )


class SparkEvaluator:
    """Evaluates with Spark. See `Evaluator`. `keeps_inputs`: records will be removed from inputs.

    Raises InvalidConfig for a root that no other process reaches.
    """

    def __init__(
        self,
        spark: SparkSession,
        program: ViewProgram,
        modes: Mapping[str, Mode],
        store: Store,
        clock: Clock,
        *,
        keeps_inputs: bool,
    ) -> None:
        if store.url.startswith("memory:"):
            reason = "Spark does not reach a root in memory: give the group another root"
            raise InvalidConfig(reason, key="bootstrap.servers")
        self._spark = spark
        self._program = program
        self._modes = modes
        self._clock = clock
        self._keeps_inputs = keeps_inputs
        self._list = CheckpointList(store, clock, program.group, _INNER)
        self._address = f"{hadoop_root(store.url, {})}/{self._list.folder}"
        self._open = ExitStack()

    def open(self) -> SparkViewEngine:
        """See `Evaluator`."""
        session = own_session(self._spark)
        return SparkViewEngine(
            session,
            self._program,
            self._open.enter_context(catalog(self._program, self._modes, self._clock)),
            StateFolder(session, self._address, self._clock),
            self._keeps_inputs,
        )

    def close(self) -> None:
        """See `Evaluator`."""
        self._open.close()

    def is_outgrown(self, _engine: SparkViewEngine) -> bool:
        """See `Evaluator`. Rules and their state are what Spark is for."""
        return False

    def is_save_due(self) -> bool:
        """See `Evaluator`. The state of each tick is there: what names it costs one object."""
        return True

    def save(self, engine: SparkViewEngine, tick: Tick) -> None:
        """See `Evaluator`."""
        checkpoint = StateCheckpoint(tick.number, engine.saved())
        self._list.put(checkpoint)
        kept = {StatePart.of_text(run).name for run in checkpoint.runs}
        self._list.remove_others(checkpoint, lambda name: name.partition("/")[0] in kept)

    def last(self, tick: Tick) -> SavedState[SparkViewEngine] | None:
        """See `Evaluator`."""
        found = self._list.last(tick)
        if found is None:
            return None
        at, checkpoint = found
        # The state has all rows that are needed.
        return SavedState(at, lambda views, _fill: views.resume(checkpoint.views))


def own_session(spark: SparkSession) -> SparkSession:
    """A session for views, with settings and tables of its own, in the same Spark."""
    session = spark.newSession()
    shuffle = "spark.sql.shuffle.partitions"
    session.conf.set(shuffle, spark.conf.get(shuffle) or "200")
    for name, value in SPARK_SETTINGS.items():
        session.conf.set(name, value)
    return session
