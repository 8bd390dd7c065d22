"""Maintenance of topics, groups, transactional ids and the schema registry: checkpoints, log
clean-up, retention, compaction, and removal of orphan files.

It bounds the size of a topic and the time to open it, whatever the topic's age. Producers and
consumers maintain in the background what they write. `run` and `python -m deltaq.maintenance ROOT`
maintain a whole root.

Modules:

* `plan`, `retention`, `file_compaction`, `key_compaction`: what a topic needs, as pure functions:
  what is due, most urgent first; which files retention removes; which small files are merged; which
  records newer ones of their key replace
* `topic_pass`, `work_queue`, `report`: the work on one topic, in pieces and in order; what it
  reports
* `rewrite`, `excluded_files`, `orphan_files`, `hashed_names`: files rewritten, left as they are,
  removed
* `log_maintenance`, `checkpoint`, `log_cleanup`, `log_archive`: short logs, of topics, groups, ids
  and the schema registry alike: whether a checkpoint is due, writing it, removing what it replaces;
  on a local store, moving what other engines need not list
* `groups`, `transactions`, `schemas`: unused groups and heartbeats; transactions that a crashed
  producer has decided, and unused ids; the log of the schema registry
* `background`, `background_tasks`, `task_threads`, `row_cache`, `throttle`, `clock_check`, `run`,
  `__main__`, `settings`: beside a client, and as a program
"""

from __future__ import annotations

from deltaq.maintenance.run import run
from deltaq.maintenance.settings import MaintenanceSettings

__all__ = ["MaintenanceSettings", "run"]
