"""A request as pages see it, and what they answer. No framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq.admin import AdminClient
from deltaq.clock import Clock
from deltaq.console.poller import Poller
from deltaq.console.view import RootView
from deltaq.store import Store


@dataclass(frozen=True)
class Root:
    """A root that the console shows. `number` is in the addresses of its pages."""

    number: int
    store: Store
    admin: AdminClient
    poller: Poller
    clock: Clock

    @property
    def url(self) -> str:
        """Without credentials."""
        return self.store.url

    @property
    def home(self) -> str:
        """The address of its first page."""
        return f"/roots/{self.number}"


@dataclass(frozen=True)
class Visit:
    """A request for a page of a root. `names` are those in its address, `given` its query or form.
    `view_now` is the view to show; None for the newest.
    """

    root: Root
    names: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    view_now: RootView | None = None

    def view(self) -> RootView:
        """The view to show. Looks at the root for the newest one, unless that is recent."""
        return self.view_now or self.root.poller.view()


@dataclass(frozen=True)
class Page:
    """An answer: a template with its values. A live page has a part that is sent again with each
    view.
    """

    template: str
    values: Mapping[str, object]
    live: str = ""
    status: int = 200


@dataclass(frozen=True)
class Moved:
    """An answer that leads to another page, which shows the notice once."""

    to: str
    notice: str = ""
