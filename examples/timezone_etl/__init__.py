"""The main example: clocks in two time zones, a Spark pipeline that brings them to one time, a reader of the result.

Three programs that share nothing but the root of the topics, and may be started in any order and at the same time:

    producer.py  ->  topics timezone1, timezone2  ->  pipeline.py  ->  topic timezone_unified  ->  results.py

`demo.py` runs them all.
"""
