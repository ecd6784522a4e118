"""The commands: one function each, which parses, calls and renders; those that run no script stand in `cli_reading`.
The only file that imports everything, and that only when it is needed: `hotlap --help` loads neither torch nor a
renderer."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import hotlap
from hotlap.cli_reading import check, env, explain, fix, report
from hotlap.errors import HotlapError, Stopped, say
from hotlap.front_page import FrontPage
from hotlap.options import (
    AcceptWrites,
    AllowNetwork,
    Module,
    Only,
    Script,
    Skip,
    With,
    as_python_would,
    listed,
    seconds_in,
    target_of,
)

app = typer.Typer(
    cls=FrontPage,
    help="Runs the PyTorch training script you already have faster, and proves that it is still the same training.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


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


def tune(
    script: Script,
    m: Module = False,
    budget: Annotated[str, typer.Option(help="time to spend, as 90s, 5m, 1h; half more if only proof is left")] = "5m",
    report: Annotated[str, typer.Option(help="folder for the report")] = "hotlap-report",
    only: Only = None,
    skip: Skip = None,
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
    with _ending_tidily(), LiveTrials(console, wishes.budget_seconds) as live:
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


def run(
    script: Script,
    m: Module = False,
    with_: With = None,
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
        choices, words = named(",".join(with_), ("apply", "rewrite")), ""
    elif no_plan:
        choices, words = [], "no plan wanted"
    else:
        choices, words = planned(target)
    words = "; ".join(filter(None, (words, without_a_gpu(choices))))
    # Run outside the command parser: see main.
    return functools.partial(drive, target, choices, words, quiet, not no_rewrite)


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
        words = "`hotlap tune` writes one if it finds something that helps"
        raise HotlapError(f"there is no plan for {target} to verify: {words}")
    if evidence is None:
        raise HotlapError(f"there is no proof of the plan for {target} in {proofs.FILE}: `hotlap tune` writes one")
    wishes = Wishes(speed, allow_network, accept_writes)
    with _ending_tidily(), LiveTrials(console) as live:
        result = verified(target, plan, plan.choices(find), evidence, wishes, live)
    console.print()
    console.print(terminal.verify(result))
    return 0 if result.passed else 1


# In the order of `hotlap --help`. What follows a script belongs to the script.
for panel, commands in (
    ("The three that matter", (profile, tune, run)),
    ("Three that help", (check, fix, env)),
    ("And the rest", (verify, explain, report)),
):
    for command in commands:
        takes_script = command in (profile, tune, run, verify)
        app.command(rich_help_panel=panel, context_settings={"allow_interspersed_args": not takes_script})(command)


@app.callback(invoke_without_command=True)
def version(version: Annotated[bool, typer.Option("--version", help="show the version")] = False) -> None:
    if version:
        print(hotlap.__version__)
        raise typer.Exit


def main() -> None:
    """Exit codes: the script's own for `run` and `profile`; 0 or 1 where a command says so; 130 after Ctrl-C; 2 when
    hotlap could not do what was asked, with one sentence on stderr."""
    try:
        result = app(as_python_would(app, sys.argv[1:]), standalone_mode=False, prog_name="hotlap")
    except HotlapError as error:
        say(str(error))
        sys.exit(error.code)
    except typer.Abort:
        say("stopped")
        sys.exit(130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not the parser's own: ours, and a bug
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "hotlap")
        if words := error.format_message().rstrip("."):  # none where the help itself was shown instead
            say(f"{words} See `{command} --help`" if words.endswith("?") else f"{words}: see `{command} --help`")
        sys.exit(2)
    if callable(result):
        result = result()
    sys.exit(result)


@contextlib.contextmanager
def _ending_tidily() -> Iterator[None]:
    """A scheduler's SIGTERM ends trials and removes their folder, as Ctrl-C does; nothing is kept."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped("stopped before there was a result: nothing was written") from None
