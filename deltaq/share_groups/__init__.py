"""Share groups: which record of a topic is to be delivered, held by which worker, or finished, kept
as entries of the group's own Delta log.

Modules:

* `state`: what is decided of the records of a partition, and how each entry changes it, as pure
  functions
* `exchange`: what a worker does in one entry: it acknowledges records, and takes others
* `transaction_acknowledgements`: acknowledgements that belong to a transaction
* `dead_letters`: records that are not delivered again, written once to the dead-letter topic
* `bindings`: which records of exchanges a group takes that is a queue of AMQP
* `locks`: when a watcher knows that a lock is over
* `log`: the client of a group's log
"""

from __future__ import annotations
