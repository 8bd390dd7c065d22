"""The setting `logger`: a logger of the application gets deltaq's records, each handler once."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from deltaq import Consumer, Producer
from deltaq.admin import AdminClient

ROOT = {"bootstrap.servers": "memory://unused"}
SOURCE = logging.getLogger("deltaq")


class KeptRecords(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.name}: {record.getMessage().split(' ')[0]}")


@pytest.fixture
def application(nothing_left: None) -> Iterator[tuple[logging.Logger, KeptRecords]]:
    """A logger of the application with a handler of its own, while deltaq logs at INFO."""
    logger, records = logging.getLogger("application.kafka"), KeptRecords()
    logger.addHandler(records)
    logger.setLevel(logging.INFO)
    level = SOURCE.level
    SOURCE.setLevel(logging.INFO)
    yield logger, records
    SOURCE.setLevel(level)
    logger.removeHandler(records)


def test_a_logger_gets_the_records_while_a_client_is_open(application):
    logger, records = application
    before = list(SOURCE.handlers)
    with (
        Producer(ROOT, logger=logger),
        Consumer({**ROOT, "group.id": "g", "logger": logging.LoggerAdapter(logger)}),
    ):
        pass
    assert SOURCE.handlers == before
    Producer(ROOT).close()
    assert records.seen == [
        "deltaq.producer: producer",
        "deltaq.consumer: consumer",
        "deltaq.consumer: consumer",
        "deltaq.producer: producer",
    ]


def test_a_dropped_client_no_longer_forwards(application):
    logger, _ = application
    before = list(SOURCE.handlers)
    clients = [AdminClient(ROOT, logger=logger), Consumer({**ROOT, "group.id": "g"}, logger=logger)]
    assert len(SOURCE.handlers) == len(before) + 1
    clients.clear()
    gc.collect()
    assert SOURCE.handlers == before


def test_a_handler_that_both_loggers_have_gets_each_record_once(application):
    logger, _ = application
    shared = KeptRecords()
    logging.getLogger().addHandler(shared)
    logger.addHandler(shared)
    try:
        Producer(ROOT, logger=logger).close()
    finally:
        logging.getLogger().removeHandler(shared)
        logger.removeHandler(shared)
    assert shared.seen == ["deltaq.producer: producer", "deltaq.producer: producer"]


def test_the_level_and_the_filters_of_the_logger_hold(application):
    logger, records = application
    only_consumers = logging.Filter("deltaq.consumer")
    logger.addFilter(only_consumers)
    with Producer(ROOT, logger=logger), Consumer({**ROOT, "group.id": "g"}, logger=logger):
        logger.setLevel(logging.WARNING)
    logger.removeFilter(only_consumers)
    assert records.seen == ["deltaq.consumer: consumer"]


def test_the_record_that_a_filter_puts_in_place_of_another_is_logged(application, monkeypatch):
    """As `Logger.filter` does since Python 3.12."""
    logger, records = application

    def redacted(record: logging.LogRecord) -> logging.LogRecord:
        return logging.makeLogRecord({**record.__dict__, "msg": "redacted", "args": ()})

    monkeypatch.setattr(logger, "filter", redacted)
    Producer(ROOT, logger=logger).close()
    assert records.seen == ["deltaq.producer: redacted", "deltaq.producer: redacted"]


def test_warnings_are_not_lost_if_no_logger_has_a_handler(monkeypatch):
    last = KeptRecords()
    monkeypatch.setattr(logging, "lastResort", last)
    monkeypatch.setattr(SOURCE, "propagate", False)
    monkeypatch.setattr(SOURCE, "handlers", [])
    silent = logging.getLogger("application.silent")
    monkeypatch.setattr(silent, "propagate", False)
    with Producer(ROOT, logger=silent):
        logging.getLogger("deltaq.producer").warning("important")
    assert last.seen == ["deltaq.producer: important"]
