"""`deltaq doctor`, `maintain` and `sql`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.delta.actions import CommitInfo, DomainMetadata
from deltaq.delta.log import DeltaLog, Draft
from deltaq.groups.offsets import METADATA_DOMAIN
from deltaq.names import group_folder
from deltaq.store import open_store, serve_memory_store
from deltaq.store.memory import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.tools import Finding, examine
from deltaq.tools.rates import RootSample, RootWatch, TopicCount, TopicRate, topic_rates
from deltaq.topics.holds import Hold, put_hold
from tests.unit.cli.conftest import ROOT, Shell

T0 = 1_700_000_000_000


@pytest.fixture
def orders(deltaq: Shell) -> Shell:
    """A topic with a message in each of three files."""
    deltaq("topics create orders -c retention.ms=-1")
    with Producer(bootstrap_servers=ROOT) as producer:
        for number in range(3):
            producer.produce(
                "orders", b'{"amount": %d}' % number, key=b"k%d" % number, timestamp=T0 + number
            )
            producer.flush()
    return deltaq


def _findings(shell: Shell) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in shell("doctor -o json").json}


def test_a_sound_root_is_examined(orders: Shell) -> None:
    ended = orders("doctor")
    assert (ended.status, ended.errors) == (0, "")
    lines = ended.output.splitlines()
    assert lines[0].split() == ["CHECK", "STATE", "FOUND", "REMEDY"]
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "versions", "store", "create if absent", "permissions", "clock", "topics", "groups",
        "transactions", "holds", "files", "records", "maintenance",
    ]  # fmt: skip
    found = _findings(orders)
    assert {finding["state"] for check, finding in found.items() if check != "maintenance"} == {
        "ok"
    }
    assert found["topics"]["found"] == "1 topic can be read"
    assert found["files"]["found"] == "all belong to a topic"


def test_an_empty_root_is_said_to_have_no_topics() -> None:
    found = _examined()
    assert (found["topics"].found, found["groups"].found) == (
        "the root has no topic",
        "the root has no group",
    )


def test_what_is_broken_ends_with_status_one_and_says_what_to_do(orders: Shell) -> None:
    store = open_store(ROOT)
    store.put("topics/bad/_delta_log/00000000000000000000.json", b"{}")
    store.put("groups/bad/_delta_log/00000000000000000000.json", b"{}")
    store.put("topics/orders/0123456789abcdef0123456789abcdef.parquet", b"x" * 70)
    ended = orders("doctor")
    assert ended.status == 1
    found = _findings(orders)
    assert (found["topics"]["state"], found["groups"]["state"]) == ("wrong", "wrong")
    assert "bad: topics/bad/_delta_log/" in found["topics"]["found"]
    assert "remove the folder of the topic, and run deltaq restore" in found["topics"]["remedy"]
    assert found["files"]["found"] == "1 with 70 bytes are in no topic"


def test_data_files_that_are_lost_or_cut_are_found(orders: Shell) -> None:
    store = open_store(ROOT)
    lost, cut, _ = [
        entry.key for entry in store.list("topics/orders/") if entry.key.endswith(".parquet")
    ]
    size = len(store.get(cut))
    store.delete(lost)
    store.put(cut, b"x" * 70)
    assert orders("doctor").status == 1
    found = _findings(orders)["files"]
    assert found["state"] == "wrong"
    assert sorted(found["found"].split("; ")) == sorted(
        [f"{lost} is missing", f"{cut} has 70 bytes instead of {size:,}"]
    )


def _examined(*rules: Rule, clock: ManualClock | None = None) -> dict[str, Finding]:
    manual = clock or ManualClock(auto_advance=True)
    store = FaultyStore(MemoryStore("faulty", manual), *rules, clock=manual)
    return {finding.check: finding for finding in examine(store, manual)}


def test_holds_that_are_not_renewed_are_named() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("held", clock)

    def finding() -> Finding:
        return next(found for found in examine(store, clock) if found.check == "holds")

    store.put("topics/t/_delta_log/00000000000000000000.json", b"{}")
    put_hold(store, "t", Hold("views", "id", (1,), None, clock.time_ms()))
    put_hold(store, "t", Hold("other", "id", (1,), None, clock.time_ms()))
    assert (finding().state, finding().found) == ("ok", "2 holds, renewed in time")
    clock.advance(2 * 24 * 3600)
    put_hold(store, "t", Hold("other", "id", (1,), None, clock.time_ms()))
    assert (finding().state, finding().found) == (
        "due",
        "topics/t/_deltaq/holds/views.json was not renewed for 2 days",
    )
    assert "removes it after 7 days" in finding().remedy


def test_records_that_are_kept_for_a_holder_are_not_due(deltaq: Shell) -> None:
    deltaq("topics create orders -c cleanup.policy=compact")
    with Producer(bootstrap_servers=ROOT, maintenance_enable=False) as producer:
        producer.produce("orders", b"1", key=b"k")
    topic_id = deltaq("topics describe orders -o json").json["topic_id"]
    put_hold(open_store(ROOT), "orders", Hold("views", topic_id, (0,), None, T0))
    assert "records are kept for 'views'" in deltaq("maintain --dry-run").output
    assert _findings(deltaq)["maintenance"]["found"] == "nothing is due"


def test_a_store_that_ignores_create_if_absent_is_found() -> None:
    finding = _examined(Rule("create", "*", Fault.ignored_condition(), times=None))[
        "create if absent"
    ]
    assert (finding.state, "ignores create-if-absent" in finding.found) == ("wrong", True)


def test_a_reader_without_permission_to_write_learns_what_it_can_do() -> None:
    found = _examined(Rule("write", "*", Fault.refused(), times=None))
    assert (found["create if absent"].state, found["permissions"].state) == ("due", "due")
    assert "producers need permission to write" in found["create if absent"].remedy
    assert found["clock"].state == "due"
    assert "wrong" not in {finding.state for finding in found.values()}


@pytest.mark.parametrize("fault", [Fault.no_space(), Fault.error_before("no answer")])
def test_a_store_that_takes_no_write_is_wrong_unless_the_credentials_are_the_cause(
    fault: Fault,
) -> None:
    found = _examined(Rule("write", "*", fault, times=None))
    states = {
        check: found[check].state for check in ("store", "create if absent", "permissions", "clock")
    }
    assert states == {
        "store": "ok",
        "create if absent": "wrong",
        "permissions": "wrong",
        "clock": "wrong",
    }


def test_the_remedy_for_a_topic_that_may_not_be_read_is_not_its_removal(orders: Shell) -> None:
    faults = FaultyStore(open_store(ROOT), Rule("get", "topics/*", Fault.refused(), times=None))
    found = {finding.check: finding for finding in examine(faults, ManualClock(auto_advance=True))}
    assert (found["topics"].state, found["topics"].remedy) == (
        "wrong",
        "correct what the store reports",
    )


def test_a_store_that_does_not_answer_is_the_last_finding() -> None:
    found = _examined(Rule("*", "*", Fault.error_before(), times=None))
    assert list(found) == ["versions", "store"]
    assert found["store"].state == "wrong"


def test_maintenance_is_planned_and_done(orders: Shell) -> None:
    assert orders("maintain --dry-run").printed("")
    orders("topics alter orders --delete-config retention.ms")  # the messages are years old
    assert "orders: remove" in orders("maintain --dry-run").output
    assert _findings(orders)["maintenance"]["state"] == "due"
    assert "run: deltaq maintain --once" in _findings(orders)["maintenance"]["remedy"]


def test_a_maintainer_ends_at_sigterm_as_a_service_does(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "deltaq.cli", "maintain", "--root", str(tmp_path)]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("there are no topics")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_root_is_set_up(deltaq: Shell, tmp_path: Path) -> None:
    root = tmp_path / "new"
    assert deltaq(f"setup --root {root}").printed(f"""
        file://{root}
          bucket: made
          rule for incomplete uploads: not needed
        """)
    assert deltaq(f"setup --root {root} -o json").json["bucket"] == "there"
    assert deltaq("setup --root gs://bucket").status == 2


def test_rates_and_lag_are_shown_live(orders: Shell) -> None:
    orders("groups reset-offsets billing --topic orders --to 1 --execute")
    orders.clock = ManualClock(auto_advance=True)
    assert orders("top --rounds 2").printed("""
        TOPIC   MESSAGES  MESSAGES/S  COMMITS/S
        orders         3
        GROUP    LAG  LAG/S
        billing    2

        TOPIC   MESSAGES  MESSAGES/S  COMMITS/S
        orders         3           0          0
        GROUP    LAG  LAG/S
        billing    2      0

        """)
    assert orders("top --rounds 1 -o json").json["groups"] == [
        {"group": "billing", "lag": 2, "lag_per_s": None}
    ]


def test_live_rates_go_on_after_a_look_that_the_store_does_not_answer(orders: Shell) -> None:
    faults = FaultyStore(open_store(ROOT))
    serve_memory_store("cli", faults)

    class Failing(ManualClock):
        """The store does not answer after the first pause, and does after the second one."""

        pauses = 0

        def sleep(self, seconds: float) -> None:
            self.pauses += 1
            faults.clear()
            if self.pauses == 1:
                faults.add(Rule("list_folders", "*", Fault.error_before("no route"), times=None))
            super().sleep(seconds)

    orders.clock = Failing(auto_advance=True)
    ended = orders("top --rounds 3 -o json")
    looks = [json.loads(line) for line in ended.output.splitlines()]
    assert (ended.status, ended.errors) == (0, "")
    assert [look["topics"][0]["messages"] for look in looks] == [3, 3, 3]
    assert [look["topics"][0]["messages_per_s"] for look in looks] == [None, None, 0]
    assert [list(look["errors"]) for look in looks] == [[], [ROOT], []]
    faults.add(Rule("list_folders", "*", Fault.error_before("no route"), times=None))
    assert "no route" in orders("top --rounds 3").errors


def test_on_a_terminal_the_tables_fill_the_screen_and_give_it_back(
    orders: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    orders("groups reset-offsets billing --topic orders --to 1 --execute")
    orders.clock = ManualClock(auto_advance=True)
    ended = orders("top --rounds 3", terminal=True)
    assert (ended.status, ended.errors) == (0, "")
    # The other screen, until its end.
    before, screen, after = re.split(r"\x1b\[\?1049[hl]", ended.output)
    assert (before, re.sub(r"\x1b\[\?25[hl]|\x1b\[H", "", after)) == ("", "")
    # Each begins at the top left.
    frames = [frame for frame in screen.split("\x1b[H") if "TOPIC" in frame]
    assert len(frames) == 3
    lines = [
        line.split()
        for line in re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", frames[-1]).splitlines()
        if line.strip()
    ]
    assert lines == [
        ["TOPIC", "MESSAGES", "MESSAGES/S", "COMMITS/S"],
        ["orders", "3", "0", "0"],
        ["GROUP", "LAG", "LAG/S"],
        ["billing", "2", "0"],
    ]


def test_rates_follow_from_two_looks_at_a_root() -> None:
    before = RootSample(10.0, {"a": TopicCount(5, 5, 1, "x"), "b": TopicCount(9, 9, 9, "x")}, {})
    now = RootSample(
        14.0,
        {
            "a": TopicCount(7, 13, 3, "x"),
            "b": TopicCount(1, 1, 11, "y"),
            "c": TopicCount(0, 0, 0, "z"),
        },
        {},
    )
    assert topic_rates(before, now) == [
        TopicRate("a", 7, 2.0, 0.5),
        TopicRate("b", 1, None, None),  # created again
        TopicRate("c", 0, None, None),
    ]


def test_a_group_with_damaged_offsets_does_not_hide_the_others(orders: Shell) -> None:
    for group in ("billing", "bad"):
        orders(f"groups reset-offsets {group} --topic orders --to 1 --execute")
    log = DeltaLog(open_store(ROOT), group_folder("bad"))
    damage = Draft(CommitInfo("forged", 0, "TEST"), [DomainMetadata(METADATA_DOMAIN, "{")])
    log.load()
    log.commit(lambda _: damage, log.clock.monotonic() + 60)
    sample = RootWatch(open_store(ROOT)).sample()
    assert sample.lags == {"billing": 2}
    assert [(name, "cannot be parsed" in reason) for name, reason in sample.errors.items()] == [
        ("group bad", True)
    ]


def test_topics_are_queried_as_tables(orders: Shell) -> None:
    query = (
        "select _offset, decode(_key) as k, (decode(value)->>'$.amount')::int * 2 as twice from "
        "orders order by 1"
    )
    assert orders(f'sql "{query}"').printed("""
        _offset  k   twice
        0        k0  0
        1        k1  2
        2        k2  4
        """)
    joined = (
        "select count(*) as n, max(a._timestamp) as t from orders a join ORDERS b using (_offset)"
    )
    assert orders(f"sql '{joined}' -o json").json == [
        {"n": 3, "t": "2023-11-14T22:13:20.002000+00:00"}
    ]
    assert orders("sql 'select count(*) as n from orders' --from -1 -o json").json == [{"n": 1}]


def test_columns_of_typed_topics_are_columns_of_tables(deltaq: Shell) -> None:
    columns = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())})
    trades = Topic("trades.v-2", columns, conf={"bootstrap.servers": ROOT}).create()
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce(trades, {"id": 7, "tags": ["a", "b"]})
    found = deltaq("""sql 'select id, tags[1] as tag, _partition from "trades.v-2"' -o json""").json
    assert found == [{"id": 7, "tag": "a", "_partition": 0}]


def test_results_of_every_kind_are_valid_json_with_every_column(orders: Shell) -> None:
    query = (
        "select 1 as a, 2 as a, 3 as a_1, 4 as a, 'nan'::float as f, map {'k': 1} as m, "
        "'\\xff'::blob as b"
    )
    row = {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4, "f": "NaN", "m": {"k": 1}, "b": {"base64": "/w=="}}
    assert orders(f'sql "{query}" -o json').json == [row]
    assert orders(f'sql "{query}"').output.splitlines()[1].split() == [
        *"1234",
        "NaN",
        "{'k':",
        "1}",
        "\\xff",
    ]


def test_a_result_that_cannot_be_shown_is_named_and_the_others_are_printed(orders: Shell) -> None:
    ended = orders(
        """sql "select * from (values (1, 'infinity'::timestamp), (2, null)) t(n, t)" -o json"""
    )
    assert (ended.status, ended.json) == (0, [{"n": 1, "t": None}, {"n": 2, "t": None}])
    reason = "column 't' is outside the years 1 to 9999"
    assert ended.errors == f"deltaq: row 1: the value cannot be shown: {reason}\n"


def test_a_query_that_is_refused_is_explained(orders: Shell) -> None:
    assert orders("sql ''").refused("DuckDB: no statement", 2)
    assert orders("sql '; -- select 1'").refused("DuckDB: no statement", 2)
    assert orders("sql 'selec 1'").refused(
        'DuckDB: syntax error at or near "selec" at character 1', 2
    )
    assert "Only SELECT statements" in orders("sql 'drop table orders'").errors
    assert "Table with name nothing does not exist" in orders("sql 'select * from nothing'").errors


def test_without_duckdb_the_command_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['duckdb'] = None; from deltaq.cli.program import run; "
        f"sys.exit(run(['sql', 'select 1', '--root', {str(tmp_path)!r}]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        2,
        "deltaq: SQL needs the extra [sql]: pip install 'deltaq[sql]'\n",
    )
