"""What `sync-free-loop` writes shows, returns and saves exactly what the script would have; what cannot be proven is
left alone, with the reason. The CPU stands in for a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from late_loops import findings, outcome, script, stand_in, written

from hotlap.parts import late_reads
from hotlap.source.edits import insert_before

WRITTEN = {
    "classic": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            return total / len(data)
    """,
    "shown now and then, and begun anew": """
        def train():
            running = 0.0
            for i, (x, y) in enumerate(data):
                STEP
                running += loss.item()
                if i % 3 == 2:
                    print("[%d] loss: %.10f" % (i + 1, running / 3))
                    running = 0.0
    """,
    "weighted, counted, averaged": """
        def train():
            total, right, seen = 0.0, 0, 0
            smooth = 0
            for x, y in data:
                STEP
                total += loss.item() * x.size(0)
                right += (out.argmax(1) == y).sum().item()
                seen += y.size(0)
                smooth = 0.9 * smooth + 0.1 * loss.item()
            print(f"{total / seen:.17g} {right=} {100. * right / seen:.3f}% {smooth!r}")
            return shown(total), shown(right), shown(smooth)
    """,
    "a conversion": """
        def train():
            right = 0
            for x, y in data:
                STEP
                right += int((out.argmax(1) == y).sum())
                right -= float(out.argmax(1).eq(y).sum())
            return shown(right)
    """,
    "evaluation": """
        @torch.no_grad()
        def train():
            model.eval()
            test_loss = 0
            correct = 0
            for x, y in data:
                x, y = x.to(device), y.to(device)
                output = model(x)
                test_loss += F.cross_entropy(output, y, reduction="sum").item()  # sum up batch loss
                pred = output.argmax(dim=1, keepdim=True)
                correct += pred.eq(y.view_as(pred)).sum().item()

            test_loss /= len(data)
            print("\\nTest set: {:.4f}, {}/{} ({:.0f}%)".format(test_loss, correct, 9, 100. * correct / 9))
    """,
    "many epochs": """
        def train():
            best, losses = 1e9, []
            for epoch in range(3):
                total = 0
                for x, y in data:
                    STEP
                    total += loss.item()
                losses.append(total / len(data))
                if total < best:
                    best = total
                    with open(f"best{epoch}.json", "w") as file:
                        json.dump({"loss": total, "epoch": epoch}, file)
            return losses, best
    """,
    "two on one line, in a tuple, and the other way round": """
        def train():
            a, b, c = 0.0, 0, -1.5
            for x, y in data:
                STEP
                a += loss.item(); b += (out > 0).sum().item()
                c, n = loss.item() - c, len(y)
            return a, b, c, n
    """,
    "left early": """
        def train():
            total = 0.0
            for i, (x, y) in enumerate(data):
                STEP
                total = total + loss.item()
                if i + len(y) > 8:
                    print("stopped at", total)
                    break
            else:
                print("never")
            return total
    """,
    "returned from inside": """
        def train():
            total = 0.0
            for i, (x, y) in enumerate(data):
                STEP
                total += loss.item()
                if len(y) < 4:
                    return {"total": total}
    """,
    "steps left out": """
        def train():
            total = 0.0
            for i, (x, y) in enumerate(data):
                if i == 2:
                    continue
                STEP
                total += loss.item()
                if i % 2:
                    continue
                print(i, total)
            return total
    """,
    "an error in the loop": """
        def train():
            total = 0.0
            try:
                for i, (x, y) in enumerate(data):
                    STEP
                    total += loss.item()
                    if i == 4:
                        raise ValueError(f"at {total}")
            except ValueError as error:
                print(error, total)
            finally:
                print(total)
            raise KeyError(total)
    """,
    "an error of its own": """
        def train():
            total = 0.0
            for i, (x, y) in enumerate(data):
                STEP
                total += out.item()
            return total
    """,
    "used in every way afterwards": """
        def train():
            total: float = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            log = {"total": total, "list": [total, round(total, 3)]}
            print(total > 3, -total, total ** 2, max(total, 1), str(total), isinstance(total, float))
            if len(data) > 100:
                pass
            elif total > 2:
                print("elif", total)
            json.dump(log, open("log.json", "w"))
            shown(total)
            for _ in range(int(total)):
                total += 1
            total *= 2
            return total, sorted([total, 1.0]), (lambda value: value)(total)
    """,
    "an inner function": """
        def train():
            def inside(batches):
                total = 0.0
                for x, y in batches:
                    STEP
                    total += loss.item() / len(batches)
                return total
            return inside(data), inside(data[:2])
    """,
    "a method": """
        class Trainer:
            def run(self):
                total = 0.0
                for x, y in data:
                    STEP
                    total -= loss.item()
                self.total = total
                return self
        def train():
            return Trainer().run().total
    """,
    "in two branches": """
        def train():
            total = 0
            for i, (x, y) in enumerate(data):
                STEP
                if i > 2:
                    total += loss.item() * 2
                else:
                    total += loss.item()
            return total
    """,
    "on one line": """
        def train():
            total = 0.0
            for i, (x, y) in enumerate(data):
                STEP
                total += loss.item()
                if i % 2 == 0: print(total)
            x = 1; print(total, x)
            total += \\
                1
            return total
    """,
    "operands that are no plain numbers": """
        def train():
            total = 0.0
            weight = torch.tensor([0.5, 0.25])
            for x, y in data:
                STEP
                total += loss.item() * weight
            return total.tolist()
    """,
    "a meter, shown now and then by others": """
        class AverageMeter(object):
            '''Computes and stores the average and current value.'''
            def __init__(self, name, fmt=":f"):
                self.name, self.fmt = name, fmt
                self.reset()
            def reset(self):
                self.val = 0
                self.avg = 0
                self.sum = 0
                self.count = 0
            def update(self, val, n=1):
                self.val = val
                self.sum += val * n
                self.count += n
                self.avg = self.sum / self.count
            def __str__(self):
                return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)
        class Progress:
            def __init__(self, meters):
                self.meters = meters
            def display(self, batch):
                print(batch, *map(str, self.meters))
        def train():
            losses, scaled = AverageMeter("Loss", ":.17g"), AverageMeter("Scaled")
            progress = Progress([losses, scaled])
            for i, (x, y) in enumerate(data):
                STEP
                losses.update(loss.item(), x.size(0))
                scaled.update(  # told by name, and more than once in a step
                    n=x.size(0), val=2 * loss.item() - loss.item() / 3
                )
                scaled.update(loss.item())
                if i % 3 == 2:
                    progress.display(i)
                    if i == 2:
                        scaled.reset()
            print(vars(losses), sorted(scaled.__dict__.items()), type(losses).__name__)
            return shown(losses.avg), shown(scaled.sum), shown(losses.val), shown(losses.count)
    """,
    "a meter that is looked at, changed and copied on the way": """
        import copy, pickle
        class Meter:
            total = 0
            def add(self, val):
                part = val / 2
                self.total += part
                self.last = -part
        def train():
            meter = Meter()
            meter.total = 1
            for i, (x, y) in enumerate(data):
                STEP
                meter.add(loss.item())
                if i == 1:
                    meter.total = 5
                elif i == 3:
                    twin = copy.deepcopy(meter)
                    print(type(twin) is type(meter), type(twin).__name__, twin.total, meter.total)
                elif i == 4:
                    del meter.last
                elif i == 5:
                    print(pickle.loads(pickle.dumps(vars(copy.copy(meter)))), isinstance(meter, Meter))
            return shown(meter.total), shown(getattr(meter, "last"))
    """,
    "a meter with other uses of its class, by threads, by kept attributes": """
        import copy, threading
        from typing import Dict
        class Meter:
            made = 0
            def __init__(self) -> None:
                super(Meter, self).__init__()
                Meter.made += 1
                self.sum = self.count = 0
            def update(self, val, n=1):
                self.sum = self.sum + n * val
                self.count += n
                self.avg = self.sum / (1e-4 + self.count)
            def __eq__(self, other: object) -> bool:
                return isinstance(other, (Meter, float)) and self.sum == other.sum
            def __lt__(self, other: "Meter") -> bool:
                return self.avg < other.avg
        def train() -> "Meter":
            losses, others, seen = Meter(), Meter(), []
            kept: Dict[str, Meter] = {"losses": losses}
            watched = vars(others)
            for i, (x, y) in enumerate(data):
                STEP
                try:
                    (losses).update(loss.item(), n=len(y)); losses . update(-loss.item())
                    (others.update)(
                        loss.item()
                    )
                    loss.detach().zero_()
                finally:
                    if i % 3 == 2:
                        print(watched)
                        thread = threading.Thread(target=lambda: seen.append(kept["losses"].avg))
                        thread.start(), thread.join()
                match others:
                    case Meter(count=3):
                        print("three", watched)
            print(seen, losses == copy.copy(losses), sorted([losses, others])[0].avg, Meter.made, watched)
            print([key for key in watched if "hotlap" in key], isinstance(losses, Meter))
            return shown(losses.avg), shown(others.avg)
    """,
}

ALONE = {
    "shown in every step": """
        def train():
            total = 0.0
            for i, (x, y) in enumerate(data):
                STEP
                total += loss.item()
                print(i, total / (i + 1))
    """,
    "(left alone: shown in every step)": """
        def train():
            for i, (x, y) in enumerate(data):
                STEP
                print(f"{i} {loss.item():.3f}")
                bar.set_postfix(loss=loss.item())
    """,
    "needed in every step": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
                if total > 3:
                    break
            return total
    """,
    "perhaps shown in every step": """
        def train(verbose=True):
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
                if verbose:
                    print(total)
    """,
    "decides how often the loop goes round": """
        def train():
            total = 0.0
            while total < 20:
                for x, y in data:
                    STEP
                    total += loss.item()
            return total
    """,
    "kept in an object": """
        class Meter:
            total = 0.0
        def train():
            for x, y in data:
                STEP
                Meter.total += loss.item()
            return Meter.total
    """,
    "handed on in every step": """
        def train():
            for x, y in data:
                STEP
                history.append(loss.item())
    """,
    "handed to a method that does more than add up": """
        class Meter:
            def __init__(self):
                self.sum, self.all = 0, []
            def update(self, val):
                self.sum += val
                self.all.append(val)
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "handed to a method that does more": """
        class Meter:
            def __init__(self):
                self._sum = 0
            @property
            def sum(self):
                return self._sum
            @sum.setter
            def sum(self, value):
                print(value)
                self._sum = value
            def update(self, val):
                self.sum += val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "handed to an object with ways of its own": """
        class Meter(nn.Module):
            def __init__(self):
                super().__init__()
                self.sum = 0
            def update(self, val):
                self.sum += val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "handed to a method that is replaced": """
        class Meter:
            sum = 0
            def update(self, val):
                self.sum += val
        Meter.update = lambda self, val: print(val)
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "told together with what is needed at once": """
        class Meter:
            sum = 0
            def update(self, val, n):
                self.sum += val * n
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item(), out.argmax(1).tolist()[0])
            return losses.sum
    """,
    "perhaps divided by nothing": """
        class Accuracy:
            def __init__(self):
                self.right = self.seen = 0
            def update(self, right, seen):
                self.right += right
                self.seen += seen
                self.share = self.right / self.seen
        def train():
            accuracy = Accuracy()
            for x, y in data:
                STEP
                right = (out.argmax(1) == y)[y > 0]
                accuracy.update(right.sum().item(), (y > 0).sum().item())
            return accuracy.share
    """,
    "(left alone: perhaps divided by nothing)": """
        class Meter:
            def __init__(self):
                self.sum = self.count = 0
            def update(self, val):
                self.count = self.count + 1
                self.spread = self.sum / (self.count - 1)
                self.sum += val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "a method that is replaced)": """
        class Meter:
            sum = 0
            def update(self, val):
                self.sum += val
            update = torch.no_grad()(update)
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "handed to a private method": """
        class Trainer:
            sum = 0
            def __add(self, val):
                self.sum += val
            def run(self):
                for x, y in data:
                    STEP
                    self.__add(loss.item())
                return self.sum
        def train():
            return Trainer().run()
    """,
    "a method that does more than add up)": """
        rate = [0.9]
        class Meter:
            sum = 0
            @property
            def rate(self):
                return rate[0]
            def update(self, val):
                self.sum = self.rate * self.sum + val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
                rate[0] = 0.5
            return losses.sum
    """,
    "(left alone: handed to a method that does more than add up)": """
        class Meter:
            def _set(self, value):
                print(value)
                self._sum = value
            sum = property(lambda self: 0, _set)
            def update(self, val):
                self.sum += val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "an object with ways of its own)": """
        class Meter:
            def __init__(self):
                self.sum = 0
            def update(self, val):
                self.sum += val
            def __eq__(self, other):
                return type(self) is type(other) and self.sum == other.sum
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return Meter() == losses
    """,
    "(left alone: handed to an object with ways of its own)": """
        class Loud:
            def update(self, val):
                print(val)
        class Meter:
            sum = 0
            def __new__(cls):
                return Loud()
            def update(self, val):
                self.sum += val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
    """,
    "its class is used for more than making meters": """
        class Meter:
            decay = 0.9
            def __init__(self):
                self.avg = 0
            def update(self, val):
                self.avg = self.decay * self.avg + (1 - self.decay) * val
        def train():
            losses = Meter()
            for i, (x, y) in enumerate(data):
                STEP
                losses.update(loss.item())
                if i == 3:
                    Meter.decay = 0.99
            return losses.avg
    """,
    "(left alone: its class is used for more than making meters)": """
        class Meter:
            sum = 0
            def update(self, val):
                self.sum += val
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return [one.sum for one in (losses, 1.0) if type(one) in (int, Meter)]
    """,
    "handed to a method that takes something else": """
        class Meter:
            sum = 0
            def update(self, val, n):
                self.sum += val * n
        def train():
            losses = Meter()
            for x, y in data:
                STEP
                losses.update(loss.item())
            return losses.sum
    """,
    "(left alone: handed on in every step)": """
        class Meter:
            sum = 0
            def update(self, val):
                self.sum += val
        def train():
            seen = Meter()
            for x, y in data:
                STEP
                seen.update(~out.argmax().item())
            return seen.sum
    """,
    "not its function's own": """
        total = 0.0
        def train():
            global total
            for x, y in data:
                STEP
                total += loss.item()
            return total
    """,
    "used by an inner function": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            return (lambda: total)()
    """,
    "deleted": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            print(total)
            del total
    """,
    "also set in another way": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            total = str(total)
            return total
    """,
    "given by the caller": """
        def train(total=0.0):
            for x, y in data:
                STEP
                total += loss.item()
            return total
    """,
    "looked at by name": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            return "{total}".format(**locals())
    """,
    "not set to a number": """
        def train():
            for x, y in data:
                STEP
                total += loss.item()
            return total
    """,
    "ordered by hand": """
        def train():
            total, host = 0.0, torch.empty(3)
            for x, y in data:
                STEP
                host.copy_(out[0].detach(), non_blocking=True)
                total += loss.item()
                history.append(host.sum().tolist())
            return total
    """,
    "perhaps no plain number": """
        def train(weight=2.0):
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item() * weight
                total += loss.item()
            return total
    """,
    "not surely set": """
        def train():
            if len(data) > 3:
                total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            return total if len(data) > 3 else None
    """,
    "together with what is needed at once": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item() / out.max().item()
            return total
    """,
    "used again in the same step": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                value = loss.item()
                total += value
            return total
    """,
    "of its own": """
        def read_now(value):
            return 7
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            return read_now(total)
    """,
    "is compiled": """
        @torch.compile(backend="eager")
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
            return total
    """,
    "part of it is to be ignored": """
        def train():
            total = 0.0
            for x, y in data:
                STEP
                total += loss.item()
                total += out.sum().item()  # hotlap: ignore[sync-free-loop]
            return total
    """,
}


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values were read at once, each time."""
    counted: list[int] = []
    real = late_reads._fetch
    stand_in(monkeypatch)
    monkeypatch.setattr(late_reads, "_fetch", lambda values: (counted.append(len(values)), real(values)))
    return counted


@pytest.mark.parametrize("name", WRITTEN)
def test_shown_returned_and_saved_as_before(name: str, tmp_path: Path, fetches: list[int]) -> None:
    before = script(WRITTEN[name])
    after = written(before)
    assert "read_later(" in after and "item()" not in after, after
    assert written(after) == after
    expected = outcome(before, tmp_path / "before")
    assert not fetches
    assert outcome(after, tmp_path / "after") == expected
    if "no plain numbers" not in name and "of its own" not in name:
        assert sum(fetches) > len(fetches), "several values are read at once"


def test_a_total_that_is_never_shown_wants_no_reading() -> None:
    after = written(
        script("def train():\n    total = 0.0\n    for x, y in data:\n        STEP\n        total += loss.item()\n")
    )
    assert "import read_later\n" in after and "read_now" not in after


def test_a_missing_read_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetches: list[int]) -> None:
    """The planted fault: without the reads before they are shown, numbers are no numbers any more."""
    technique = "hotlap.catalogue.sync_free_loop"
    monkeypatch.setattr(
        f"{technique}.insert_before", lambda source, statement, text: insert_before(source, statement, "pass")
    )
    before = script(WRITTEN["weighted, counted, averaged"])
    assert outcome(written(before), tmp_path / "after") != outcome(before, tmp_path / "before")


@pytest.mark.parametrize("reason", ALONE)
def test_left_alone_with_the_reason(reason: str) -> None:
    text = script(ALONE[reason])
    assert written(text) == text
    assert any("(left alone: " in one and reason in one for one in findings(text)), findings(text)
