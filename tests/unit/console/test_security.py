"""Who may see and change what, and that nothing from a topic becomes markup."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.console.pages import PAGES
from deltaq.console.security import BODY_MAX, SESSIONS_MAX, Sessions
from deltaq.errors import InvalidConfig
from deltaq.store import open_store
from deltaq.testing import ManualClock
from tests.doubles.hostile_names import (
    MARKUP,
    column_names,
    write_assignors,
    write_columns,
    write_names,
)
from tests.unit.console.conftest import HOST, TOKEN, browser, made

SECRET = "AKIA-very-secret-key-of-the-store"


class Elements(HTMLParser):
    """The elements of a page, with attributes, as a browser would make them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(sorted(name for name, _ in attrs))))

    def handle_data(self, data: str) -> None:
        self.text += data


def messages_page(root: str, payloads: Sequence[str]) -> str:
    """The page of a topic with a message for each payload, which is its key, value, and name and
    value of a header.
    """
    with Producer(bootstrap_servers=root, maintenance_enable=False) as producer:
        for payload in payloads:
            raw = payload.encode("utf-8", "surrogatepass")
            producer.produce("t", raw, key=raw, headers=[(payload, raw)])
    return browser(made(root)).get("/roots/0/topics/t/messages?from=beginning&count=100").text


def test_no_message_becomes_markup(memory_root: str) -> None:
    assert len(set(MARKUP)) >= 50
    page = messages_page(memory_root, MARKUP)
    harmless = messages_page(f"{memory_root}-harmless", ["x"] * len(MARKUP))
    # The tags are those of a page with harmless messages, but for the notes of what was cut.
    expected, found = (Counter(Elements(text).found) for text in (harmless, page))
    assert {element for element in found | expected if found[element] != expected[element]} == {
        ("small", ("class",))
    }
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page)
    assert len(page) < 1_000_000
    text = Elements(page).text
    for payload in MARKUP:
        if payload.isprintable() and len(payload) < 200 and payload[:1] not in "{[":
            assert text.count(payload) >= 4, payload


def test_no_client_and_no_setting_becomes_markup(memory_root: str) -> None:
    """Client ids, hosts and instance ids of members, and settings of topics, on every page of a
    root.
    """
    harmless_root = f"{memory_root}-harmless"
    write_names(memory_root, MARKUP)
    write_names(harmless_root, ["x"] * len(MARKUP))
    topics = [f"/topics/settings-{number}" for number in range(len(MARKUP))]
    hostile, harmless = browser(made(memory_root)), browser(made(harmless_root))
    assert set(PAGES) == {"", "/topics/{topic}", "/topics/{topic}/messages", "/groups", "/groups/{group}",  # noqa: E501
                          "/queues", "/queues/{group}", "/views", "/views/{group}", "/views/{group}/check", "/transactions", "/maintenance", "/cost"}  # fmt: skip # noqa: E501
    for path in (
        "",
        "/groups",
        "/groups/g",
        "/queues",
        "/transactions",
        "/maintenance",
        "/cost",
        "/topics/t",
        "/topics/t/messages",
        *topics,
    ):
        page = hostile.get(f"/roots/0{path}").text
        expected = harmless.get(f"/roots/0{path}").text
        assert Counter(Elements(page).found) == Counter(Elements(expected).found), path
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page), path
    text = Elements(hostile.get("/roots/0/groups/g").text).text
    clients = Elements(hostile.get("/roots/0/transactions").text).text
    for payload in MARKUP:
        if payload.isprintable() and len(payload) < 200:
            assert text.count(payload) >= 3, payload
            assert payload in clients
    samples = {
        (s.name, *sorted(s.labels.items())) for s in samples_of(hostile.get("/metrics").text)
    }
    labels = {
        (s.name, *sorted(s.labels.items())) for s in samples_of(harmless.get("/metrics").text)
    }
    assert {repr(sample).replace(memory_root, harmless_root) for sample in samples} == set(
        map(repr, labels)
    )


def test_no_column_and_no_assignor_becomes_markup(memory_root: str) -> None:
    harmless_root, names = f"{memory_root}-harmless", column_names(MARKUP)
    assert len(names) >= 40
    write_columns(memory_root, "typed", names)
    write_columns(harmless_root, "typed", [f"x{number}" for number in range(len(names))])
    for root, payloads in ((memory_root, MARKUP), (harmless_root, ["x"] * len(MARKUP))):
        write_assignors(root, payloads)
    hostile, harmless = browser(made(memory_root)), browser(made(harmless_root))
    groups = [f"/groups/assignor-{number}" for number in range(len(MARKUP))]
    for path in ("", "/groups", "/topics/typed", "/topics/typed/messages", *groups):
        page = hostile.get(f"/roots/0{path}").text
        expected, found = (
            # A note of what was cut.
            [element for element in Elements(text).found if element != ("small", ("class",))]
            for text in (harmless.get(f"/roots/0{path}").text, page)
        )
        assert found == expected, path
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page), path
    text = Elements(hostile.get("/roots/0/topics/typed").text).text
    assert [name for name in names if name.isprintable() and name not in text] == []
    for number, payload in enumerate(MARKUP):
        if payload.isprintable():
            assert (
                payload[:100]
                in Elements(hostile.get(f"/roots/0/groups/assignor-{number}").text).text
            )


def samples_of(text: str) -> list[Any]:
    """The samples of a text for Prometheus, as its own parser reads them."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.mark.parametrize("field", ["from", "search", "partition", "count"])
def test_what_is_asked_for_comes_back_escaped(
    memory_root: str, asked: TestClient, field: str
) -> None:
    Topic("t", bootstrap_servers=memory_root).create()
    page = asked.get("/roots/0/topics/t/messages", params={field: MARKUP[4]}).text
    assert "<script>alert" not in page
    assert ("&lt;script&gt;alert" in page) == (field in ("from", "search"))


@pytest.mark.parametrize(
    "name", ["a.b", "..a", "-dash", "_under", "UPPER.lower-0_9", "n" * 200, "messages", "events"]
)
def test_every_legal_name_of_a_topic_has_pages(
    memory_root: str, asked: TestClient, name: str
) -> None:
    Topic(name, bootstrap_servers=memory_root).create()
    assert f'href="/roots/0/topics/{name}"' in asked.get("/roots/0").text
    assert asked.get(f"/roots/0/topics/{name}").status_code == 200
    assert asked.get(f"/roots/0/topics/{name}/messages").status_code == 200


@pytest.mark.parametrize(
    "path", ["/roots/0/topics/%3Cscript%3E", "/roots/0/groups/%22%3E%3Cb%3E", "/static/..%2fapp.py"]
)
def test_names_that_cannot_be_are_refused_and_escaped(asked: TestClient, path: str) -> None:
    answer = asked.get(path)
    assert answer.status_code == 404
    assert "<script>" not in answer.text.replace(
        '<script src="/static/console.js" defer></script>', ""
    )
    assert "<b>" not in answer.text


def test_every_answer_forbids_scripts_frames_and_other_sites(asked: TestClient) -> None:
    for path in (
        "/",
        "/roots/0",
        "/static/console.js",
        "/metrics",
        "/nothing",
        "/roots/0/events?page=/nothing",
    ):
        headers = asked.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    page = asked.get("/roots/0").text
    assert re.findall(r'(?:src|href)="(?!/)[^"]*"', page) == []
    assert "style=" not in page


def test_a_site_whose_name_leads_here_gets_nothing(memory_root: str, asked: TestClient) -> None:
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.example",
        "",
        "[",
        "evil@localhost:x",
    ):
        assert asked.get("/roots/0", headers={"Host": host}).status_code == 421, host
    assert asked.get("/roots/0", headers={"Host": "127.0.0.1:1"}).status_code == 200
    named = browser(made(memory_root, hosts=["Console.Example"]))
    assert named.get("/roots/0", headers={"Host": "console.example"}).status_code == 200
    listening = browser(made(memory_root, host="Console.Example", token=TOKEN))
    assert listening.get("/sign-in", headers={"Host": "console.example"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "what may come"])
def test_a_page_of_another_site_makes_the_console_do_nothing(memory_root: str, site: str) -> None:
    """An image, a frame or a script there: the browser of an operator sends the request."""
    Topic("secret-plans", bootstrap_servers=memory_root).create()
    console = made(memory_root)
    client, sent = browser(console), {"Sec-Fetch-Site": site}
    for path in ("/", "/roots/0", "/roots/0/topics/secret-plans/messages?search=x", "/roots/0/events?page=", "/metrics",  # noqa: E501
                 "/sign-in", "/static/console.js"):  # fmt: skip
        answer = client.get(path, headers=sent)
        assert answer.status_code == 403
        assert "secret-plans" not in answer.text
        assert 'href="/"' in answer.text, "a person who follows a link goes on from here"
    assert console.roots[0].poller._before is None, "nothing was looked at"
    for own in ("same-origin", "none"):
        assert client.get("/roots/0", headers={"Sec-Fetch-Site": own}).status_code == 200


DIGITS = "9" * 3_000


@pytest.mark.parametrize(
    "number", ["1", "-1", "00", "0x0", "\u0660", "9" * 19, "9" * 5_000, "0%00", "%00"]
)
def test_what_is_no_number_of_a_root_is_not_found(asked: TestClient, number: str) -> None:
    for path in ("", "/events", "/topics/t"):
        assert asked.get(f"/roots/{number}{path}").status_code == 404
    assert asked.post(f"/roots/{number}/topics", data={}).status_code == 404


@pytest.mark.parametrize("field", ["from", "partition", "count"])
@pytest.mark.parametrize(
    "text",
    [DIGITS, f"-{DIGITS}", f"@{DIGITS}", f"@{'9' * 15}", f"-{'9' * 9}w", "9" * 18, "-" + "9" * 18, "-1", "1\0", "\0",  # noqa: E501
     "\u0663", "0001-01-01T00:00+23:59", "9999-12-31T23:59:59-23:59", "1e9", "0x10", "--1", "NaN", DIGITS + "h"],  # noqa: E501
)  # fmt: skip
def test_a_number_from_the_address_is_taken_or_refused(
    memory_root: str, asked: TestClient, field: str, text: str
) -> None:
    with Producer(bootstrap_servers=memory_root, maintenance_enable=False) as producer:
        producer.produce("t", b"x")
    answer = asked.get("/roots/0/topics/t/messages", params={field: text})
    assert answer.status_code == 200
    assert "1 shown" in answer.text or "0 shown" in answer.text or 'class="problem"' in answer.text


# --- changes ---


def csrf(client: TestClient) -> str:
    """The token in the forms of the session."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get("/roots/0").text)
    assert found is not None
    return found[1]


def test_topics_are_created_altered_and_deleted_by_who_is_signed_in(
    writer: TestClient, memory_root: str
) -> None:
    topic = Topic("orders", bootstrap_servers=memory_root)
    form = {
        "csrf": csrf(writer),
        "topic": "orders",
        "partitions": "2",
        "settings": "retention.ms=1000\n",
    }
    answer = writer.post("/roots/0/topics", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/roots/0/topics/orders")
    assert (
        "Topic orders was created with 2 partitions." in writer.get("/roots/0/topics/orders").text
    )
    assert "was created" not in writer.get("/roots/0/topics/orders").text  # said once
    change = {"csrf": csrf(writer), "setting": "retention.ms", "value": "5000", "partitions": "4"}
    assert writer.post("/roots/0/topics/orders/alter", data=change).status_code == 303
    assert (topic.describe().settings.retention_ms, len(topic.describe().partitions)) == (5000, 4)
    refused = writer.post(
        "/roots/0/topics/orders/delete", data={"csrf": csrf(writer), "confirm": "order"}
    )
    assert (refused.status_code, topic.exists()) == (400, True)
    writer.post("/roots/0/topics/orders/delete", data={"csrf": csrf(writer), "confirm": "orders"})
    assert not topic.exists()


def test_offsets_are_reset_to_a_place_or_by_a_shift(writer: TestClient, memory_root: str) -> None:
    with Producer(bootstrap_servers=memory_root) as producer:
        for _ in range(5):
            producer.produce("t", b"x")
    form = {"csrf": csrf(writer), "to": "-2", "topic": "t"}
    assert writer.post("/roots/0/groups/g/reset", data=form).status_code == 303
    assert "The offset of group g was reset." in writer.get("/roots/0/groups/g").text
    shift = {"csrf": csrf(writer), "shift": "-1"}
    assert writer.post("/roots/0/groups/g/reset", data=shift).status_code == 303
    root = made(memory_root).roots[0]
    assert root.poller.view().groups["g"].lag == 3
    both = {"csrf": csrf(writer), "to": "beginning", "shift": "1"}
    assert writer.post("/roots/0/groups/g/reset", data=both).status_code == 400


@pytest.mark.parametrize(
    ("path", "form", "reason"),
    [
        ("/topics", {"topic": "<b>", "partitions": "1"}, "&lt;b&gt;"),
        ("/topics", {"topic": "t", "partitions": "x"}, "partitions must be a whole number"),
        ("/topics", {"topic": "t", "partitions": "9" * 30}, "partitions must be a whole number"),
        ("/topics", {"topic": "t", "partitions": "0"}, ""),
        (
            "/topics",
            {"topic": "t", "partitions": "1", "settings": "retention"},
            "is not NAME=VALUE",
        ),
        ("/topics", {"topic": "t", "partitions": "1", "settings": "no.such=1"}, "no.such"),
        (
            "/topics",
            {"topic": "t", "partitions": "1", "settings": f"retention.ms={'9' * 5_000}"},
            "retention.ms",
        ),
        ("/topics", {"topic": "t\0", "partitions": "1"}, ""),
        ("/topics/t/alter", {"setting": "retention.ms", "value": "9" * 5_000}, "retention.ms"),
        ("/topics/t/alter", {"partitions": "9" * 5_000}, "partitions must be a whole number"),
        ("/topics/t/alter", {}, "nothing to change"),
        ("/groups/g/reset", {"shift": "9" * 5_000}, "shift must be a whole number"),
        ("/groups/g/reset", {"to": "9" * 5_000}, "no place in a topic"),
        ("/groups/g/reset", {"to": "noon"}, "no place in a topic"),
    ],
)
def test_a_change_that_is_refused_is_explained(
    writer: TestClient, memory_root: str, path: str, form: dict[str, str], reason: str
) -> None:
    answer = writer.post(f"/roots/0{path}", data={**form, "csrf": csrf(writer)})
    assert answer.status_code in (400, 409)
    assert reason in answer.text
    assert open_store(memory_root).list_folders("topics/") == []


def without_origin(client: TestClient) -> TestClient:
    """The same session in a client that sends no `Origin`."""
    other = TestClient(client.app, HOST, follow_redirects=False)
    other.cookies = client.cookies
    return other


CHANGES = (
    "/roots/0/topics",
    "/roots/0/topics/t/alter",
    "/roots/0/topics/t/delete",
    "/roots/0/groups/g/reset",
    "/roots/0/queues/g/redrive",
)


@pytest.mark.parametrize("path", CHANGES)
def test_nothing_is_changed_without_write_session_csrf_and_origin(
    memory_root: str, writer: TestClient, asked: TestClient, path: str
) -> None:
    Topic("t", bootstrap_servers=memory_root).create()
    before = [entry.key for entry in open_store(memory_root).list("")]
    form = {"csrf": csrf(writer), "topic": "new", "partitions": "2", "confirm": "t", "to": "end"}
    stranger = browser(made(memory_root, may_write=True, token=TOKEN))
    assert asked.post(path, data=form).status_code == 403  # a console that only shows
    assert stranger.post(path, data=form).status_code == 403  # not signed in
    assert writer.post(path, data={**form, "csrf": "0" * 64}).status_code == 403
    assert writer.post(path, data={**form, "csrf": "é"}).status_code in (400, 403)
    for origin in (
        "http://evil.example",
        "null",
        "https://localhost:8090",
        "http://localhost:1",
        "",
    ):
        assert writer.post(path, data=form, headers={"Origin": origin}).status_code == 403, origin
    assert without_origin(writer).post(path, data=form).status_code == 403
    assert writer.get(path).status_code in (404, 405)
    assert writer.post(path, json=form).status_code == 415
    large = {**form, "settings": "x" * BODY_MAX}
    assert writer.post(path, data=large).status_code == 413
    assert [entry.key for entry in open_store(memory_root).list("")] == before


def test_an_address_that_is_too_long_is_refused(asked: TestClient) -> None:
    assert asked.get("/roots/0?x=" + "y" * 5_000).status_code == 414


def test_a_wrong_token_does_not_sign_in_and_signing_out_ends_the_session(
    memory_root: str, writer: TestClient
) -> None:
    stranger = browser(made(memory_root, may_write=True, token=TOKEN))
    for token in ("", "x", TOKEN[:-1], TOKEN + "x", "é" * 20):
        answer = stranger.post("/sign-in", data={"token": token})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    cookie = writer.post("/sign-in", data={"token": TOKEN}).headers["set-cookie"]
    assert re.search("HttpOnly.*SameSite=strict", cookie)
    assert "Create a topic" in writer.get("/roots/0").text
    writer.post("/sign-out", data={"csrf": csrf(writer)})
    assert "Create a topic" not in writer.get("/roots/0").text


def test_beyond_loopback_nothing_is_shown_without_the_token(memory_root: str) -> None:
    Topic("secret-plans", bootstrap_servers=memory_root).create()
    client = browser(made(memory_root, host="192.0.2.1", token=TOKEN))
    for path in ("/", "/roots/0", "/roots/0/topics/secret-plans", "/roots/0/events?page="):
        assert (answer := client.get(path)).headers["location"] == "/sign-in"
        assert "secret-plans" not in answer.text
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert (
        "secret-plans" in client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    )
    assert (
        client.get("/sign-in").status_code == client.get("/static/console.css").status_code == 200
    )
    client.post("/sign-in", data={"token": TOKEN})
    assert "secret-plans" in client.get("/roots/0").text


def test_sessions_end_after_half_a_day_and_are_bounded() -> None:
    clock = ManualClock()
    sessions = Sessions(TOKEN, clock)
    first = sessions.sign_in(TOKEN)
    assert first is not None
    assert sessions.find(f"deltaq_session={first.id}") is first
    clock.advance(12 * 3600 + 1)
    assert sessions.find(f"deltaq_session={first.id}") is None
    for _ in range(SESSIONS_MAX + 1):
        sessions.sign_in(TOKEN)
    assert len(sessions._sessions) == SESSIONS_MAX
    for cookies in ("", "deltaq_session=", "a=\x00;;=", 'deltaq_session="\\'):
        assert sessions.find(cookies) is None
    assert TOKEN not in repr(sessions)
    assert first.id not in repr(first)


@pytest.mark.parametrize(
    "other",
    ['prefs={"theme":"dark"}', 'a="', "no pair", "a=b c", "deltaq_session=of-another-console"],
)
def test_a_session_is_found_beside_the_cookies_of_other_programs(other: str) -> None:
    sessions = Sessions(TOKEN, ManualClock())
    session = sessions.sign_in(TOKEN)
    assert session is not None
    assert sessions.find(f"{other}; deltaq_session={session.id}") is session
    assert sessions.find(f"deltaq_session={session.id}; {other}") is session
    assert sessions.find(other) is None


def test_settings_that_are_not_safe_are_refused(memory_root: str) -> None:
    with pytest.raises(InvalidConfig, match="--allow-host"):
        made(memory_root, host="0.0.0.0")
    with pytest.raises(InvalidConfig, match="16 ASCII characters") as error:
        made(memory_root, may_write=True, token="short")
    assert "short" not in str(error.value)


def test_secrets_are_on_no_page_and_in_no_metric(
    memory_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    from deltaq.console.server import ServerSettings, console_of

    conf = {
        "bootstrap.servers": "s3://bucket/prefix",
        "store.endpoint": "http://127.0.0.1:9",
        "store.access_key_id": "someone",
        "store.secret_access_key": SECRET,
        "store.region": "us-east-1",
        "store.retries": "0",
    }
    console = console_of([conf], ServerSettings(may_write=True, token=TOKEN))
    client = browser(console)
    client.post("/sign-in", data={"token": TOKEN})
    pages = [
        "/",
        "/roots/0",
        "/roots/0/topics/t",
        "/roots/0/transactions",
        "/roots/0/maintenance",
        "/roots/0/cost",
        "/metrics",
        "/sign-in",
    ]
    texts = [client.get(path).text for path in pages]
    assert "does not answer" in texts[1]
    everything = " ".join([*texts, caplog.text, repr(console.roots), repr(console.sessions)])
    assert SECRET not in everything
    assert TOKEN not in everything
    assert HOST not in everything
    assert SYSTEM_CLOCK is console.roots[0].clock
