"""The public names of `import deltaq`."""

from __future__ import annotations

import inspect

import pytest

import deltaq
from deltaq import admin, errors
from deltaq.aio import AIOProducer


def test_every_public_name_is_there_once_and_nothing_else_is():
    assert len(deltaq.__all__) == len(set(deltaq.__all__))
    public = {name for name in dir(deltaq) if not name.startswith("_")} - {"annotations"}
    defined = {name for name in public if not inspect.ismodule(getattr(deltaq, name))}
    assert defined | {"__version__"} == set(deltaq.__all__)


def test_an_unknown_name_is_refused_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'deltaq' has no attribute 'Produser'"):
        _ = deltaq.Produser  # type: ignore[attr-defined]


def test_every_named_error_can_be_caught_by_its_name():
    named = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert named <= set(deltaq.__all__)


def test_admin_names_are_where_programs_for_kafka_look_for_them():
    assert deltaq.AdminClient is admin.AdminClient
    assert deltaq.NewTopic is admin.NewTopic
    assert all(hasattr(admin, name) for name in admin.__all__)


def test_the_module_of_clients_for_asyncio_is_an_attribute():
    assert vars(deltaq.aio)["AIOProducer"] is AIOProducer
