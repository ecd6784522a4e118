"""The commands: one function each, which parses, calls and renders. The only file that imports everything, and that
only when it is needed: `hotlap --help` loads neither torch nor a renderer."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from typing import Annotated, Any

import typer

import hotlap
from hotlap.errors import HotlapError
from hotlap.options import (
    AcceptWrites,
    AllowNetwork,
    Module,
    Only,
    Paths,
    Script,
    Skip,
    as_python_would,
    listed,
    seconds_in,
    target_of,
)

FIRST, SECOND, REST = "The three that matter", "Three that help", "And the rest"
_SCRIPT = {"allow_interspersed_args": False}  # what follows the script belongs to the script

app = typer.Typer(
    help="Runs the PyTorch training script you already have faster, and proves that it is still the same training.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.command(rich_help_panel=FIRST, context_settings=_SCRIPT)
def profile(
    script: Script,
    m: Module = False,
    steps: Annotated[int, typer.Option(min=0, help="time so many steps, then stop; 0 = run to the end")] = 100,
    seconds: Annotated[
        float, typer.Option(min=0, help="or stop after so many seconds of training; 0 = no limit")
    ] = 60.0,
    warmup: Annotated[int, typer.Option(min=-1, help="steps left out at first; -1 = as many as it takes")] = -1,
    json_file: Annotated[str, typer.Option("--json", help="also write the report as JSON to this file")] = "",
    html_file: Annotated[str, typer.Option("--html", help="also write the report as one HTML file")] = "",
    trace_file: Annotated[str, typer.Option("--trace", help="also write every event, for ui.perfetto.dev")] = "",
    compare: Annotated[str, typer.Option(help="an earlier profile's JSON to compare with")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no word on how far it is")] = False,
) -> int:
    """Run the script as it is and say where every step went."""
    from rich.console import Console

    from hotlap.catalogue import TECHNIQUES
    from hotlap.measure.profile import Wishes
    from hotlap.measure.profile import profile as measured
    from hotlap.report import folder, terminal

    before = folder.read_profile(compare) if compare else None
    for path in filter(None, (json_file, html_file, trace_file)):
        if os.path.isdir(path):
            raise HotlapError(f"{path} is a folder: name a file in it")
        folder.check_writable(os.path.dirname(path) or ".", "name another place")
    wishes = Wishes(steps, 0.0 if steps == 0 and seconds == 60.0 else seconds, None if warmup < 0 else warmup, quiet)
    report, code, events = measured(target_of(script, m), TECHNIQUES, wishes, keep_events=bool(trace_file))
    Console().print("\n", terminal.profile(report))  # the script may have left its last line open
    if before is not None:
        from hotlap.report.compare import compare as compared

        Console().print(compared(before, report))
    if json_file:
        folder.write_file(json_file, folder.render(report, "json"))
    if html_file:
        from hotlap.report import html

        folder.write_file(html_file, html.profile(report))
    if trace_file:
        from hotlap.measure.traced import traced
        from hotlap.report.trace import trace

        folder.write_file(trace_file, trace(traced(events)))
    return code


@app.command(rich_help_panel=FIRST, context_settings=_SCRIPT)
def tune(
    script: Script,
    m: Module = False,
    budget: Annotated[str, typer.Option(help="time to spend, as 90s, 5m, 1h")] = "5m",
    report: Annotated[str, typer.Option(help="folder for the report")] = "hotlap-report",
    only: Only = "",
    skip: Skip = "",
    allow: Annotated[str, typer.Option(help="'different' also tries what makes it another training")] = "",
    allow_network: AllowNetwork = False,
    accept_writes: AcceptWrites = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure all anew, also what is known")] = False,
) -> int:
    """Find the fastest plan that is still the same training, and write it to hotlap.toml."""
    from rich.console import Console

    from hotlap import choosing
    from hotlap import evidence as proofs
    from hotlap import plan as plans
    from hotlap.catalogue import TECHNIQUES
    from hotlap.measure.tune import Wishes
    from hotlap.measure.tune import tune as measured
    from hotlap.report import folder, terminal
    from hotlap.report.findings import NotTried
    from hotlap.report.live import LiveTrials

    if allow not in ("", "different"):
        raise HotlapError(f"--allow takes 'different', not {allow!r}")
    target, console = target_of(script, m), Console()
    target.check()
    folder.check_writable(report, "name another folder with --report")
    folder.check_writable(os.path.dirname(target.path), "hotlap.toml is written there")
    plans.read(target.path), proofs.read(target.path)  # what cannot be kept is said before minutes are spent
    where = os.path.abspath(report)
    wishes = Wishes(seconds_in(budget), None, allow == "different", allow_network, accept_writes, where, fresh)
    chosen = choosing.chosen(listed(only), listed(skip))
    left_out = [NotTried(one.id, "left out by --only or --skip") for one in TECHNIQUES if one not in chosen]
    _end_tidily_when_told_to()
    with LiveTrials(console, wishes.budget_seconds) as live:
        result, plan, evidence = measured(target, chosen, left_out, wishes, live)
    if plan is not None and evidence is not None:
        proofs.write(target.path, evidence)
        plans.write(target.path, plan)
    elif not result.cut_short:
        plans.remove(target.path)
        proofs.remove(target.path)
    written = folder.write(result, report)
    console.print()
    console.print(terminal.tune(result))
    console.print(f"report: {os.path.join(written, 'report.html')}", style="dim", highlight=False)
    return 130 if result.cut_short and live.interrupted else 0


@app.command(rich_help_panel=FIRST, context_settings=_SCRIPT)
def run(
    script: Script,
    m: Module = False,
    with_: Annotated[
        str | None, typer.Option("--with", help="these techniques instead of a plan: a,b:setting=1:other=2")
    ] = None,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="apply nothing, only watch")] = False,
    no_rewrite: Annotated[bool, typer.Option("--no-rewrite", help="leave out what only source can express")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="not a word from hotlap")] = False,
) -> Any:
    """Run the script the fast way: with its plan, or with the techniques you name."""
    from hotlap.applying import named
    from hotlap.choosing import planned, without_a_gpu
    from hotlap.drive import drive

    target = target_of(script, m)
    target.check()
    if with_ is not None and no_plan:
        raise HotlapError("--with and --no-plan exclude each other: leave one of them out")
    if with_ is not None:
        choices, words = named(with_, ("apply", "rewrite")), ""
    elif no_plan:
        choices, words = [], "no plan wanted"
    else:
        choices, words = planned(target)
    words = "; ".join(filter(None, (words, without_a_gpu(choices))))
    # Run outside the command parser: see main.
    return functools.partial(drive, target, choices, words, quiet, not no_rewrite)


@app.command(rich_help_panel=SECOND)
def check(
    paths: Paths,
    format: Annotated[str, typer.Option(help="text, json, sarif or github")] = "text",
    only: Only = "",
    skip: Skip = "",
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
        _say(trouble)
    return 2 if troubles else 1 if findings else 0


@app.command(rich_help_panel=SECOND)
def fix(
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH...", show_default=False)] = None,
    diff: Annotated[bool, typer.Option("--diff", help="show the changes, write nothing")] = False,
    plan: Annotated[str, typer.Option(help="write exactly what this hotlap.toml keeps")] = "",
    unsafe: Annotated[bool, typer.Option("--unsafe", help="also fixes that may change numerics or behaviour")] = False,
    only: Only = "",
    skip: Skip = "",
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
        _say(f"{name} is left out: what it writes needs {package}, which is not installed here")
    troubles: list[str] = []
    written: set[str] = set()
    fixed = 0
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
            _say(f"{choice} has no form in source; `hotlap run` applies it")
        elif choice.technique.id not in written:
            why = "it is there already, or its value comes from an option, or only `hotlap run` can apply it"
            _say(f"{choice}: no place to write it was found; {why}")
    for trouble in troubles:
        _say(trouble)
    if not fixed and not troubles:
        print("nothing to fix" if plan or unsafe else "nothing to fix safely: --unsafe --diff shows what else there is")
    return 2 if troubles else 0


@app.command(rich_help_panel=SECOND)
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


@app.command(rich_help_panel=REST, context_settings=_SCRIPT)
def verify(
    script: Script,
    m: Module = False,
    speed: Annotated[bool, typer.Option("--speed", help="also measure the speed-up again, by a few pairs")] = False,
    allow_network: AllowNetwork = False,
    accept_writes: AcceptWrites = False,
) -> int:
    """Check a plan's parity again, here and now, against hotlap.proof.json. Exit code 1 when it fails."""
    from rich.console import Console

    from hotlap import evidence as proofs
    from hotlap import plan as plans
    from hotlap.catalogue import find
    from hotlap.measure.verify import Wishes
    from hotlap.measure.verify import verify as verified
    from hotlap.report import terminal
    from hotlap.report.live import LiveTrials

    target, console = target_of(script, m), Console()
    target.check()
    plan, evidence = plans.read(target.path), proofs.read(target.path)
    if plan is None or not plan.entries:
        raise HotlapError(f"there is no plan for {target} to verify: `hotlap tune` makes one")
    if evidence is None:
        raise HotlapError(f"there is no proof of the plan for {target} in {proofs.FILE}: `hotlap tune` writes one")
    wishes = Wishes(speed, allow_network, accept_writes)
    _end_tidily_when_told_to()
    with LiveTrials(console) as live:
        result = verified(target, plan, plan.choices(find), evidence, wishes, live)
    console.print()
    console.print(terminal.verify(result))
    return 0 if result.passed else 1


@app.command(rich_help_panel=REST)
def explain(
    technique: Annotated[str, typer.Argument(help="a name or an alias", show_default=False)] = "",
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


@app.command(rich_help_panel=REST)
def report(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="where a report was written", show_default=False)],
    format: Annotated[str, typer.Option(help="text, html, md, tex or json")] = "text",
) -> int:
    """Render a saved report again."""
    from hotlap.report import folder

    print(folder.render(folder.read(directory), format))
    return 0


@app.callback(invoke_without_command=True)
def version(version: Annotated[bool, typer.Option("--version", help="show the version")] = False) -> None:
    if version:
        print(hotlap.__version__)
        raise typer.Exit


def main() -> None:
    """Exit codes: the script's own for `run` and `profile`; 0 or 1 where a command says so; 2 when hotlap could not do
    what was asked, with one sentence on stderr."""
    try:
        result = app(as_python_would(app, sys.argv[1:]), standalone_mode=False, prog_name="hotlap")
    except HotlapError as error:
        _say(str(error))
        sys.exit(2)
    except typer.Abort:
        _say("stopped")
        sys.exit(130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not the parser's own: ours, and a bug
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "hotlap")
        _say(f"{error.format_message().rstrip('.')}: see `{command} --help`")
        sys.exit(2)
    if callable(result):
        result = result()
    sys.exit(result)


def _end_tidily_when_told_to() -> None:
    """A scheduler's SIGTERM ends trials and removes their folder, as Ctrl-C does; nothing is kept."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _say(sentence: str) -> None:
    print(f"hotlap: {sentence}", file=sys.stderr)
