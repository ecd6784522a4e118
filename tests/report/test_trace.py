from __future__ import annotations

import itertools
import json
import math
from typing import Any

from hotlap.report.trace import Span, Trace, trace

STEPS = [Span(f"step {k}", 100 + k, 101 + k) for k in range(3)]
RICH = Trace(
    host=[
        Span("wait", 100.0, 100.4),
        Span("forward", 100.4, 101.0, "ResNet"),
        Span("layer1", 100.4, 100.9),
        Span("conv <1> \N{SNOWMAN}", 100.4, 100.6, 'a "quoted"\ndetail'),
    ],
    device=[Span("kernel", 100.5, 100.7), Span("copy on another stream", 100.6, 100.8), Span("kernel", 100.7, 100.9)],
    steps=STEPS,
    evaluation=[Span("evaluation", 103.0, 104.0)],
    counters=[("memory", 101.0, 2e9), ("memory", 100.5, 1e9)],
)


def read(events: Trace) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found = json.loads(trace(events), parse_constant=refuse)
    assert set(found) == {"traceEvents", "displayTimeUnit"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    return found["traceEvents"]  # type: ignore[no-any-return]


def threads(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_every_event_has_what_viewers_ask_for() -> None:
    events = read(RICH)
    for event in events:
        assert {"name", "ph", "ts", "pid", "tid"} <= set(event)
        assert event["ph"] in "XMC"
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["tid"] in threads(events)
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["hotlap"]
    assert {"host", "device", "steps", "evaluation"} <= set(threads(events).values())


def test_times_are_microseconds_from_the_first_event() -> None:
    events = {event["name"]: event for event in read(RICH)}
    assert (events["step 0"]["ts"], events["step 0"]["dur"]) == (0, 1e6)
    assert (events["forward"]["ts"], events["forward"]["dur"]) == (4e5, 6e5)
    assert events["forward"]["args"] == {"detail": "ResNet"}
    assert "args" not in events["wait"]


def test_spans_of_a_track_nest_and_never_cross() -> None:
    events = read(RICH)
    for thread in threads(events):
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == thread]
        ends = [(round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))) for event in spans]
        for start, end in ends:
            for other_start, other_end in ends:
                assert not start < other_start < end < other_end
    # the copy crosses both kernels, so it has a track of its own; nothing is lost
    names = threads(events)
    by_track = {names[event["tid"]]: event["name"] for event in events if event.get("cat") == "device"}
    assert by_track == {"device": "kernel", "device 2": "copy on another stream"}
    assert sum(event["ph"] == "X" for event in events) == 4 + 3 + 3 + 1


def test_parents_contain_their_children() -> None:
    spans = {event["name"]: event for event in read(RICH) if event.get("cat") == "host"}
    inside = spans["conv <1> \N{SNOWMAN}"], spans["layer1"], spans["forward"]
    for child, parent in itertools.pairwise(inside):
        assert child["tid"] == parent["tid"]
        assert parent["ts"] <= child["ts"]
        assert child["ts"] + child["dur"] <= parent["ts"] + parent["dur"]
    assert inside[0]["args"]["detail"] == 'a "quoted"\ndetail'


def test_counters_are_in_order() -> None:
    counters = [event for event in read(RICH) if event["ph"] == "C"]
    assert [(event["ts"], event["args"]) for event in counters] == [(5e5, {"value": 1e9}), (1e6, {"value": 2e9})]


def test_nothing_and_what_has_no_time_still_give_a_trace() -> None:
    assert {event["ph"] for event in read(Trace())} == {"M"}
    odd = Trace(
        host=[Span("a", math.nan, 1.0), Span("b", 2.0, math.inf), Span("c", 3.0, 2.0)], counters=[("d", 1.0, math.nan)]
    )
    assert [(event["name"], event["dur"]) for event in read(odd) if event["ph"] in "XC"] == [("c", 0)]


def test_hundreds_of_crossing_spans_are_all_there() -> None:
    spans = [Span(str(k), k / 1000, 1 + k / 1000) for k in range(300)]
    assert sum(event["ph"] == "X" for event in read(Trace(device=spans))) == 300
