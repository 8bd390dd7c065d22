"""Templates as HTML. Every value is escaped: there is no way to mark one as safe. Jinja is known
only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from deltaq.console.charts import sparkline
from deltaq.console.visits import Page
from deltaq.errors import printable
from deltaq.units import as_age, as_count, as_lag, as_rate, as_size, as_text, as_time


def as_dollars(value: float) -> str:
    """Dollars with cents."""
    return "< $0.01" if 0 < value < 0.01 else f"${value:,.2f}"


def _visible(value: Any) -> Any:
    """Text of a page, from wherever: characters that would turn the direction of what follows, or
    that a terminal would act on, are escaped. Markup is what templates have made.
    """
    if type(value) is not str or value.isprintable():
        return value
    return "\n".join(map(printable, value.split("\n")))


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("deltaq.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.pop("safe")
    made.filters |= {
        "count": as_count,
        "lag": as_lag,
        "rate": as_rate,
        "size": as_size,
        "time": as_time,
        "age": as_age,
        "shown": as_text,
        "dollars": as_dollars,
    }
    made.globals |= {"sparkline": sparkline}
    return made


_ENVIRONMENT = _environment()


def render(page: Page, common: Mapping[str, object]) -> str:
    """A page with the values that all pages have."""
    return _ENVIRONMENT.get_template(page.template).render(
        {**common, **page.values, "live": page.live}
    )


def render_live(page: Page, common: Mapping[str, object]) -> str:
    """The live part of a page."""
    return _ENVIRONMENT.get_template(page.live).render({**common, **page.values})
