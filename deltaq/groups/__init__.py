"""Consumer groups: membership and committed offsets, kept as entries of the group's own Delta
log.

Modules:

* `state`, `offsets`, `log`: what a group's log says: members and owners, committed offsets and
  those that heartbeats show; which commits are refused; the commits that change it
* `transaction_offsets`: those that wait for the decision of a transaction
* `rebalance`, `assignors/`: the next membership, and which member gets which partitions
  (`assignors/` has a module for each kind, and their table), as pure functions
* `membership`, `session`: staying a member, on a thread, or leaving when `max.poll.interval.ms` is
  over, and how long `poll` need not look; one session of it
* `heartbeat`: the own heartbeat; finding dead members by theirs
* `offset_commits`, `stored_offsets`: committing offsets one after the other, on a thread; which of
  them are not committed, what is delegated to the leader, and who commits them when
  (`auto.commit.interval.ms`)
* `commit_turns`, `commit_in_turn`: which member leaves the next slot to others; one commit of a
  member that does
"""

from __future__ import annotations
