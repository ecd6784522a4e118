"""Steps and shares out of event lists whose truth is known by construction. One second of tape is one unit of work."""

from __future__ import annotations

import pytest

from hotlap.observe.anatomy import anatomy
from hotlap.observe.events import BACKWARD, COPY, DRAW, END, FORWARD, JUDGED, LOOK, OWN, STARTED, SYNC, UPDATE, Event
from hotlap.observe.run import SHARES
from hotlap.observe.trips import BY_UPDATES_AFTER

TRAIN, VALID, OTHER, MODEL, ADAM, SGD = 11, 12, 13, 21, 31, 32


class Tape:
    """A clock that only moves when something happens on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Event] = []

    def __call__(self, kind: int, key: int = 0, seconds: float = 1.0, inside=lambda: None) -> None:
        start = self.now
        inside()
        self.now += seconds
        self.events.append(Event(kind, key, start, self.now))

    def idle(self, seconds: float) -> None:
        self.now += seconds

    def start(self, key: int = TRAIN) -> None:
        self(STARTED, key, 0.0)

    def train(self, optimizer: int = ADAM) -> None:
        self(FORWARD, MODEL, 2)
        self(BACKWARD, 0, 3)
        self(UPDATE, optimizer, 4)

    def trip(self) -> None:
        self(DRAW, TRAIN, 1)
        self.train()
        self.idle(5)

    def evaluate(self, batches: int = 3, key: int = VALID, ends: bool = True) -> None:
        self.start(key)
        for _ in range(batches):
            self(DRAW, key, 7)
            self(JUDGED, MODEL, 9)
        if ends:
            self(END, key, 1)

    def epochs(self, count: int, trips: int, after=lambda: None) -> None:
        for _ in range(count):
            self.start()
            for _ in range(trips):
                self.trip()
            self(END, TRAIN, 1)
            after()

    @property
    def seconds(self) -> list[float]:
        return [step.seconds for step in self.read().steps]

    def read(self):
        """Events arrive in the order in which things ended; steps must not depend on it."""
        found = anatomy(self.events)
        assert anatomy(self.events[::-1]) == found
        for step in found.steps:
            assert step.seconds > 0
            assert sum(step.parts) == pytest.approx(step.seconds)
            assert min(step.parts) >= 0
        return found


def shares(step) -> dict[str, float]:
    return {name: seconds for name, seconds in zip(SHARES, step.parts, strict=True) if seconds}


def test_a_plain_loop() -> None:
    tape = Tape()
    tape.epochs(2, 3)
    found = tape.read()
    assert [step.seconds for step in found.steps] == [15] * 6
    assert shares(found.steps[0]) == {"wait": 1, "forward": 2, "backward": 3, "update": 4, "other": 5}
    assert found.training_loaders == {TRAIN}
    assert found.evaluation_seconds == 0


def test_evaluation_between_epochs_is_in_no_step() -> None:
    tape = Tape()
    tape.epochs(2, 3, after=tape.evaluate)
    found = tape.read()
    assert [step.seconds for step in found.steps] == [15] * 6
    assert found.training_loaders == {TRAIN}
    assert found.evaluation_seconds == 2 * (3 * 16 + 1)


def test_evaluation_inside_a_step_is_cut_out_of_it() -> None:
    tape = Tape()
    tape.start()
    for trip in range(4):
        tape.trip()
        if trip == 1:
            tape.evaluate()
            tape.idle(2)
    tape(END, TRAIN, 1)
    found = tape.read()
    assert [step.seconds for step in found.steps] == [15, 17, 15, 15]
    assert shares(found.steps[1])["wait"] == 1
    assert shares(found.steps[1])["forward"] == 2
    assert found.evaluation_seconds == 3 * 16 + 1


def test_evaluation_between_backward_and_update_does_not_split_the_step() -> None:
    tape = Tape()
    tape.start()
    for _ in range(4):
        tape(DRAW, TRAIN)
        tape(FORWARD, MODEL)
        tape(BACKWARD)
        tape.evaluate()
        tape(UPDATE, ADAM)
    tape(END, TRAIN)
    assert tape.seconds == [4] * 4


def test_evaluation_left_early() -> None:
    tape = Tape()
    tape.epochs(3, 2, after=lambda: tape.evaluate(1, ends=False))
    found = tape.read()
    assert found.training_loaders == {TRAIN}
    assert [step.seconds for step in found.steps] == [15] * 6
    assert found.evaluation_seconds == 3 * 16


def test_evaluation_left_early_before_any_training_and_unjudged() -> None:
    """`next(iter(valid))` for a picture or a sanity check: no root is known yet, so nothing judges the batch."""
    tape = Tape()
    tape.start(VALID)
    tape(DRAW, VALID)
    tape.epochs(2, 3)
    found = tape.read()
    assert found.training_loaders == {TRAIN}
    assert [step.seconds for step in found.steps] == [15] * 6


def test_a_validation_batch_now_and_then_from_one_long_iterator() -> None:
    """Its span would reach over the whole training; what is cut is only what it took."""
    tape = Tape()
    tape.start(VALID)
    tape.start()
    for _ in range(4):
        tape.trip()
        tape(DRAW, VALID, 7)
        tape(JUDGED, MODEL, 9)
    tape(END, TRAIN)
    found = tape.read()
    assert found.training_loaders == {TRAIN}
    assert [step.seconds for step in found.steps] == [15] * 4
    assert found.evaluation_seconds == 4 * 16


def test_two_validation_loaders_at_once_are_cut_once() -> None:
    tape = Tape()
    tape.start()
    for _ in range(3):
        tape.trip()
        tape.start(VALID), tape.start(OTHER)
        for _ in range(2):
            tape(DRAW, VALID, 3), tape(DRAW, OTHER, 3), tape(JUDGED, MODEL, 3)
        tape(END, VALID)
    tape(END, TRAIN)
    assert tape.seconds == [15] * 3


def test_accumulation_counts_every_draw() -> None:
    tape = Tape()
    tape.start()
    for trip in range(6):
        tape(DRAW, TRAIN)
        tape(FORWARD, MODEL)
        tape(BACKWARD)
        if trip % 3 == 2:
            tape(UPDATE, ADAM, 4)
    tape(END, TRAIN)
    assert tape.seconds == [3, 3, 7] * 2


def test_batches_drawn_ahead_belong_to_the_step_that_uses_them() -> None:
    tape = Tape()
    tape.start()
    for _ in range(3):
        for _ in range(4):
            tape(DRAW, TRAIN)
        for _ in range(4):
            tape(FORWARD, MODEL)
            tape(BACKWARD)
        tape(UPDATE, ADAM)
    tape(END, TRAIN)
    assert tape.seconds == [13] * 3


def test_two_optimizers_in_one_step() -> None:
    tape = Tape()
    tape.start()
    for _ in range(3):
        tape(DRAW, TRAIN)
        tape.train(ADAM)
        tape.train(SGD)
    tape(END, TRAIN)
    found = tape.read()
    assert [step.seconds for step in found.steps] == [19] * 3
    assert shares(found.steps[0]) == {"wait": 1, "forward": 4, "backward": 6, "update": 8}


def test_a_closure_is_counted_where_it_happens() -> None:
    def closure() -> None:
        tape(FORWARD, MODEL, 2)
        tape(BACKWARD, 0, 3)

    tape = Tape()
    tape.start()
    for _ in range(3):
        tape(DRAW, TRAIN)
        tape(UPDATE, ADAM, 4, inside=lambda: (closure(), closure()))
    tape(END, TRAIN)
    found = tape.read()
    assert [step.seconds for step in found.steps] == [15] * 3
    assert shares(found.steps[0]) == {"wait": 1, "forward": 4, "backward": 6, "update": 4}


def test_zip_of_two_loaders() -> None:
    tape = Tape()
    for _ in range(2):
        tape.start(TRAIN), tape.start(OTHER)
        for _ in range(3):
            tape(DRAW, TRAIN), tape(DRAW, OTHER)
            tape.train()
        tape(DRAW, TRAIN), tape(END, OTHER)  # the shorter one ends the epoch; one batch is never used
        tape.idle(100)
    found = tape.read()
    assert found.training_loaders == {TRAIN, OTHER}
    assert [step.seconds for step in found.steps] == [11] * 6
    assert shares(found.steps[0])["wait"] == 2


def test_a_second_loader_in_the_middle_of_the_step() -> None:
    tape = Tape()
    tape.start(TRAIN), tape.start(OTHER)
    for trip in range(4):
        tape(DRAW, TRAIN)
        tape.train(ADAM)
        if trip == 2:
            tape(END, OTHER), tape.start(OTHER)
        tape(DRAW, OTHER)
        tape.train(SGD)
    tape(END, TRAIN)
    assert tape.seconds == [20, 20, 21, 20]


def test_a_loader_built_anew_every_epoch() -> None:
    tape = Tape()
    for epoch in range(3):
        tape.start(100 + epoch)
        for _ in range(2):
            tape(DRAW, 100 + epoch)
            tape.train()
        tape(END, 100 + epoch)
        tape.idle(50)
    found = tape.read()
    assert found.training_loaders == {100, 101, 102}
    assert [step.seconds for step in found.steps] == [10] * 6


def test_a_loader_built_anew_and_left_after_one_batch() -> None:
    tape = Tape()
    for epoch in range(4):
        tape.start(100 + epoch)
        tape(DRAW, 100 + epoch)
        tape.train()
    assert tape.seconds == [10] * 3  # nothing tells when the last one ended


def test_epochs_of_one_batch() -> None:
    tape = Tape()
    tape.epochs(5, 1, after=lambda: tape.idle(50))
    assert tape.seconds == [15] * 5


def test_the_first_batch_over_and_over() -> None:
    tape = Tape()
    for _ in range(4):
        tape.start()
        tape.trip()
    assert tape.seconds == [15] * 3


def test_one_batch_for_many_updates() -> None:
    """Its loader tells nothing of steps: what comes after so many updates is counted by them."""
    tape = Tape()
    tape.start()
    tape(DRAW, TRAIN, 100)
    for _ in range(BY_UPDATES_AFTER + 10):
        tape.train()
    found = tape.read()
    assert [step.seconds for step in found.steps] == [9] * 9
    assert found.training_loaders == {TRAIN} and found.evaluation_seconds == 0


def test_one_batch_for_many_updates_and_then_a_plain_loop() -> None:
    """As where a script tries first whether it can learn one batch by heart."""
    tape = Tape()
    tape.start()
    tape(DRAW, TRAIN, 1)
    for _ in range(BY_UPDATES_AFTER + 10):
        tape.train()
    tape.epochs(2, 5)
    found = tape.read()
    assert [step.seconds for step in found.steps[:9]] == [9] * 9
    assert [step.seconds for step in found.steps[-8:]] == [15] * 8 and found.steps[-5].starts_epoch
    assert found.training_loaders == {TRAIN}


def test_a_plain_loop_and_then_updates_without_draws() -> None:
    tape = Tape()
    tape.epochs(2, 5)
    for _ in range(BY_UPDATES_AFTER + 10):
        tape.train()
    found = tape.read()
    assert [step.seconds for step in found.steps][:9] == [15] * 9
    assert [step.seconds for step in found.steps][-9:] == [9] * 9
    assert found.training_loaders == {TRAIN}


def test_a_skipped_batch_is_no_step_of_its_own() -> None:
    tape = Tape()
    tape.start()
    for trip in range(4):
        tape.trip() if trip != 2 else tape(DRAW, TRAIN)
    tape(END, TRAIN)
    assert tape.seconds == [15, 15, 16]


@pytest.mark.parametrize("optimizers", [(ADAM,), (ADAM, SGD)])
def test_without_a_loader_a_step_is_a_cycle_of_updates(optimizers: tuple[int, ...]) -> None:
    tape = Tape()
    for _ in range(5):
        tape.idle(6)
        for optimizer in optimizers:
            tape.train(optimizer)
    found = tape.read()
    assert [step.seconds for step in found.steps] == [6 + 9 * len(optimizers)] * 4
    assert found.training_loaders == frozenset()
    assert shares(found.steps[0])["other"] == 6


def test_training_without_a_loader_and_judging_with_one() -> None:
    tape = Tape()
    for trip in range(6):
        tape.train()
        if trip % 2:
            tape.evaluate()
    found = tape.read()
    assert [step.seconds for step in found.steps] == [9] * 5
    assert found.training_loaders == frozenset()
    assert found.evaluation_seconds == 3 * 49


def test_an_unfinished_cycle_is_no_step() -> None:
    tape = Tape()
    for _ in range(3):
        tape.train(ADAM), tape.train(SGD)
    tape.train(ADAM)
    assert tape.seconds == [18] * 2


def test_nested_events_are_counted_once() -> None:
    """A wait for the device inside a forward inside an update is a wait for the device."""
    tape = Tape()
    tape.start()
    for _ in range(2):
        tape(DRAW, TRAIN)
        tape(BACKWARD)
        tape(
            UPDATE,
            ADAM,
            5,
            inside=lambda: tape(FORWARD, MODEL, 3, inside=lambda: (tape(SYNC, 0, 2), tape(COPY, 0, 1))),
        )
    tape(END, TRAIN)
    assert shares(tape.read().steps[0]) == {"wait": 1, "backward": 1, "update": 5, "forward": 3, "sync": 2, "copy": 1}


def test_two_events_of_one_instant_nest_by_their_length() -> None:
    events = [
        Event(DRAW, TRAIN, 0, 1),
        Event(BACKWARD, 0, 1, 2),
        Event(FORWARD, MODEL, 2, 4),
        Event(UPDATE, ADAM, 2, 8),
    ]
    step = anatomy([*events, Event(END, TRAIN, 8, 9)]).steps[0]
    assert shares(step) == {"wait": 1, "backward": 1, "forward": 2, "update": 4}


def test_device_time_stretches_the_shares() -> None:
    events = [
        Event(DRAW, TRAIN, 0, 1, 0.0),
        Event(BACKWARD, 0, 1, 2),
        Event(DRAW, TRAIN, 4, 5, 8.0),
        Event(BACKWARD, 0, 5, 6),
        Event(END, TRAIN, 8, 9, 16.0),
    ]
    steps = anatomy(events).steps
    assert [step.seconds for step in steps] == [8, 8]
    assert shares(steps[0]) == {"wait": 2, "backward": 2, "other": 4}


def test_nothing_happened() -> None:
    assert anatomy([]).steps == []
    assert anatomy([Event(DRAW, TRAIN, 0, 1), Event(END, TRAIN, 1, 2)]).training_loaders == frozenset()


def test_what_a_loader_needs_to_start_belongs_to_the_first_step_of_its_epoch() -> None:
    tape = Tape()
    for _ in range(2):
        tape.start()
        tape.idle(6)  # workers are being forked
        tape.trip()
        tape.trip()
        tape(END, TRAIN, 1)
    steps = anatomy(tape.events).steps
    assert [step.seconds for step in steps] == [21, 15, 21, 15]
    assert [step.starts_epoch for step in steps] == [True, False, True, False]
    assert steps[0].parts[SHARES.index("wait")] == 7


def test_hotlap_at_work_while_a_loader_starts_hides_no_epoch() -> None:
    tape = Tape()
    for _ in range(2):
        tape.start()
        tape(OWN, 0, 3)  # the loader is described
        tape.idle(6)
        tape(OWN, 0, 1)
        tape.trip()
        tape.trip()
        tape(END, TRAIN, 1)
    steps = anatomy(tape.events).steps
    assert [step.starts_epoch for step in steps] == [True, False, True, False]
    assert [step.seconds for step in steps] == [15 + 6, 15, 15 + 6, 15]
    assert steps[0].parts[SHARES.index("wait")] == 7


def test_a_whole_epoch_is_all_that_comes_before_the_next_but_hotlaps_own() -> None:
    tape = Tape()

    def between() -> None:
        tape.evaluate()
        tape(OWN, 0, 100)
        tape.idle(20)  # a checkpoint

    tape.epochs(3, 4, after=between)
    assert anatomy(tape.events).epoch_seconds == [4 * 15 + 1 + 3 * 16 + 1 + 20] * 2


def test_weights_updated_by_hand_make_steps_from_backward_to_backward() -> None:
    tape = Tape()
    for _ in range(12):
        tape.idle(2)  # a batch made by hand
        tape(FORWARD, MODEL, 1)
        tape(BACKWARD, 0, 3)
        tape.idle(4)  # the update
    found = anatomy(tape.events)
    assert [step.seconds for step in found.steps] == [10.0] * 4
    assert dict(zip(SHARES, found.steps[0].parts, strict=True)) | {
        "forward": 1.0,
        "backward": 3.0,
        "other": 6.0,
    } == dict(zip(SHARES, found.steps[0].parts, strict=True))


def test_steps_under_a_closer_look_do_not_count_and_what_hotlap_takes_is_cut_out() -> None:
    tape = Tape()
    tape.start()
    for number in range(6):
        if number == 3:
            began = tape.now
            tape(OWN, 0, 100)
        tape.trip()
        if number == 4:
            tape.events.append(Event(LOOK, 0, began, tape.now))
            tape(OWN, 0, 50)
    tape(END, TRAIN, 1)
    steps = anatomy(tape.events).steps
    assert len(steps) == 4 and {step.seconds for step in steps} == {15.0}


def test_the_devices_clock_has_its_own_shares() -> None:
    """Two steps of ten on the device, whose work runs behind the host's."""
    events = []
    for number in range(3):
        host, device = 5.0 * number, 10.0 * number
        events += [
            Event(DRAW, TRAIN, host, host + 1, device, device + 0.5),
            Event(FORWARD, MODEL, host + 1, host + 2, device + 0.5, device + 3.5),
            Event(BACKWARD, 0, host + 2, host + 3, device + 3.5, device + 8.5),
            Event(UPDATE, ADAM, host + 3, host + 4, device + 8.5, device + 9.5),
        ]
    steps = anatomy(events).steps
    assert [step.seconds for step in steps] == [10.0, 10.0]
    parts = dict(zip(SHARES, steps[0].device_parts, strict=True))
    assert parts == {"wait": 0.5, "copy": 0, "forward": 3, "backward": 5, "update": 1, "sync": 0, "other": 0.5}
    assert sum(steps[0].parts) == 10.0 and steps[0].parts[0] == 2.0  # a fifth of the host's time was the draw


def test_a_model_judged_in_a_row_without_a_loader_is_an_evaluation() -> None:
    """As by nanoGPT's `estimate_loss`; a teacher that is asked once a step is part of it."""
    tape = Tape()
    for number in range(6):
        tape(FORWARD, MODEL, 2)
        tape(JUDGED, MODEL, 1)
        tape(BACKWARD, 0, 3)
        tape(UPDATE, ADAM, 4)
        for _ in range(5 if number % 2 else 0):
            tape(JUDGED, MODEL, 9)
    found = anatomy(tape.events)
    assert {step.seconds for step in found.steps} == {10.0} and len(found.steps) == 5
    assert len(found.evaluations) == 3 and found.evaluation_seconds == 3 * 45
