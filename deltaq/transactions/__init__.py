"""Transactions: what one producer writes to several topics, and commits as offsets of groups,
together or not at all.

A transaction is *decided* by one entry in the log of its `transactional.id`, and *published* by
entries of the topics and groups, which any process may write.

Modules:

* `state`, `log`: what the log of a `transactional.id` says: its epoch, its newest transaction and
  decision; the entries that change it
* `publication`: the entries of topics and groups that make a decided transaction visible
* `cut`: offsets of several topics, none of which splits a transaction
* `resolution`: a transaction of another process is published or aborted, because someone needs its
  outcome
"""

from __future__ import annotations
