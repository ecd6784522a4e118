"""One copy for a process and its workers: bounded, whole, never in anybody's way, and what is stale gives way."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import re
import signal
import threading
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from hotlap.parts.shared_blocks import SharedBlocks
from hotlap.parts.shared_pool import SharedPool, _digest

FORK = multiprocessing.get_context("fork")


def in_child(action, *args):
    """The answer of a function run in a forked child."""
    reader, writer = FORK.Pipe(duplex=False)

    def run() -> None:
        writer.send(action(*args))

    process = FORK.Process(target=run)
    process.start()
    answer = reader.recv() if reader.poll(PATIENCE_SECONDS) else "no answer"
    process.join(PATIENCE_SECONDS)
    return answer


def value(key: int) -> bytes:
    return key.to_bytes(4, "little") * (50 + key % 7)


def epoch(pool: SharedPool, names: list[bytes], size: int = 2600) -> int:
    """How many of them were found, asked for once each in another order."""
    found = 0
    for name in random.sample(names, len(names)):
        kept = pool.get(name)
        if kept is None:
            pool.put(name, name.ljust(size))
        else:
            assert bytes(kept) == name.ljust(size)
            found += 1
        assert pool.used_bytes <= pool.limit_bytes
    return found


def named(name: str, count: int) -> list[bytes]:
    return [f"{name}{number}".encode() for number in range(count)]


def test_what_is_put_can_be_got() -> None:
    pool = SharedPool(10_000)
    assert pool.get(b"a") is None
    assert pool.put(b"a", b"one ", b"two")
    assert bytes(pool.get(b"a")) == b"one two"
    assert pool.get(b"b") is None
    assert pool.put(b"empty") and bytes(pool.get(b"empty")) == b""
    assert (pool.used_bytes, pool.hits, pool.misses) == (128, 2, 2), "whole blocks are counted"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 9000])
def test_any_length(size: int) -> None:
    pool = SharedPool(20_000)
    content = random.Random(size).randbytes(size)
    assert pool.put(b"a", content[:10], content[10:]) and bytes(pool.get(b"a")) == content


def test_a_key_keeps_its_first_value() -> None:
    pool = SharedPool(10_000)
    assert pool.put(b"a", b"first")
    assert not pool.put(b"a", b"second")
    assert bytes(pool.get(b"a")) == b"first"


def test_what_was_got_is_the_readers_own() -> None:
    pool = SharedPool(100)
    pool.put(b"a", b"first")
    pool.get(b"a")[0] = 0
    assert bytes(pool.get(b"a")) == b"first"


def test_a_scratch_is_used_again_and_grows() -> None:
    pool, scratch = SharedPool(10_000), bytearray()
    for size in (70, 10, 1000, 300):
        pool.put(b"%d" % size, bytes([size % 251]) * size)
        assert bytes(pool.get(b"%d" % size, scratch)) == bytes([size % 251]) * size
    assert len(scratch) == 1024
    earlier = pool.get(b"300", scratch)
    pool.put(b"longer", b"x" * 2000)
    assert bytes(pool.get(b"longer", scratch)) == b"x" * 2000, "also where the scratch cannot grow"
    assert bytes(earlier) == bytes([49]) * 300


@pytest.mark.parametrize("limit", [0, 1, 1000, 4096, 1 << 20])
def test_the_limit_holds(limit: int) -> None:
    pool = SharedPool(limit)
    kept = [key for key in range(600) if pool.put(b"%d" % key, value(key))]
    assert sum(len(value(key)) for key in kept) <= pool.used_bytes <= limit
    assert len(kept) < 600
    for key in range(600):
        found = pool.get(b"%d" % key)
        assert (bytes(found) == value(key)) if key in kept else found is None
    exact = SharedPool(128)
    assert not exact.put(b"too long", bytes(129))
    assert exact.put(b"a", bytes(128)) and not exact.put(b"b", b"0")


def test_a_full_table_is_no_error() -> None:
    pool = SharedPool(1 << 19, expected_entry_bytes=1 << 30)  # 1,024 places, and room for 8,192
    kept = [key for key in range(3000) if pool.put(b"%d" % key, b"x")]
    assert 500 < len(kept) <= 1024
    assert all(pool.get(b"%d" % key) is not None for key in kept)
    assert sum(pool.get(b"%d" % key) is not None for key in range(3000)) == len(kept)


# what goes, what stays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "fits"), [(200, 200), (640, 256), (1280, 256)])
def test_epochs_find_the_share_that_fits(count: int, fits: int) -> None:
    random.seed(count)
    pool, names = SharedPool(1 << 20), named("a", count)
    found = [epoch(pool, names) for _ in range(6)]
    assert found[0] == 0 and min(found[2:]) >= 0.95 * fits and max(found) <= fits


def test_a_rule_that_always_gives_way_would_thrash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above is there for."""
    random.seed(1)
    monkeypatch.setattr(SharedPool, "_is_stale", lambda self, asked: asked < self._head[1])
    pool, names = SharedPool(1 << 20), named("a", 640)
    assert min(epoch(pool, names) for _ in range(5)) < 0.5 * 256


@pytest.mark.parametrize(("before", "after"), [(640, 640), (200, 640), (640, 250), (1000, 300)])
def test_a_data_set_that_is_read_no_more_gives_way(before: int, after: int) -> None:
    random.seed(before + after)
    pool, old, new = SharedPool(1 << 20), named("old", before), named("new", after)
    for _ in range(3):
        epoch(pool, old)
    epochs = 4 + 6 * before // after
    found = [epoch(pool, new) for _ in range(epochs)]
    assert found[-1] >= 0.95 * min(256, after), found
    assert epoch(pool, old) == 0 or before + after < 512


def test_once_read_through_is_no_claim() -> None:
    """Nothing was ever found of the first data set, so nothing is known of how long its epochs are."""
    random.seed(5)
    pool = SharedPool(1 << 20)
    epoch(pool, named("once", 1000))
    assert [epoch(pool, named("then", 300)) for _ in range(12)][-1] >= 0.95 * 256


def test_validation_between_epochs_drives_nothing_out() -> None:
    random.seed(6)
    pool, train, held_out = SharedPool(1 << 20), named("train", 400), named("held out", 100)
    found = [epoch(pool, train) + epoch(pool, held_out) for _ in range(8)]
    assert min(found[2:]) >= 0.95 * 256


def test_changed_files_make_room() -> None:
    random.seed(7)
    pool = SharedPool(1 << 20)
    for state in range(6):
        names = [*named("same", 100), *named(f"state {state} ", 100)]
        found = [epoch(pool, names) for _ in range(8)]
        assert found[-1] == 200, (state, found)


# several processes -------------------------------------------------------------------------------------------------


def test_a_child_reads_what_the_parent_wrote_and_the_other_way() -> None:
    pool = SharedPool(10_000)
    pool.put(b"parent", b"from the parent")
    assert in_child(lambda: bytes(pool.get(b"parent"))) == b"from the parent"
    assert in_child(lambda: pool.put(b"child", b"from the child"))
    assert bytes(pool.get(b"child")) == b"from the child"
    assert pool.hits == 2


def test_many_writers_and_readers_share_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is held up meanwhile: nothing is stale, however far apart they are."""
    monkeypatch.setattr(SharedPool, "_is_stale", lambda self, asked: False)
    pool, keys = SharedPool(1 << 19), range(300)

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

    assert of_all(work, (0, 75, 150, 225)) == [0, 0, 0, 0]
    assert pool.used_bytes == sum(-(-len(value(key)) // 64) * 64 for key in keys), "one copy, whoever came first"
    assert pool.hits + pool.misses == 4 * 3 * 300


def of_all(work, arguments) -> list:
    reader, writer = FORK.Pipe(duplex=False)
    workers = [FORK.Process(target=lambda one=one: writer.send(work(one))) for one in arguments]
    for worker in workers:
        worker.start()
    answers = [reader.recv() for _ in workers if reader.poll(PATIENCE_SECONDS)]
    for worker in workers:
        worker.join(PATIENCE_SECONDS)
    return answers


def churn(pool: SharedPool, seed: int) -> int:
    """Values that say which they are all through, written and read while all is stale: how many were not whole."""
    draw, wrong = random.Random(seed), 0
    for _ in range(1500):
        number = draw.randrange(64)
        found = pool.get(b"%d" % number)
        if found is None:
            pool.put(b"%d" % number, bytes([number]) * draw.randrange(60_000, 130_000))
        else:
            wrong += bytes(found) != bytes([number]) * len(found)
    return wrong


def test_nobody_reads_half_a_value_while_it_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedPool, "_is_stale", lambda self, asked: True)
    pool = SharedPool(2 << 20)
    assert of_all(lambda seed: churn(pool, seed), range(4)) == [0, 0, 0, 0]
    assert pool.hits > 100 and pool.used_bytes <= pool.limit_bytes


def test_a_value_overwritten_while_it_is_copied_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at the generation this reads the other value under its key."""
    pool = SharedPool(128)
    pool.put(b"a", b"a" * 128)
    runs = SharedBlocks.runs

    def overwritten_meanwhile(self, first):
        views = runs(self, first)
        pool._evict(pool._slot(_digest(b"a")))
        self.take(memoryview(b"b" * 128))
        return views

    monkeypatch.setattr(SharedBlocks, "runs", overwritten_meanwhile)
    assert pool.get(b"a") is None
    assert (pool.hits, pool.misses) == (0, 1)


@pytest.mark.parametrize("at_work", [False, True])
def test_a_worker_killed_with_the_lock_stops_nobody(at_work: bool) -> None:
    pool = SharedPool(10_000)
    pool.put(b"a", b"value")

    def die() -> None:
        with pool._alone():
            if not at_work:
                pool._head[0] = 0
            os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=die)
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    kept = pool.get(b"a")
    assert (kept is None) if at_work else bytes(kept) == b"value", "what it left half done is not believed"
    assert pool.put(b"b", b"other") and bytes(pool.get(b"b")) == b"other"
    assert pool.used_bytes == (64 if at_work else 128)


def test_workers_killed_at_any_moment_leave_a_pool_that_works() -> None:
    pool = SharedPool(2 << 20)
    for seed in range(6):
        worker = FORK.Process(target=churn, args=(pool, seed))
        worker.start()
        worker.join(0.05 + 0.02 * seed)
        worker.kill()
        worker.join(PATIENCE_SECONDS)
        assert churn(pool, seed) == 0 and pool.used_bytes <= pool.limit_bytes


def test_a_thread_that_held_the_lock_at_a_fork_is_not_waited_for() -> None:
    pool, ready, go_on = SharedPool(10_000), threading.Event(), threading.Event()
    pool.put(b"a", b"value")

    def hold() -> None:
        with pool._threads:
            ready.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        assert in_child(lambda: bytes(pool.get(b"a"))) == b"value"
    finally:
        go_on.set()
        thread.join()


def test_a_script_that_closes_all_files_goes_on() -> None:
    pool = SharedPool(10_000)
    pool.put(b"a", b"value")

    def closed() -> tuple:
        os.close(pool._file)
        return pool.get(b"a"), pool.put(b"b", b"value")

    assert in_child(closed) == (None, False)
    assert bytes(pool.get(b"a")) == b"value"


def _from_outside(pool: SharedPool, answers) -> None:
    answers.put((bytes(pool.get(b"parent")), pool.put(b"child", b"from the child")))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_started_processes_share_it_too(method: str) -> None:
    context, pool = multiprocessing.get_context(method), SharedPool(10_000)
    pool.put(b"parent", b"from the parent")
    answers = context.Queue()
    process = context.Process(target=_from_outside, args=(pool, answers))
    process.start()
    assert answers.get(timeout=PATIENCE_SECONDS) == (b"from the parent", True)
    process.join(PATIENCE_SECONDS)
    assert bytes(pool.get(b"child")) == b"from the child"
    with pytest.raises(TypeError, match="being started"):
        pickle.dumps(pool)


# memory --------------------------------------------------------------------------------------------------------------


def pool_bytes(pid: int, kind: str) -> int:
    """What this process's mapping of the pool counts for: `Rss` all it touched, `Pss` its share of that."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)
    ours = [one for one in maps if "hotlap-pool" in one.partition("\n")[0]]
    return sum(1024 * int(re.search(rf"^{kind}:\s+(\d+) kB", one, re.MULTILINE)[1]) for one in ours)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs /proc/PID/smaps")
def test_sixteen_workers_cost_one_copy_and_the_limit_holds_while_it_evicts() -> None:
    limit, workers = 16 << 20, 16
    pool, names = SharedPool(limit), named("image", 150)  # 23 MB are asked for
    reader, writer = FORK.Pipe(duplex=False)
    go_on = FORK.Event()

    def work(number: int) -> None:
        random.seed(number)
        for phase in ("", "later "):
            for _ in range(3):
                epoch(pool, [phase.encode() + name for name in names], 150_000)
        for name in names:
            pool.get(name)
            pool.get(b"later " + name)
        writer.send(number)
        go_on.wait(2 * PATIENCE_SECONDS)  # the first to be done waits for the last

    children = [FORK.Process(target=work, args=(number,)) for number in range(workers)]
    for child in children:
        child.start()
    assert sorted(reader.recv() for _ in children if reader.poll(PATIENCE_SECONDS)) == list(range(workers))
    pids = [os.getpid(), *(child.pid for child in children)]
    touched = [pool_bytes(pid, "Rss") for pid in pids]
    total = sum(pool_bytes(pid, "Pss") for pid in pids)
    go_on.set()
    for child in children:
        child.join(PATIENCE_SECONDS)
    assert sum(touched) > 8 * limit, "the workers did read it"
    later = [b"later " + name for name in names]
    for _ in range(200):  # the first data set becomes stale, however far apart the workers were, and makes room
        if epoch(pool, later, 150_000) > 75:
            break
    else:
        raise AssertionError("the second data set has taken the place of the first")
    assert 0.8 * limit < total <= 1.02 * limit, "one copy, and the table"


def test_a_script_that_closes_all_files_keeps_what_it_opens_next() -> None:
    pool = SharedPool(10_000)
    pool.put(b"a", b"one")
    os.close(pool._file)
    own = os.open(os.devnull, os.O_RDWR)
    assert own == pool._file  # the lowest number that is free
    assert pool.get(b"a") is None and not pool.put(b"b", b"two")
    del pool
    os.fstat(own)
    os.close(own)
