"""How the views of a program would be kept by rules: each rule, and why a view has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.store import Store
from deltaq.views.engine import engine
from deltaq.views.inputs import Inputs
from deltaq.views.modes import Mode
from deltaq.views.program import ViewProgram
from deltaq.views.ticks import InputCut


@dataclass(frozen=True, slots=True)
class ViewRules:
    """The rules of a view: each with what it is about, such as the condition of a join. Without
    any, a map or filter of changes. `refused` says why the view is evaluated in full; "" if it is
    not.
    """

    view: str
    mode: Mode
    rules: tuple[tuple[str, str], ...]
    refused: str

    def __str__(self) -> str:
        if self.refused or self.mode == "full":
            return f"{self.view}: in full, {self.refused or 'as its mode says'}"
        named = [f"{rule} ({about})" for rule, about in self.rules]
        how = "by rules" if self.mode == "incremental" else "by rules where that is quicker"
        return f"{self.view}: {how}: {', '.join(named) or 'map'}"


def explained(
    program: ViewProgram, modes: Mapping[str, Mode], store: Store, clock: Clock
) -> list[ViewRules]:
    """The rules of all views, for the present columns of their inputs. Reads no records. Raises
    InvalidConfig, UnknownTopic, Corrupt, Incompatible, Unavailable.
    """
    inputs = Inputs.of(program, store, clock)
    forms = inputs.forms()
    nothing = {topic: InputCut("", (), ()) for topic in forms}
    tried: dict[str, Mode] = {
        view.name: "full" if modes[view.name] == "full" else "incremental" for view in program.views
    }
    with engine(program, tried, clock=clock) as found:
        inputs.load(found, {}, nothing, forms)
        found.set_time(clock.time_ms())
        found.evaluate()
        for view in program.views:
            found.restore(view.name, found.columns(view.name).empty_table())
        found.accept()
        return [
            ViewRules(name, modes[name], found.rules(name), mode.refused)
            for name, mode in found.modes.items()
        ]
