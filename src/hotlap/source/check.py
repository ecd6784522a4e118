"""Looks through files and folders for places that lack a technique."""

from __future__ import annotations

import ast
import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from hotlap.errors import HotlapError
from hotlap.source.files import PYTHON, File, files_below, plain_name, read_if_it_trains
from hotlap.source.module import Fix, Severity, Site, Source
from hotlap.source.notebooks import SUFFIX, Notebook, read_notebook
from hotlap.source.parsing import decoded
from hotlap.source.project import Project
from hotlap.source.store import Store, digest, version_of

_PAYS_BYTES = 200_000  # of source still to be read; below that, starting processes costs more than it saves


class Spotter(Protocol):
    """What is asked of a technique here."""

    @property
    def id(self) -> str: ...

    @property
    def verbs(self) -> tuple[str, ...]: ...

    def spot(self, source: Any) -> Iterator[Site]: ...


@dataclass(frozen=True)
class Found:
    """One place, as plain data: it travels between processes and into the store."""

    technique: str
    path: str
    line: int
    column: int
    message: str
    fix: Fix
    severity: Severity
    doubtful: bool
    excerpt: str
    cell: int | None = None  # of a notebook; lines then count from its beginning


@dataclass(frozen=True)
class _Job:
    path: str
    data: bytes
    spotters: tuple[Spotter, ...]


_Result = tuple[list[Found], list[str], set[str]]  # what was found, troubles, and the files the answer rests on


def check(
    paths: Iterable[str | os.PathLike[str]],
    techniques: Iterable[Spotter],
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    doubtful: bool = False,
    cached: bool = False,
    resolve: Callable[[str], str] = plain_name,
) -> tuple[list[Found], list[str]]:
    """Everything found below the paths, and one sentence for each file or folder that could not be read.

    `only` takes the place of what pyproject.toml selects, `skip` comes on top of what it ignores."""
    wanted, unwanted = {resolve(name) for name in only}, {resolve(name) for name in skip}
    spotters = [one for one in techniques if "spot" in one.verbs and one.id not in unwanted]
    troubles: list[str] = []
    jobs: list[_Job] = []
    for file in files_below(paths, troubles, (*PYTHON, SUFFIX), resolve):
        try:
            data = read_if_it_trains(file.path)
        except HotlapError as error:
            troubles.append(str(error))
            continue
        chosen = tuple(one for one in spotters if _is_wanted(one.id, file, wanted))
        if data is not None and chosen:
            jobs.append(_Job(file.path, data, chosen))
    findings: list[Found] = []
    for found, said in _answers(jobs, Store("check", cached)):
        findings += [one for one in found if doubtful or not one.doubtful]
        troubles += said
    return findings, troubles


def is_silenced(site: Site, technique_id: str) -> bool:
    """Whether a comment silences a site: on its line, or on a later line of the same expression."""
    last = site.node.end_lineno if isinstance(site.node, ast.expr) else None
    return any(site.source.is_ignored(line, technique_id) for line in range(site.line, (last or site.line) + 1))


def _is_wanted(technique_id: str, file: File, only: set[str]) -> bool:
    configuration = replace(file.configuration, select=frozenset(only)) if only else file.configuration
    return configuration.wants(technique_id, file.path)


def _answers(jobs: list[_Job], store: Store) -> list[tuple[list[Found], list[str]]]:
    """One answer a job, from the store where nothing changed since."""
    version = version_of({one.id: one for job in jobs for one in job.spotters}.values()) if store.folder else ""
    keys = [_key(job, version) for job in jobs]
    answers = [_stored(store, job, key) for job, key in zip(jobs, keys, strict=True)]
    missing = [index for index, answer in enumerate(answers) if answer is None]
    for index, result in zip(missing, _worked_out([jobs[index] for index in missing]), strict=True):
        found, troubles, needs = result
        answers[index] = found, troubles
        if not troubles:
            store.put(keys[index], {"found": [asdict(one) for one in found]}, needs)
    if missing:
        store.sweep()
    return [answer for answer in answers if answer is not None]


def _key(job: _Job, version: str) -> str:
    return digest(version, os.path.abspath(job.path), job.data, *(one.id for one in job.spotters))


def _stored(store: Store, job: _Job, key: str) -> tuple[list[Found], list[str]] | None:
    answer = store.get(key)
    try:
        return None if answer is None else ([Found(**{**one, "path": job.path}) for one in answer["found"]], [])
    except (KeyError, TypeError):
        return None


def _worked_out(jobs: list[_Job]) -> list[_Result]:
    """In this process, or in one for each core where there is much to do. Files of a folder stay together, since they
    ask about each other."""
    groups = [list(group) for _, group in itertools.groupby(jobs, key=lambda job: os.path.dirname(job.path))]
    cores = os.cpu_count() or 1
    if cores > 1 and len(groups) > 1 and sum(len(job.data) for job in jobs) > _PAYS_BYTES:
        try:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            pickle.dumps([job.spotters for job in jobs[:1]])
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            with ProcessPoolExecutor(min(cores, len(groups)), multiprocessing.get_context(method)) as pool:
                return [result for results in pool.map(_group, groups) for result in results]
        except (OSError, RuntimeError, AttributeError, TypeError, pickle.PicklingError):
            pass  # no processes to be had here, or a technique that cannot travel: one after the other, then
    return [result for group in groups for result in _group(group)]


def _group(jobs: list[_Job]) -> list[_Result]:
    project = Project()
    return [_checked(job, project) for job in jobs]


def _checked(job: _Job, project: Project) -> _Result:
    troubles: list[str] = []
    book: Notebook | None = None
    try:
        if job.path.endswith(SUFFIX):
            book = read_notebook(job.data, job.path, troubles)
        source = Source(book.text if book else decoded(job.data, job.path), job.path, project)
    except HotlapError as error:
        return [], [*troubles, str(error)], set()
    if book is None:
        project.add(source)
    found: list[Found] = []
    for technique in job.spotters:
        try:
            sites = [site for site in technique.spot(source) if not is_silenced(site, technique.id)]
        except Exception as error:  # one technique that stumbles over one file must not stop the rest
            troubles.append(f"{source.path}: {technique.id} could not be checked ({type(error).__name__}: {error}).")
            continue
        found += [_found(site, technique.id, book) for site in sites]
    return sorted(found, key=lambda one: (one.cell or 0, one.line, one.column)), troubles, project.needs(source.path)


def _found(site: Site, technique_id: str, book: Notebook | None) -> Found:
    cell, line = book.place(site.line) if book else (None, site.line)
    return Found(
        technique_id,
        site.source.path,
        line,
        site.column,
        site.message,
        None if book else site.fix,  # a notebook is read, never written
        site.severity,
        site.doubtful,
        site.source.lines.line(site.line),
        cell,
    )
