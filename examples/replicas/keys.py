"""Keys of the terminal, without waiting for Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty


class Keys:
    """Reads keys while the block runs. Without a terminal there are none."""

    def __enter__(self) -> Keys:
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else None
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The keys that were pressed, after waiting until there is one or the time is over."""
        files = [] if self._file is None else [self._file]
        ready, _, _ = select.select(files, [], [], seconds)
        return os.read(ready[0], 64).decode(errors="replace") if ready else ""
