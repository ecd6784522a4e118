"""What the processes that make batches have left behind, read back: whoever is still alive."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hotlap.observe.meters import shm_room
from hotlap.observe.scrutiny_facts import FeedFacts, Maker, Making
from hotlap.observe.stacks import COLLATE, OWN, Label


def read_makers(folder: str) -> list[dict[str, Any]]:
    """What each process has left in the folder."""
    found = []
    for path in sorted(Path(folder).glob("feed-*.json")):
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return found


def feed_facts(folder: str, datasets: Collection[int] | None = None) -> FeedFacts:
    """How batches of these data sets, or of all, were made: from the folder alone, whoever is still alive."""
    processes = read_makers(folder)
    rows = [
        (process, ledger)
        for process in processes
        for ledger in process["ledgers"]
        if datasets is None or ledger["dataset"] in datasets
    ]
    ledgers = [ledger for _, ledger in rows]
    sizes = [size for ledger in ledgers for size in ledger["sizes"]]
    sizes = sizes or [ledger["drawn_samples"] for ledger in ledgers if ledger["drawn_samples"]]
    batch_bytes = [size for ledger in ledgers for size in ledger["batch_bytes"]]
    draws = sum(ledger["draws"] for ledger in ledgers)
    reasons = [ledger["unwatched"] for ledger in ledgers] + [process["failed"] for process, _ in rows]
    shm_bytes, shm_free = shm_room()
    return FeedFacts(
        makers=_makers(rows),
        makings=_makings(ledgers),
        batch_bytes=statistics.median_low(batch_bytes) if batch_bytes else 0,
        batch_samples=statistics.median_low(sizes) if sizes else 0,
        draws=draws,
        draws_from_empty=sum(ledger["draws_from_empty"] for ledger in ledgers),
        mean_depth=sum(ledger["depths"] for ledger in ledgers) / draws if draws else 0.0,
        capacity=max((ledger["capacity"] for ledger in ledgers), default=0),
        shm_bytes=max((process["shm_bytes"] for process in processes), default=shm_bytes),
        shm_free_bytes=min((process["shm_free_bytes"] for process in processes), default=shm_free),
        unwatched=next(filter(None, reasons), ""),
    )


def _makers(rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Maker]:
    """One for each worker's number: a loader may start its workers again with each epoch."""
    found: dict[int, Maker] = {}
    for process, ledger in rows:
        if not ledger["seconds"]:
            continue  # it only drew
        number = process["worker"]
        one = found.get(number, Maker(number, 0, 0, 0.0, 0, 0, 0, 0.0))
        found[number] = Maker(
            worker=number,
            batches=one.batches + ledger["batches"],
            samples=one.samples + ledger["samples"],
            seconds=one.seconds + ledger["seconds"],
            read_bytes=one.read_bytes + ledger["read_bytes"],
            asked_bytes=one.asked_bytes + ledger["asked_bytes"],
            resident_bytes=max(one.resident_bytes, process["resident_bytes"]),
            waited_seconds=one.waited_seconds + ledger["waited_seconds"],
        )
    return [found[number] for number in sorted(found)]


def _makings(ledgers: list[dict[str, Any]]) -> list[Making]:
    """Shares from the samples, seconds from the clock: they add up to what making took."""
    seconds: dict[Label, float] = {}
    collating = [(ledger["collate_seconds"], ledger["seen"]) for ledger in ledgers]
    before = [(ledger["seconds"] - ledger["collate_seconds"], ledger["seen"]) for ledger in ledgers]
    _share_out(collating, lambda what: what == COLLATE, COLLATE, seconds)
    _share_out(before, lambda what: what != COLLATE, OWN, seconds)
    return sorted((Making(label[0], one, *label[1:]) for label, one in seconds.items()), key=lambda row: -row.seconds)


def _share_out(
    parts: list[tuple[float, list[list[Any]]]], belongs: Callable[[str], bool], unseen: str, into: dict[Label, float]
) -> None:
    """The time of each process by its samples. One too short to be sampled is taken to have done as the others did."""
    shares: dict[Label, float] = {}
    for seconds, seen in parts:
        rows = [(tuple(label), weight) for *label, weight in seen if belongs(label[0])]
        total = sum(weight for _, weight in rows)
        for label, weight in rows:
            shares[label] = shares.get(label, 0.0) + seconds * weight / total
    time_taken, known = sum(seconds for seconds, _ in parts), sum(shares.values())
    if time_taken > 0:
        shares = {label: one * time_taken / known for label, one in shares.items()} if known else {}
        into.update(shares or {(unseen, "", 0): time_taken})
