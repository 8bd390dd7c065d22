"""A Delta table in a bucket as an input of views, with credentials of the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltaq import Unavailable
from deltaq.store import MemoryStore
from deltaq.views import Views
from tests.servers.s3_stub import HttpRule, S3Stub

pytestmark = pytest.mark.s3

TABLE = "s3://deltaq/lake/people"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Stub]:
    with S3Stub() as stub:
        options = stub.options()
        monkeypatch.setenv("AWS_ENDPOINT_URL", str(options["endpoint"]))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        for name in ("access_key_id", "secret_access_key"):
            monkeypatch.setenv(f"AWS_{name.upper()}", str(options[name]))
        yield stub


def test_a_table_in_a_bucket_is_read(stub: S3Stub):
    write_deltalake(TABLE, pa.table({"id": [1, 2]}))
    views = Views("g", store=MemoryStore("bucket-input"))
    views.input("people", delta=TABLE)
    views.view("total", "select sum(id) as total from people")
    views.run(until="now")
    write_deltalake(TABLE, pa.table({"id": [3]}), mode="append")
    views.run(until="now")
    DeltaTable(TABLE).delete("id = 1")
    views.run(until="now")
    for tick, total in ((1, 3), (2, 6), (3, 5)):
        assert views.read(tick)["total"].to_arrow().to_pylist() == [{"total": total}]
        found = views.read(tick).sql("select sum(id) as total from people")
        assert found.to_pylist() == [{"total": total}]
    assert views.check() == []
    stub.set_rules(HttpRule(fault="error_before", status=503, key="lake/*", times=None))
    with pytest.raises(Unavailable, match="input 'people'") as error:
        views.run(until="now")
    assert error.value.error.retriable()
    secret = str(stub.options()["secret_access_key"])
    assert secret not in str(error.value)
