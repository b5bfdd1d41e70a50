"""Output of the demo: permanent lines, and a status line for the current activity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flights_demo.polling import Stopwatch

_QUIET_SECONDS = 3.0
_LOG_WIDTH = 130


class Screen:
    """The terminal, or a log file, where status updates are printed as lines."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = _LOG_WIDTH
        self.timings: list[tuple[str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[StatusLine]:
        """Prints the title of a step, and its duration when it ends or fails."""
        watch = Stopwatch()
        self.console.print(f"[bold]▸ {escape(title)}[/bold]")
        try:
            with StatusLine(self.console) as status_line:
                yield status_line
        finally:
            self.timings.append((title, watch.seconds))
            self.console.print(f"  [dim]{watch.seconds:.1f} s[/dim]")

    def say(self, text: str) -> None:
        """Prints a line of the current step. The terminal wraps it, so that an address in it stays whole."""
        self.console.print(f"  {escape(text)}", soft_wrap=True)

    def good(self, text: str) -> None:
        """Prints a successful check."""
        self.console.print(f"  [green]✔[/green] {escape(text)}")

    def bad(self, text: str) -> None:
        """Prints a failed check."""
        self.console.print(f"  [red]✘ {escape(text)}[/red]")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Prints a table."""
        table = Table(title=title, title_justify="left", header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*("-" if value is None else escape(str(value)) for value in row))
        self.console.print(table)


class StatusLine:
    """The status line of a step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._last = ""
        self._since = Stopwatch()

    def __enter__(self) -> StatusLine:
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
