"""The main example: clocks in two time zones, a Spark pipeline that converts them to one time, a
reader of the result.

It consists of three programs that share only the root of the topics, and can be started in any
order:

    producer.py  ->  topics timezone1, timezone2  ->  pipeline.py  ->  topic timezone_unified  ->  results.py

`demo.py` runs them all.
"""  # noqa: E501
