"""The log of a Delta table: reading it, committing to it, checkpoints. Knows nothing of Kafka.

Modules:

* `actions`, `table_state`, `persistent_map`, `schema`: Delta's actions as values; what entries add
  up to, and the maps that it is made of; schemas
* `log`: the commit loop: slots, refused creates (409, 412) and whose entry a slot holds
* `resolve`, `tokens`: asking later, after `commit` has given up, for an outcome that stayed
  unknown; the tokens of commits
* `known_log`, `position`, `slot_proof`, `entries`: what a process knows of a log, as one value;
  reading on from there; the proof that it still holds; reading entries
* `snapshot`, `checkpoint`, `checkpoint_columns`, `checkpoint_seal`: where a log is loaded from;
  checkpoints, read and written by columns, which loads Arrow
* `retry`, `store_errors`: waits between tries; which public error a failure of the store becomes
"""
