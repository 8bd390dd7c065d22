"""Adds the lifecycle rule that aborts interrupted uploads to a bucket's configuration. Pure
functions.

The configuration is edited as XML: a typed model would drop elements that it does not know, such as
a filter by size, and the rule would then delete more objects than intended.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from deltaq.store.bucket_policies import shortened

ABORT_AFTER_DAYS = 7
"""Age at which a multipart upload counts as interrupted. A running upload takes minutes."""

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_ID_LENGTH = 255


def rule_id(prefix: str) -> str:
    """The id of the rule for the root below `prefix`."""
    where = f" below {prefix}/" if prefix else ""
    return shortened(f"deltaq: abort incomplete uploads{where}", _ID_LENGTH)


def with_abort_rule(configuration: bytes | None, prefix: str) -> bytes | None:
    """A bucket's lifecycle configuration (None if it has none) with a rule that aborts incomplete
    multipart uploads.

    None if an enabled rule already covers the root's `prefix`, or if a rule with the same id
    exists, which an administrator may have disabled. ValueError if the configuration cannot be
    read.
    """
    if configuration is None:
        root = ET.Element(f"{{{NAMESPACE}}}LifecycleConfiguration")
    else:
        try:
            root = ET.fromstring(configuration)  # noqa: S314 - from the bucket's server, and expat limits expansion
        except ET.ParseError as error:
            raise ValueError(f"the lifecycle configuration is not valid XML: {error}") from None
    space = root.tag[: root.tag.find("}") + 1]
    rules = root.findall(f"{space}Rule")
    wanted = rule_id(prefix)
    if any(rule.findtext(f"{space}ID") == wanted or _aborts(rule, space, prefix) for rule in rules):
        return None
    rule = ET.SubElement(root, f"{space}Rule")
    ET.SubElement(rule, f"{space}ID").text = wanted
    ET.SubElement(ET.SubElement(rule, f"{space}Filter"), f"{space}Prefix").text = (
        f"{prefix}/" if prefix else ""
    )
    ET.SubElement(rule, f"{space}Status").text = "Enabled"
    abort = ET.SubElement(rule, f"{space}AbortIncompleteMultipartUpload")
    ET.SubElement(abort, f"{space}DaysAfterInitiation").text = str(ABORT_AFTER_DAYS)
    return bytes(ET.tostring(root, encoding="utf-8", default_namespace=space.strip("{}") or None))


def _aborts(rule: ET.Element, space: str, prefix: str) -> bool:
    """Whether the rule aborts the incomplete uploads of all objects below `prefix`."""
    if (
        rule.findtext(f"{space}Status") != "Enabled"
        or rule.find(f"{space}AbortIncompleteMultipartUpload") is None
    ):
        return False
    chosen = rule.find(f"{space}Filter")
    if chosen is None:  # the older form: the prefix is an element of the rule
        chosen = rule
    elif any(element.tag != f"{space}Prefix" for element in chosen):
        return False
    below = f"{prefix}/" if prefix else ""
    return below.startswith(chosen.findtext(f"{space}Prefix") or "")
