"""A report as Markdown that GitHub renders."""

from __future__ import annotations

import re

from hotlap.report import figures, paper
from hotlap.report.findings import TuneReport
from hotlap.report.profile_findings import ProfileReport


def tune(report: TuneReport) -> str:
    """The experiment section of a tuning."""
    return render(paper.tune(report))


def profile(report: ProfileReport) -> str:
    """Where the steps went."""
    return render(paper.profile(report))


def render(found: paper.Paper) -> str:
    """A paper as Markdown; pictures are expected in `figures/` beside it."""
    blocks = [f"# {_words(found.title)}", *map(_words, found.abstract)]
    for part in found.parts:
        blocks.append(f"## {part.title}")
        blocks += [_piece(piece) for piece in part.pieces]
    return "\n\n".join(blocks) + "\n"


def _piece(piece: paper.Words | paper.Table | paper.Picture) -> str:
    if isinstance(piece, paper.Table):
        return _table(piece)
    if isinstance(piece, paper.Picture):
        return f"![{escaped(piece.caption)}](figures/{piece.name}.svg)\n\n*{escaped(piece.caption)}*"
    return _words(piece)


def _table(table: paper.Table) -> str:
    rule = ["---:" if column in table.right else "---" for column in range(len(table.head))]
    rows = [map(escaped, table.head), rule, *(map(_cell, row) for row in table.rows)]
    return f"{escaped(table.caption)}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    # a bar ends a cell even inside a code span
    spans = paper.spans(text)
    return "".join(_span(one).replace("|", "\\|") if isinstance(one, paper.Code) else _span(one) for one in spans)


def _words(words: paper.Words) -> str:
    return "".join(map(_word, words))


def _word(text: str) -> str:
    return "".join(map(_span, paper.spans(text)))


def _span(text: str) -> str:
    return _code(text) if isinstance(text, paper.Code) else escaped(text)


def _code(text: str) -> str:
    text = figures.line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def escaped(text: str) -> str:
    """Text that stays text: no markup, no HTML, no mathematics."""
    text = re.sub(r"([\\`*\[\]|~$#])", r"\\\1", re.sub(r"\s+", " ", text))
    text = re.sub(r"&(?=[\w\\])", "&amp;", text)
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)  # "a < b" and "<= 0.02" are no tags
    text = re.sub(r"^([>+-] )", r"\\\1", text)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)  # an underscore inside a word is harmless
