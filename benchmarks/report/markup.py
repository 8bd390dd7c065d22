"""Elements of a page. The standard library writes them, so that all text in them is escaped."""

from __future__ import annotations

import re
from typing import TypeAlias
from xml.etree.ElementTree import Element

__all__ = ["Content", "element"]

Content: TypeAlias = "Element | str"

_NO_CHARACTERS = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML has no place for, not even escaped."""


def element(tag: str, *contents: Content, **attributes: str | float) -> Element:
    """An element with text and elements in it. An attribute is written as it is called in Python:
    `stroke_width` for stroke-width, `class_` for class.
    """
    made = Element(
        tag,
        {name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items()},
    )
    for content in contents:
        if isinstance(content, Element):
            made.append(content)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + _text(content)
        else:
            made.text = (made.text or "") + _text(content)
    return made


def _text(value: str | float) -> str:
    text = value if isinstance(value, str) else f"{round(value, 1):g}"
    return _NO_CHARACTERS.sub("\ufffd", text)
