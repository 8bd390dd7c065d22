"""deltaq answers as Kafka was observed to, except where the guide to migration says otherwise."""

from __future__ import annotations

import pytest

from tests.fidelity import __main__ as command
from tests.fidelity.answers import normalised, paths_that_differ, value_at
from tests.fidelity.differences import DIFFERENCES, rows_of_guide
from tests.fidelity.observations import NOT_APPLICABLE, OBSERVED, OF_GROUPS
from tests.fidelity.programs import DOCUMENTED, PROGRAMS
from tests.fidelity.session import deltaq_at, play

JUSTIFIED = {path for paths in DIFFERENCES.values() for path in paths}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_answers_differ_from_the_observed_ones_only_where_the_guide_says_so(name, memory_root):
    found = play(PROGRAMS[name], deltaq_at(memory_root))
    different = set(paths_that_differ(OBSERVED[name], found, name))
    assert different == {path for path in JUSTIFIED if path.split("/")[0] == name}


def test_every_row_of_the_guide_is_a_difference_and_every_difference_has_a_row():
    general = set[str]()
    for heading in ("Producers, consumers and topics", "Transactions"):
        rows = set(rows_of_guide(heading))
        assert rows
        assert rows <= DIFFERENCES.keys()
        general |= rows
    others = {*rows_of_guide("Consumer groups"), *rows_of_guide("Share groups")}
    assert DIFFERENCES.keys() - general <= others


def test_every_observation_is_compared_once_or_not_applicable():
    assert OBSERVED.keys() == PROGRAMS.keys()
    asked = OBSERVED.keys() - DOCUMENTED
    assert (
        len({*asked, *OF_GROUPS, *NOT_APPLICABLE})
        == len(asked) + len(OF_GROUPS) + len(NOT_APPLICABLE)
        == 73
    )
    assert len(DOCUMENTED) >= 90


def test_the_command_fails_if_an_answer_is_not_the_observed_one(monkeypatch, capsys):
    assert command.main(["watermark_empty"]) == 0
    assert "1 played: 1 equal" in capsys.readouterr().out
    monkeypatch.setitem(OBSERVED, "watermark_empty", {"query": [0, 1], "cached": [-1001, -1001]})
    assert command.main(["watermark_empty"]) == 1
    assert "watermark_empty/query/1: 1 was observed, not 0" in capsys.readouterr().out


def test_the_command_fails_if_a_justified_difference_is_gone(monkeypatch, capsys):
    monkeypatch.setitem(DIFFERENCES, "a row", ("watermark_empty/query/0",))
    assert command.main(["watermark_empty"]) == 1
    assert "not as justified: watermark_empty/query/0" in capsys.readouterr().out


def test_differences_are_found_at_every_depth():
    observed = {"a": [1, {"b": 2}], "c": None, "d": [1]}
    found = {"a": [1, {"b": 3}], "d": [1, 2], "e": 0}
    assert list(paths_that_differ(observed, found, "x")) == ["x/a/1/b", "x/c", "x/d", "x/e"]
    assert [value_at(found, path) for path in ("x/a/1/b", "x/c", "x/d")] == [3, None, [1, 2]]
    assert list(paths_that_differ([1], [True], "x")) == ["x/0"]


def test_names_lose_their_prefix_and_unknown_objects_are_refused():
    assert normalised(["run1-12-a.b", b"\xe9", (1, None)], "run1-") == ["a.b", "é", [1, None]]
    with pytest.raises(TypeError, match="cannot hold a object"):
        normalised(object(), "run1-")
