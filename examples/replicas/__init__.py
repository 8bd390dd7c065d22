"""Several replicas of one service share a topic, and each record counts exactly once in PostgreSQL.

    producer.py  ->  topic events, 10 partitions  ->  service.py, several in one group  ->  PostgreSQL

The programs share only the root of the topics and the database. `demo.py` runs them all, and shows
them in a table.
"""  # noqa: E501
