"""Tables that show every digit, however narrow the terminal is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnout.cli.options import printable

#: The columns that never wrap: names, which users copy.
NAMES = ("name", "setting", "client", "id", "verdict")
#: The width of lines of text that no terminal limits.
USUAL_WIDTH = 80
#: The characters beside each column with lines between the columns, and without.
LINES, NO_LINES = 3, 2
Cell = str | Text | Sequence[str]


def print_table(
    headings: Sequence[str],
    rows: Iterable[Iterable[Cell]],
    title: str | None = None,
    *,
    optional: Sequence[str] = (),
    show_lines: bool = False,
) -> None:
    """Prints a table; what clients and files have written is escaped.

    A terminal that is too narrow for lines between the columns gets none; then numbers wrap at spaces, columns are left
    out, and in the end each row is a list. What is no terminal gets the width that the table needs.

    Args:
        headings: The headings; that of a column that is aligned to the right ends in `>`. Without any, the table has no
            header.
        rows: The cells of each row: a text, or a list of lines.
        title: The title.
        optional: The headings of columns that may be left out, the first one first.
        show_lines: Whether there are lines between the rows.
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    names = headings or [""] * len(cells[0] if cells else ())
    columns = {index: [Text(name.removesuffix(">"))] for index, name in enumerate(names)}
    for row in cells:
        for index, cell in enumerate(row):
            columns[index].append(cell)
    console, shown = Console(highlight=False), None if title is None else printable(title)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        needed = sum(_least(names[index], column, whole=True) + LINES for index, column in columns.items()) + 1
        console = Console(highlight=False, width=max(USUAL_WIDTH, needed))
    dropped: list[str] = []
    for leave_out in (None, *optional):
        if leave_out is not None:
            columns.pop(names.index(leave_out), None)
            dropped.append(leave_out.removesuffix(">"))
        for border, whole in ((LINES, True), (NO_LINES, True), (NO_LINES, False)):
            room = console.width - border * len(columns) - 1
            least = [_least(names[index], column, whole=whole) for index, column in columns.items()]
            if not headings and len(least) == 2:  # a list of values, whose long words fold
                least[1] = min(least[1], max(room - least[0], 1))
            if sum(least) > room:
                continue
            table = Table(title=shown, show_header=bool(headings), show_lines=show_lines)
            if border == NO_LINES:
                table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
            natural = [max(map(_longest_line, column)) for column in columns.values()]
            for (index, column), width in zip(columns.items(), share_width(natural, least, room), strict=True):
                justify = "right" if names[index].endswith(">") else "left"
                table.add_column(column[0], justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]
            for row in cells:
                table.add_row(*(row[index] for index in columns))
            console.print(table)
            if dropped:
                console.print(f"Not shown, for lack of width: {'; '.join(dropped)}.")
            return
    for line in [] if shown is None else [shown]:
        console.print(line, soft_wrap=True)
    for first, *others in cells:
        console.print(first, soft_wrap=True)
        for name, cell in zip(names[1:], others, strict=True):
            if cell:
                console.print(Text(f"  {name.removesuffix('>') or '·'}: ").append_text(cell), soft_wrap=True)


def share_width(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Returns the width of each column, at least its `least`: those that need little are served first.

    >>> share_width([5, 40, 100], [5, 10, 10], 65)
    [5, 30, 30]
    """
    widths, left = list(least), room - sum(least)
    order = sorted(range(len(widths)), key=lambda column: natural[column] - least[column])
    for served, column in enumerate(order):
        given = max(min(natural[column] - least[column], left // (len(order) - served)), 0)
        widths[column] += given
        left -= given
    return widths


def _least(name: str, column: Sequence[Text], *, whole: bool) -> int:
    """Returns the width below which words of a column are cut; with `whole`, below which numbers and names wrap."""
    heading, *cells = column
    is_kept = name in NAMES or (whole and name.endswith(">"))
    return max([_longest_word(heading), *map(_longest_line if is_kept else _longest_word, cells)])


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text("\n").join(map(printable, [cell] if isinstance(cell, str) else cell))


def _longest_line(text: Text) -> int:
    return max((line.cell_len for line in text.split("\n")), default=0)


def _longest_word(text: Text) -> int:
    return max((Text(word).cell_len for word in text.plain.split()), default=0)
