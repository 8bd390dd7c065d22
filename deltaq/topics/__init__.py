"""Topics: a topic is a Delta table, with rules of its own for its log and its files.

Modules:

* `state`, `rewrites`, `metadata`: a topic's rules; what clients know of it
* `pieces`: the pieces of large messages: their header
* `schema_evolution`: which schemas may follow that of a typed topic, and what its columns become
* `log`, `maintenance_log`: a topic's log, and the commits of producers and administrators; those of
  maintenance and of copies
* `columns`, `arrow_input`, `upload`, `shared_files`, `append_once`: records as columns; files on
  their way in; rows that several processes append once
* `delivery_time`: the header that says when share groups deliver a message
* `holds`: what maintenance keeps of a topic for readers of an earlier state of it
* `record_faults`, `comparison`: records with values that cannot be returned; whether rows of two
  topics are the same
* `listing`: the topics of a root with their size, read without Arrow
* `view`, `readable`, `follower`: a topic at one version, and what an entry makes of it; what a
  reader asks of it; the one follower per process that all readers share
* `offset_index`, `scan`, `layout_cache`, `ranges`: in which file an offset is; reading files; the
  layouts of large ones, remembered; reading offsets, wherever compaction has put them meanwhile
* `time_lookup`, `lookup`: the offset of a time; what clients ask of a topic by name
"""
