"""Other clients' module layouts on top of deltaq, for programs that are not to be changed.

Modules:

* `confluent/producer`, `confluent/aio`, `confluent/types`, `confluent/events`: the names of
  `confluent_kafka`: the producers that report errors as it does; values that deltaq itself does not
  need
* `cimpl/`: the names of confluent-kafka's C module, for its own Python code
* `confluent/error`, `confluent/serialization`, `confluent/schema_registry/`, `confluent/cimpl`,
  `confluent/serializing_producer`, `confluent/deserializing_consumer`: the modules in which
  `confluent_kafka` has these names
* `confluent/admin/acl`, `confluent/admin/scram`: values of Kafka's access control, whose calls are
  refused
"""
