"""Room 3, watching a script: `launch` runs it as python would, `joints` holds every place we attach, `run` is the
record, `patch` the undo stack."""
