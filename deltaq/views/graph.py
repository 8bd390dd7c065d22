"""The graph of a group of views: what reads what. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from deltaq.views.program import ViewProgram
from deltaq.views.tick_clock import CLOCK


def tree(program: ViewProgram) -> list[str]:
    """The graph for a terminal, as lines: below each input the views that read it. A view that
    reads several has those that read it below its first line only, and `...` later.
    """
    readers: dict[str, list[str]] = {}
    for view in program.views:
        for read in view.reads:
            readers.setdefault(read, []).append(view.name)
    shown: set[str] = set()

    def below(name: str, indent: str) -> Iterator[str]:
        found = readers.get(name, [])
        for number, reader in enumerate(found, 1):
            is_last = number == len(found)
            is_again = reader in shown and reader in readers
            shown.add(reader)
            yield f"{indent}{'└─' if is_last else '├─'} {reader}{' ...' if is_again else ''}"
            if not is_again:
                yield from below(reader, indent + ("   " if is_last else "│  "))

    return [line for name in _inputs(program) for line in (name, *below(name, ""))]


def _inputs(program: ViewProgram) -> list[str]:
    return [*program.inputs, *([CLOCK] if program.reads_clock else [])]


def mermaid(program: ViewProgram) -> str:
    """The graph of a program, as Mermaid draws it: topics, the clock, and the views that read
    them.
    """
    lines = ["graph LR"]
    numbers: dict[str, str] = {}
    for topic in program.inputs:
        numbers[topic] = f"t{len(numbers)}"
        lines.append(f'  {numbers[topic]}[("{topic}")]')
    if program.reads_clock:
        numbers[CLOCK] = CLOCK
        lines.append(f"  {CLOCK}(({CLOCK}))")
    for view in program.views:
        numbers[view.name] = f"v{len(numbers)}"
        lines.append(f'  {numbers[view.name]}["{view.name}"]')
        lines += [f"  {numbers[read]} --> {numbers[view.name]}" for read in view.reads]
    return "\n".join(lines)
