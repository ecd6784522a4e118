"""The commands that run no script: they read source, this machine, the catalogue or a saved report. What each needs is
imported when it is called, as in `cli`, which lists them."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

import hotlap
from hotlap.errors import HotlapError, say
from hotlap.options import Only, Paths, Skip, listed


def check(
    paths: Paths,
    format: Annotated[str, typer.Option(help="text, json, sarif or github")] = "text",
    only: Only = None,
    skip: Skip = None,
    doubtful: Annotated[bool, typer.Option("--doubtful", help="also what is likely, but not sure")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="read every file anew")] = False,
) -> int:
    """Read source and report speed and memory mistakes. Exit code 1 when it found something, 2 on error."""
    from dataclasses import asdict

    from hotlap.catalogue import TECHNIQUES, find
    from hotlap.report import check as rendering
    from hotlap.report.findings import Finding
    from hotlap.source.check import check as spotted

    names, others = listed(only), listed(skip)
    found, troubles = spotted(paths, TECHNIQUES, names, others, doubtful, not no_cache, lambda name: find(name).id)
    findings = [Finding(**asdict(one)) for one in found]
    rules = [(one.id, one.summary) for one in TECHNIQUES if "spot" in one.verbs]
    if findings or not troubles or format != "text":  # "nothing found" is not true of what could not be read
        sys.stdout.write(rendering.render(findings, format, rules, version=hotlap.__version__))
    for trouble in troubles:
        say(trouble)
    return 2 if troubles else 1 if findings else 0


def fix(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="files and folders; none = what --plan names", show_default=False),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="show the changes, write nothing")] = False,
    plan: Annotated[str, typer.Option(help="write exactly what this hotlap.toml keeps")] = "",
    unsafe: Annotated[bool, typer.Option("--unsafe", help="also fixes that may change numerics or behaviour")] = False,
    only: Only = None,
    skip: Skip = None,
) -> int:
    """Write the fixes into the source: safe ones, or exactly what a plan keeps."""
    from hotlap.catalogue import find
    from hotlap.choosing import planned_files, writable
    from hotlap.source.fix import fix_files, replace_file, unified_diff

    planned = planned_files(plan) if plan else {}
    if not paths and not plan:
        raise HotlapError("name the files or folders to fix, or a plan with --plan")
    defaults, missing = ([], {}) if plan else writable(listed(only), listed(skip))
    for name, package in missing.items() if only else ():
        say(f"{name} is left out: what it writes needs {package}, which is not installed here")
    troubles: list[str] = []
    written: set[str] = set()
    fixed = 0
    kept = [one.technique for some in planned.values() for one in some]
    left = {one for one in kept if one.written_otherwise and not unsafe}
    for technique in left:
        say(f"{technique.id} is left out: in source it is other code than was measured; --unsafe --diff shows it")
    planned = {path: [one for one in some if one.technique not in left] for path, some in planned.items()}
    wanted = (lambda path: planned.get(os.path.realpath(path), [])) if plan else (lambda path: defaults)
    given = paths or [os.path.relpath(path) for path in planned]
    is_measured = bool(plan)  # then nothing about it is doubtful any more
    results = fix_files(given, wanted, unsafe or is_measured, troubles, lambda name: find(name).id, is_measured)
    for source, result in results:
        written.update(result.techniques)
        if result.text == source.text:
            continue
        fixed += 1
        if diff:
            sys.stdout.write(unified_diff(source.text, result.text, str(source.path)))
            continue
        try:
            replace_file(source.path, result.text)
            print(f"fixed {source.path}")
        except HotlapError as error:
            troubles.append(str(error))
    for choice in {one.technique.id: one for choices in planned.values() for one in choices}.values():
        if "rewrite" not in choice.technique.verbs:
            say(f"{choice} has no form in source; `hotlap run` applies it")
        elif choice.technique.id not in written:
            why = "it is there already, or its value comes from an option, or only `hotlap run` can apply it"
            say(f"{choice}: no place to write it was found; {why}")
    for trouble in troubles:
        say(trouble)
    if not fixed and not troubles:
        print("nothing to fix" if plan or unsafe else "nothing to fix safely: --unsafe --diff shows what else there is")
    return 2 if troubles else 0


def env(as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> int:
    """Is this machine ready to train fast? Exit code 1 when something can be mended."""
    from dataclasses import asdict

    from rich.console import Console

    from hotlap.observe.machine import Machine
    from hotlap.observe.readiness import readiness
    from hotlap.report import terminal

    machine = Machine.read()
    rows = readiness(machine)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console().print(terminal.readiness(machine.hardware, rows))
    return int(any(row.ok is False for row in rows))


def explain(
    technique: Annotated[str, typer.Argument(metavar="TECHNIQUE", help="a name or an alias", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="the catalogue as JSON")] = False,
) -> int:
    """What hotlap knows: the catalogue, or one technique in full. Knows the names people search for."""
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table

    from hotlap.catalogue import TECHNIQUES, find
    from hotlap.explain import page, row

    console = Console()
    if as_json:
        print(json.dumps([row(one) for one in ([find(technique)] if technique else TECHNIQUES)], indent=1))
    elif technique:
        console.print(Markdown(page(find(technique))))
    else:
        table = Table("technique", "saves from", "parity", "what you gain", box=None, pad_edge=False)
        for one in TECHNIQUES:
            table.add_row(one.id, one.family.value, one.weakest_parity.value, one.summary)
        console.print(table)
    return 0


def report(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="where a report was written", show_default=False)],
    format: Annotated[
        str, typer.Option(help="text, html, md, tex or json; several, comma-separated, become files beside the data")
    ] = "text",
) -> int:
    """Render a saved report again."""
    from hotlap.report import folder

    formats = listed(format)
    if len(formats) > 1:
        print(*folder.write_again(directory, formats), sep="\n")
    else:
        print(folder.render(folder.read(directory), "".join(formats)))
    return 0
