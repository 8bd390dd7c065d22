"""The lifecycle rule for interrupted uploads takes its place beside the rules of others, which stay
as they are.
"""

from __future__ import annotations

import re

import pytest

from deltaq.store.bucket_lifecycle import rule_id, with_abort_rule

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
RULE = (
    "<Rule><ID>{id}</ID><Filter><Prefix>{prefix}</Prefix></Filter><Status>{status}</Status>"
    "<AbortIncompleteMultipartUpload><DaysAfterInitiation>{days}</DaysAfterInitiation></AbortIncompleteMultipartUpload>"
    "</Rule>"
)
# Of elements that MinIO's SDK does not know: written back without its sizes, this would delete
# everything.
OTHERS = (
    "<Rule><ID>small</ID><Filter><And><Prefix>logs/</Prefix><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan>"
    "<ObjectSizeLessThan>1024</ObjectSizeLessThan></And></Filter><Status>Enabled</Status>"
    "<Expiration><Days>3</Days></Expiration></Rule>"
    "<Rule><ID>all</ID><Filter></Filter><Status>Enabled</Status><Expiration>"
    "<ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration></Rule>"
)


def configuration(*rules: str, space: str = SPACE) -> bytes:
    return f"<LifecycleConfiguration{space}>{''.join(rules)}</LifecycleConfiguration>".encode()


def ours(prefix: str, days: int = 7) -> str:
    where = f"{prefix}/" if prefix else ""
    return RULE.format(id=rule_id(prefix), prefix=where, status="Enabled", days=days)


def text(xml: bytes | None) -> str:
    """XML as far as its meaning goes: without declaration, and with one spelling of empty
    elements.
    """
    assert xml is not None
    return re.sub(r"<(\w+)></\1>", r"<\1 />", re.sub(r"<\?xml.*?\?>\s*", "", xml.decode()))


def test_a_bucket_without_rules_gets_one_for_the_root() -> None:
    assert text(with_abort_rule(None, "prod/a")) == text(configuration(ours("prod/a")))


def test_a_root_that_is_a_whole_bucket_gets_a_rule_for_all_of_it() -> None:
    assert text(with_abort_rule(None, "")) == text(configuration(ours("")))


@pytest.mark.parametrize("space", [SPACE, ""])
def test_foreign_rules_stay_unchanged_with_all_their_elements(space: str) -> None:
    found = with_abort_rule(configuration(OTHERS, space=space), "prod")
    assert text(found) == text(configuration(OTHERS, ours("prod"), space=space))


def test_a_second_run_changes_nothing() -> None:
    once = with_abort_rule(configuration(OTHERS), "prod")
    assert with_abort_rule(once, "prod") is None
    twice = with_abort_rule(once, "staging")
    assert text(twice) == text(configuration(OTHERS, ours("prod"), ours("staging")))


@pytest.mark.parametrize("prefix", ["", "prod/", "pro"])
def test_an_equivalent_foreign_rule_is_enough(prefix: str) -> None:
    there = RULE.format(id="theirs", prefix=prefix, status="Enabled", days=1)
    assert with_abort_rule(configuration(there), "prod") is None


def test_an_equivalent_foreign_rule_in_the_older_form_is_enough() -> None:
    there = RULE.format(id="theirs", prefix="prod/", status="Enabled", days=1)
    assert with_abort_rule(configuration(re.sub("</?Filter>", "", there)), "prod") is None


@pytest.mark.parametrize(
    "there",
    [
        RULE.format(id="theirs", prefix="prod/topics/", status="Enabled", days=1),
        RULE.format(id="theirs", prefix="other/", status="Enabled", days=1),
        RULE.format(id="theirs", prefix="prod/", status="Disabled", days=1),
        re.sub("<Prefix>.*</Prefix>", "<Tag><Key>a</Key><Value>b</Value></Tag>", RULE).format(
            id="theirs", status="Enabled", days=1
        ),
        re.sub(
            "<Prefix>.*</Prefix>", "<ObjectSizeGreaterThan>5</ObjectSizeGreaterThan>", RULE
        ).format(id="theirs", status="Enabled", days=1),
    ],
    ids=["narrower", "elsewhere", "disabled", "by tag", "by size"],
)
def test_a_foreign_rule_that_does_not_cover_the_root_is_not_enough(there: str) -> None:
    assert text(with_abort_rule(configuration(there), "prod")) == text(
        configuration(there, ours("prod"))
    )


def test_our_own_rule_keeps_changes_by_an_administrator() -> None:
    disabled = ours("prod", days=30).replace("Enabled", "Disabled")
    assert with_abort_rule(configuration(disabled), "prod") is None


def test_the_id_of_the_rule_has_at_most_the_length_that_s3_allows() -> None:
    ids = {rule_id("x" * length) for length in (1, 200, 300, 900)}
    assert len(ids) == 4
    assert max(map(len, ids)) <= 255


def test_an_unreadable_configuration_is_not_replaced() -> None:
    with pytest.raises(ValueError, match="not valid XML"):
        with_abort_rule(b"<html><p>proxy</html>", "prod")
