"""What the demo shows: lines that stay, and one line that tells what is going on right now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flights_demo.patience import Stopwatch

_QUIET_SECONDS = 3.0
_LOG_WIDTH = 130


class Screen:
    """The terminal, or a log file: there, news is printed as lines instead of drawn over."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = _LOG_WIDTH
        self.timings: list[tuple[str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[News]:
        """One part of the demo; says how long it took, also when it fails."""
        watch = Stopwatch()
        self.console.print(f"[bold]▸ {escape(title)}[/bold]")
        try:
            with News(self.console) as news:
                yield news
        finally:
            self.timings.append((title, watch.seconds))
            self.console.print(f"  [dim]{watch.seconds:.1f} s[/dim]")

    def say(self, text: str) -> None:
        """Prints a line that belongs to the present step."""
        self.console.print(f"  {escape(text)}")

    def good(self, text: str) -> None:
        """Prints something that was checked and holds."""
        self.console.print(f"  [green]✔[/green] {escape(text)}")

    def bad(self, text: str) -> None:
        """Prints something that should have held."""
        self.console.print(f"  [red]✘ {escape(text)}[/red]")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Prints rows below headings."""
        table = Table(title=title, title_justify="left", header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*("-" if value is None else escape(str(value)) for value in row))
        self.console.print(table)


class News:
    """The line that tells what is going on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._last = ""
        self._since = Stopwatch()

    def __enter__(self) -> News:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._status.stop()

    def __call__(self, text: str) -> None:
        if self._console.is_terminal:
            self._status.update(escape(text))
        elif text != self._last and (self._since.seconds > _QUIET_SECONDS or not self._last):
            self._console.print(f"  … {escape(text)}")
            self._since = Stopwatch()
            self._last = text
