"""How long work reports where it stands."""

from __future__ import annotations


class Progress:
    """Receives the state of long work; this one stays silent."""

    def start(self, title: str, total: float, unit: str = "") -> None:
        """A piece of work of `total` units begins; one runs at a time."""

    def advance(self, n: float = 1) -> None:
        """`n` more units are done."""

    def finish(self) -> None:
        """The piece begun last has ended, done or not."""

    def note(self, text: str) -> None:
        """One sentence that a person wants to know: what was skipped, resumed or done in another way than asked."""
