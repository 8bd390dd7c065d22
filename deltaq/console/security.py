"""Who may see and change what: hosts, origins, the token, sessions, and what browsers are told. No
I/O.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from deltaq.clock import Clock

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
        "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Without a referrer to the own origin, browsers send no `Origin` with forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer. A browser loads nothing from elsewhere, and runs no script that stands in a
page.
"""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

BODY_MAX = 64 * 1024
"""Bytes of a form."""

QUERY_MAX = 4 * 1024
"""Bytes of a query string."""

SESSIONS_MAX = 100
"""Sessions at one time; the oldest ends when there are more."""

SESSION_S = 12 * 3600.0

COOKIE = "deltaq_session"


@dataclass(slots=True)
class ConsoleSession:
    """A signed-in browser. `csrf` is in each of its forms, `notice` is shown once."""

    id: str = field(repr=False)
    csrf: str = field(repr=False)
    ends_at: float
    notice: str = ""


class Sessions:
    """Browsers that have shown the token. `token` is None where nothing may be changed and nothing
    is protected.
    """

    def __init__(self, token: str | None, clock: Clock) -> None:
        self._token = token
        self._clock = clock
        self._sessions: dict[str, ConsoleSession] = {}

    def __repr__(self) -> str:
        return f"<Sessions {len(self._sessions)}>"

    def sign_in(self, token: str) -> ConsoleSession | None:
        """A new session for the right token."""
        if not self.is_token(token):
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        session = ConsoleSession(
            new_secret(self._clock), new_secret(self._clock), self._clock.monotonic() + SESSION_S
        )
        self._sessions[session.id] = session
        return session

    def is_token(self, token: str) -> bool:
        """Whether it is the token; takes as long whatever it is."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def find(self, cookies: str) -> ConsoleSession | None:
        """The session that a `Cookie` header names."""
        # Not by Python's parser: it stops at a value that is no token, as other programs on this
        # host may have set.
        pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
        named = (self._sessions.get(value) for name, _, value in pairs if name == COOKIE)
        session = next(filter(None, named), None)
        if session is not None and not self.is_live(session):
            self.sign_out(session)
            return None
        return session

    def is_live(self, session: ConsoleSession) -> bool:
        """Whether a session has not ended."""
        return session.id in self._sessions and self.left_s(session) > 0

    def left_s(self, session: ConsoleSession) -> float:
        """Seconds until a session ends by itself."""
        return session.ends_at - self._clock.monotonic()

    def sign_out(self, session: ConsoleSession) -> None:
        """End a session."""
        self._sessions.pop(session.id, None)


def new_secret(clock: Clock) -> str:
    """A text that cannot be guessed: two random ids, 244 random bits."""
    return clock.unique_id() + clock.unique_id()


def is_known_host(header: str, hosts: frozenset[str]) -> bool:
    """Whether a `Host` header names this server, and not a site whose name was made to lead
    here.
    """
    try:
        return "@" not in header and urlsplit(f"//{header}").hostname in hosts
    except ValueError:
        return False


def is_own_origin(origin: str | None, host: str, scheme: str) -> bool:
    """Whether a form was sent by a page of this server. Browsers send `Origin` with each form."""
    return origin == f"{scheme}://{host}"


def is_of_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser sends this request for a page of another origin: an image, a frame, a form
    or a link there.

    Another port of the same host is another origin. Programs that are no browsers send no
    `Sec-Fetch-Site`.
    """
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def may_change(session: ConsoleSession | None, csrf: str) -> bool:
    """Whether a form comes from a page that was made for this session."""
    return session is not None and hmac.compare_digest(csrf.encode(), session.csrf.encode())
