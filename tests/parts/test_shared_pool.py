"""One copy for a process and its forked workers: bounded, whole, and never in anybody's way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from hotlap.parts import shared_pool
from hotlap.parts.shared_pool import SharedPool

FORK = multiprocessing.get_context("fork")


def in_child(action, *args):
    """The answer of a function run in a forked child."""
    reader, writer = FORK.Pipe(duplex=False)

    def run() -> None:
        writer.send(action(*args))

    process = FORK.Process(target=run)
    process.start()
    answer = reader.recv() if reader.poll(20) else "no answer"
    process.join(5)
    return answer


def value(key: int) -> bytes:
    return key.to_bytes(4, "little") * (50 + key % 7)


def test_what_is_put_can_be_got() -> None:
    pool = SharedPool(10_000)
    assert pool.get(b"a") is None
    assert pool.put(b"a", b"one ", b"two")
    assert bytes(pool.get(b"a")) == b"one two"
    assert pool.get(b"b") is None
    assert (pool.used_bytes, pool.hits, pool.misses) == (7, 1, 2)


def test_a_key_keeps_its_first_value() -> None:
    pool = SharedPool(10_000)
    assert pool.put(b"a", b"first")
    assert not pool.put(b"a", b"second")
    assert bytes(pool.get(b"a")) == b"first"
    assert pool.used_bytes == 5


def test_what_is_read_cannot_be_written() -> None:
    pool = SharedPool(100)
    pool.put(b"a", b"first")
    with pytest.raises(TypeError):
        pool.get(b"a")[0] = 0


@pytest.mark.parametrize("limit", [0, 1, 1000, 4096])
def test_the_limit_holds(limit: int) -> None:
    pool = SharedPool(limit)
    kept = [key for key in range(100) if pool.put(b"%d" % key, value(key))]
    assert pool.used_bytes == sum(len(value(key)) for key in kept) <= limit
    assert len(kept) < 100
    for key in range(100):
        found = pool.get(b"%d" % key)
        assert (bytes(found) == value(key)) if key in kept else found is None
    exact = SharedPool(10)
    assert exact.put(b"a", b"0123456789") and not exact.put(b"b", b"0")


def test_a_full_table_is_no_error() -> None:
    pool = SharedPool(1 << 20, expected_entry_bytes=1 << 30)  # 1,024 places for values of one byte
    kept = [key for key in range(3000) if pool.put(b"%d" % key, b"x")]
    assert 500 < len(kept) <= 1024
    assert all(pool.get(b"%d" % key) is not None for key in kept)
    assert sum(pool.get(b"%d" % key) is not None for key in range(3000)) == len(kept)


def test_a_child_reads_what_the_parent_wrote_and_the_other_way() -> None:
    pool = SharedPool(10_000)
    pool.put(b"parent", b"from the parent")
    assert in_child(lambda: bytes(pool.get(b"parent"))) == b"from the parent"
    assert in_child(lambda: pool.put(b"child", b"from the child"))
    assert bytes(pool.get(b"child")) == b"from the child"
    assert pool.hits == 2


def test_many_writers_and_readers_share_one_copy() -> None:
    pool, keys = SharedPool(1 << 20), range(300)

    def work(shift: int) -> int:
        wrong = 0
        for round_ in range(3):
            for key in (*keys[shift:], *keys[:shift]):
                name = b"%d" % key
                found = pool.get(name)
                if found is None:
                    pool.put(name, value(key)[:100], value(key)[100:])
                elif bytes(found) != value(key):
                    wrong += 1
                wrong += round_ > 0 and found is None
        return wrong

    reader, writer = FORK.Pipe(duplex=False)
    workers = [FORK.Process(target=lambda shift=shift: writer.send(work(shift))) for shift in (0, 75, 150, 225)]
    for worker in workers:
        worker.start()
    assert [reader.recv() for _ in workers if reader.poll(20)] == [0, 0, 0, 0]
    for worker in workers:
        worker.join(5)
    assert pool.used_bytes == sum(len(value(key)) for key in keys), "one copy each, whoever came first"
    assert pool.hits + pool.misses == 4 * 3 * 300


def test_a_worker_killed_with_the_lock_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pool, "_PATIENCE", 0.2)
    pool = SharedPool(10_000)
    pool.put(b"a", b"value")

    def die() -> None:
        pool._lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=die)
    process.start()
    process.join(10)
    started = time.monotonic()
    assert pool.get(b"a") is None
    for _ in range(100):
        assert pool.get(b"a") is None and not pool.put(b"b", b"value")
    assert time.monotonic() - started < 2, "waited for the dead more than once"
