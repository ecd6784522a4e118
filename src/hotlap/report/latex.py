r"""A report as LaTeX: a whole document to compile, whose sections can be lifted into a paper that loads booktabs."""

from __future__ import annotations

from hotlap.report import figures, paper
from hotlap.report.findings import TuneReport
from hotlap.report.profile_findings import ProfileReport

HEAD = r"""% Sections between the two marks need \usepackage{booktabs,graphicx,array} and the files in figures/.
\documentclass[11pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage{textcomp}
\usepackage[margin=25mm]{geometry}
\usepackage{array}
\usepackage{booktabs}
\usepackage{graphicx}
\emergencystretch=2em
\setlength{\belowcaptionskip}{4pt}
\renewcommand{\floatpagefraction}{0.8}
"""

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # at the start of a row it would be an option of the row before
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "-{}",  # two in a row are two, not a dash
    "\N{EN DASH}": "--",
    "—": "---",
    "…": r"\ldots{}",
    "→": r"$\rightarrow$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MICRO SIGN}": r"$\mu$",
    "\N{GREEK SMALL LETTER MU}": r"$\mu$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}
# a long name may break after these
BREAKS = frozenset("/_.-=,")


def tune(report: TuneReport) -> str:
    """The experiment section of a tuning."""
    return render(paper.tune(report))


def profile(report: ProfileReport) -> str:
    """Where the steps went."""
    return render(paper.profile(report))


def render(found: paper.Paper) -> str:
    """A paper as LaTeX; pictures are expected as PDF in `figures/` beside it."""
    title = _words(found.title)
    lines = [
        HEAD,
        rf"\title{{{title}}}",
        r"\author{}",
        r"\date{}",
        r"\begin{document}",
        r"\maketitle",
        "% begin: lift from here",
    ]
    lines += [f"{_words(words)}\n" for words in found.abstract]
    for part in found.parts:
        lines.append(rf"\section{{{escaped(part.title)}}}")
        lines += [_piece(piece) for piece in part.pieces]
    return "\n".join([*lines, "% end: to here", r"\end{document}", ""])


def _piece(piece: paper.Words | paper.Table | paper.Picture) -> str:
    if isinstance(piece, paper.Table):
        return _table(piece)
    if isinstance(piece, paper.Picture):
        return "\n".join(
            [
                r"\begin{figure}[!htb]",
                r"\centering",
                rf"\includegraphics[width=0.8\linewidth]{{figures/{piece.name}.pdf}}",
                rf"\caption{{{escaped(piece.caption)}}}",
                rf"\label{{fig:hotlap-{piece.name}}}",
                r"\end{figure}",
            ]
        )
    return f"{_words(piece)}\n"


def _table(table: paper.Table) -> str:
    lines = [r"\begin{table}[!htb]", r"\centering", r"\small", rf"\caption{{{escaped(table.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{_columns(table)}}}", r"\toprule", _row(table.head), r"\midrule"]
    return "\n".join([*lines, *map(_row, table.rows), r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _columns(table: paper.Table) -> str:
    """Figures keep their width; texts share what is left of the line according to how long they are."""
    texts = [column for column in range(len(table.head)) if column not in table.right]
    long = {c: min(60, max([len(row[c]) for row in table.rows] + [len(table.head[c])])) for c in texts}
    if sum(long.values()) + 12 * len(table.right) <= 70:
        return "".join("r" if column in table.right else "l" for column in range(len(table.head)))
    room = 1 - 0.03 * len(table.head) - 0.14 * len(table.right)
    width = {column: max(0.1, room * long[column] / sum(long.values())) for column in texts}
    ragged = r">{\raggedright\arraybackslash}"
    return "".join(
        "r" if c in table.right else rf"{ragged}p{{{width[c]:.2f}\linewidth}}" for c in range(len(table.head))
    )


def _row(cells: tuple[str, ...]) -> str:
    return " & ".join(map(_word, cells)) + r" \\"


def _words(words: paper.Words) -> str:
    return "".join(map(_word, words))


def _word(text: str) -> str:
    return "".join(
        rf"\texttt{{{escaped(one, may_break=True)}}}" if isinstance(one, paper.Code) else escaped(one)
        for one in paper.spans(text)
    )


def escaped(text: str, may_break: bool = False) -> str:
    """Text that stays text under pdfLaTeX; letters its fonts lack are given by number."""
    lead, trail = text[:1].isspace(), text[-1:].isspace()
    plain = f"{' ' * lead}{figures.line(text)}{' ' * trail}" if text.strip() else " " * bool(text)
    return "".join(_letter(letter, may_break) for letter in plain)


def _letter(letter: str, may_break: bool) -> str:
    said = SPECIAL.get(letter, letter)
    if said == letter and ord(letter) > 0xFF:
        said = f"{{[}}U+{ord(letter):04X}]"
    elif said == letter and not letter.isprintable():
        said = ""
    return said + r"\allowbreak{}" if may_break and letter in BREAKS else said
