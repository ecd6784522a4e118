"""Room 4, measuring: is it faster, and is it still the same training? A trial is one process; the unit of every
decision is the process, not the step."""
