"""From what was seen and the ledger's events to the record of a run. Both may come from a process that is gone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hotlap.observe.anatomy import anatomy
from hotlap.observe.events import Event
from hotlap.observe.run import Run
from hotlap.observe.waits import Site, sync_facts


@dataclass(frozen=True)
class Snapshot:
    """All that is known of a run but its steps."""

    run: Run
    loaders: list[int]  # the ledger's keys of the run's loaders, in their order
    sites: list[Site]  # where the host waited, by the ledger's numbers


def complete(snapshot: Snapshot, events: list[Event]) -> Run:
    """The record: the steps, and which loaders trained, are read from the events."""
    parts = anatomy(events)
    run = snapshot.run
    return dataclasses.replace(
        run,
        loaders=[
            dataclasses.replace(facts, trains=key in parts.training_loaders)
            for key, facts in zip(snapshot.loaders, run.loaders, strict=True)
        ],
        syncs=sync_facts(snapshot.sites, events, parts),
        step_seconds=[step.seconds for step in parts.steps],
        step_parts=[list(step.parts) for step in parts.steps],
        device_parts=[list(step.device_parts) for step in parts.steps if step.device_parts],
        epoch_starts=[number for number, step in enumerate(parts.steps) if step.starts_epoch],
        epoch_seconds=parts.epoch_seconds,
        evaluation_seconds=parts.evaluation_seconds,
        evaluation_passes=len(parts.evaluations),
        evaluation_parts=list(parts.evaluation_parts),
    )
