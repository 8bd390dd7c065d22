"""Texts that a page, a terminal or a program may take for markup or commands, and a root that is
full of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.delta.actions import Metadata, encode_entry, parse_entry
from deltaq.groups.log import GroupLog
from deltaq.groups.state import NO_MEMBER
from deltaq.names import log_entry, topic_log
from deltaq.store import open_store
from deltaq.transactions.log import TransactionLog
from tests.doubles.groups import FOREVER, join, new_member

MARKUP = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    "</pre><script>alert(1)</script>",
    "</td></tr></table><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "<!--",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<iframe src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<form action=//evil.example><input name=token>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{display:none}</style>",
    "<object data=//evil.example>",
    "<embed src=//evil.example>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<template><script>alert(1)</script></template>",
    "<plaintext>",
    "<xmp><script>alert(1)</script>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<body onload=alert(1)>",
    "<b style=position:fixed;inset:0>covers everything</b>",
    "{{ 7 * 7 }}",
    "{% for x in range(9) %}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "${7*7}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "javascript:alert(1)",
    "data: hostile\n\nevent: message\ndata: forged",
    "\r\nSet-Cookie: stolen=1\r\n\r\n<script>",
    "\x00\x01\x1b[31mred\x1b[0m",
    "\u202egnp.exe",
    "\u2066\u2069\u200b\ufeff",
    "\ud7ff\ue000\U0010ffff",
    "a" * 3_000,
    "<" * 3_000,
    "\n" * 3_000,
    "[" * 3_000,
    '{"<img src=x onerror=alert(1)>": "<script>alert(1)</script>"}',
)


def column_names(payloads: Sequence[str]) -> list[str]:
    """The payloads as different names of columns, without what Delta forbids in them."""
    names = {
        re.sub(r"[ ,;{}()=\x00-\x1f\x7f]", "", payload)[:200].lstrip("_") for payload in payloads
    }
    return sorted({name.lower(): name for name in names if name}.values())


def write_columns(root: str, topic: str, names: Sequence[str]) -> None:
    """Write a typed topic with columns of these names, each of which has a field of the same name,
    and one message.
    """
    columns = pa.schema([(name, pa.struct([(name, pa.string())])) for name in names])
    made = Topic(topic, columns, bootstrap_servers=root).create()
    with Producer(bootstrap_servers=root, maintenance_enable=False) as producer:
        producer.produce(made, {name: {name: "x"} for name in names})


def write_assignors(root: str, payloads: Sequence[str]) -> None:
    """Write a group with a member for each payload, which is the name of its assignor."""
    store = open_store(root)
    Topic("t", store=store).create()
    for number, payload in enumerate(payloads):
        log = GroupLog(store, f"assignor-{number}")
        join(log, "member", new_member())
        log.change("JOIN", NO_MEMBER, partial(replace, protocol=payload), FOREVER)


def write_names(root: str, payloads: Sequence[str]) -> None:
    """Write a group `g` with a member for each payload, which is its client id, host and instance
    id, a topic for each, which has it as the value of a setting, and a transactional id, which
    has it inside, and as its client id. No client of deltaq would write most of these.
    """
    store = open_store(root)
    Topic("t", store=store).create()
    log = GroupLog(store, "g")
    for number, payload in enumerate(payloads):
        join(
            log,
            f"member-{number}",
            new_member(payload, host=payload, instance_id=f"{payload}{number}"),
        )
        ids = TransactionLog(store, f"{number:03}{payload[:80]}", SYSTEM_CLOCK, payload)
        ids.begin(60_000, None, FOREVER)
        topic = f"settings-{number}"
        Topic(topic, store=store).create()
        key = log_entry(topic_log(topic), 0)
        entry = parse_entry(store.get(key), 0, key)
        assert entry.info is not None
        actions = [
            replace(action, configuration={**action.configuration, "deltaq.retention.ms": payload})
            if isinstance(action, Metadata)
            else action
            for action in entry.actions
        ]
        store.put(key, encode_entry(entry.info, actions))
