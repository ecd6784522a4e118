"""Techniques that are wrong on purpose, each in one subtle way, and right ones beside them. Parity must tell."""

from __future__ import annotations

from hotlap.source.edits import replace_argument
from hotlap.technique import Family, Parity, Technique, Try


class Planted(Technique):
    family = Family.COMPUTE
    applies_to = ("cnn", "mlp", "transformer")  # of `networks`

    def parity(self, run):
        return Parity.EQUIVALENT

    def settings(self, run):
        return [Try({}, 0.9)]


class Breaks(Planted):
    def apply(self, patch, setting):
        raise RuntimeError("planted to fail")


class DoesNothing(Planted):
    def apply(self, patch, setting):
        pass


class HalfBatches(Planted):
    """Has a form in source only, and makes twice as many steps, which a record shows."""

    def spot(self, source):
        for call in source.calls("torch.utils.data.DataLoader"):
            if call.known("batch_size").value == 8:
                yield source.site(call.node, "message", "safe")

    def rewrite(self, site, setting):
        (call,) = (call for call in site.source.calls("torch.utils.data.DataLoader") if call.node is site.node)
        return replace_argument(call, "batch_size", str(setting.get("batch_size", 4)))


class _OptimizerSetting(Planted):
    def apply(self, patch, setting):
        def built(proceed, optimizer, bound):
            proceed(optimizer, bound)
            for group in optimizer.param_groups:
                self.change(group)

        patch.at(patch.joints.optimizer_built, built)


class DoubledLearningRate(_OptimizerSetting):
    def change(self, group):
        group["lr"] *= 2


class SlightlyLargerLearningRate(_OptimizerSetting):
    def change(self, group):
        group["lr"] *= 1.1


class WrongWeightDecay(_OptimizerSetting):
    def change(self, group):
        group["weight_decay"] = 0.0


class MomentumOff(_OptimizerSetting):
    def change(self, group):
        group.update({"betas": (0.0, group["betas"][1])} if "betas" in group else {"momentum": 0.0})


class SkipsTheLastBatch(Planted):
    def apply(self, patch, setting):
        def built(proceed, loader, bound):
            bound.arguments["drop_last"] = True
            proceed(loader, bound)

        patch.at(patch.joints.loader_built, built)


class StaleBatches(Planted):
    """Every third batch is the one before it, once more."""

    def apply(self, patch, setting):
        last = [None, 0]

        def drawn(proceed, iterator):
            batch = proceed(iterator)
            last[1] += 1
            if last[1] % 3 == 0:
                return last[0]
            last[0] = batch
            return batch

        patch.at(patch.joints.batch_drawn, drawn)


class RoundedPixels(Planted):
    """Batches made another way: the same but for rounding."""

    batch_tolerance = 0.02
    noise = 0.005

    def apply(self, patch, setting):
        import torch

        own = torch.Generator().manual_seed(0)

        def drawn(proceed, iterator):
            x, *rest = proceed(iterator)
            return [x + self.noise * torch.randn(x.shape, generator=own), *self.others(rest)]

        patch.at(patch.joints.batch_drawn, drawn)

    def others(self, rest):
        return rest


class BlurredPixels(RoundedPixels):
    noise = 0.05


class RoundedPixelsUnsaid(RoundedPixels):
    batch_tolerance = 0.0


class RoundedPixelsOfOthers(RoundedPixels):
    def others(self, rest):
        return [labels.flip(0) for labels in rest]


class RepeatsABatch(Planted):
    """One batch comes twice, once; none is lost."""

    def apply(self, patch, setting):
        seen = []

        def drawn(proceed, iterator):
            seen.append(seen[-1] if len(seen) == 7 else proceed(iterator))
            return seen[-1]

        patch.at(patch.joints.batch_drawn, drawn)


class DrawsWithReplacement(Planted):
    def apply(self, patch, setting):
        import torch

        def built(proceed, loader, bound):
            given = bound.arguments
            given["shuffle"], given["sampler"] = None, torch.utils.data.RandomSampler(given["dataset"], True)
            proceed(loader, bound)

        patch.at(patch.joints.loader_built, built)


class ShuffledLabels(Planted):
    def apply(self, patch, setting):
        def drawn(proceed, iterator):
            x, y = proceed(iterator)
            return x, y.flip(0)

        patch.at(patch.joints.batch_drawn, drawn)


class _LossScale(Planted):
    def apply(self, patch, setting):
        def known(proceed, loss, *rest, **named):
            return proceed(loss * self.scale, *rest, **named)

        patch.at(patch.joints.loss_known, known)


class LossNotUnscaled(_LossScale):
    scale = 1024


class LossSlightlyScaled(_LossScale):
    scale = 1.1


class LabelSmoothing(Planted):
    def apply(self, patch, setting):
        import torch

        original = torch.nn.functional.cross_entropy
        patch.set(torch.nn.functional, "cross_entropy", lambda x, y: original(x, y, label_smoothing=0.1))


class _DropoutRate(Planted):
    def apply(self, patch, setting):
        import torch

        def found(root):
            for module in root.modules():
                if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                    module.p = self.changed(module.p)

        patch.at(patch.joints.root_found, found)


class DropoutOff(_DropoutRate):
    def changed(self, p):
        return 0.0


class WeakerDropout(_DropoutRate):
    def changed(self, p):
        return 0.6 * p  # 0.5 -> 0.3


class _Dropout(Planted):
    """Inside the function that all modules call: no module's settings tell."""

    def apply(self, patch, setting):
        import torch

        for name in ("dropout", "dropout2d"):
            patch.set(torch.nn.functional, name, self.changed(getattr(torch.nn.functional, name)))


class DropoutLeftOut(_Dropout):
    def changed(self, original):
        return lambda x, p=0.5, training=True, inplace=False: x


class DropoutWeakerInside(_Dropout):
    def changed(self, original):
        return lambda x, p=0.5, training=True, inplace=False: original(x, 0.6 * p, training)


class DropoutDrawsOthers(_Dropout):
    """Right: the same dropout, as another memory layout or a compiler would draw it."""

    def changed(self, original):
        import torch

        def dropout(x, p=0.5, training=True, inplace=False):
            shape = x.shape if original.__name__ == "dropout" else (*x.shape[:2], 1, 1)
            own = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
            kept = torch.rand(shape, generator=own) >= p
            return x * kept / (1 - p) if training else x

        return dropout


class FrozenBatchNorm(Planted):
    applies_to = ("cnn", "mlp")

    def apply(self, patch, setting):
        import torch

        def call(proceed, root, args, kwargs):
            for module in root.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.eval()
            return proceed(root, args, kwargs)

        patch.at(patch.joints.root_called, call)


class GradientsNotZeroed(Planted):
    def apply(self, patch, setting):
        import torch

        patch.set(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: None)


class SwappedForItsLike(Planted):
    """Right: another class in the place of a module, and no dropout module by that name."""

    def apply(self, patch, setting):
        import torch

        class Thinning(torch.nn.Module):
            def __init__(self, rate):
                super().__init__()
                self.rate = rate

            def forward(self, x):
                return torch.nn.functional.dropout(x, self.rate, self.training)

        def found(root):
            for module in list(root.modules()):
                for name, child in list(module.named_children()):
                    if type(child) is torch.nn.Dropout:
                        setattr(module, name, Thinning(child.p))

        patch.at(patch.joints.root_found, found)


WRONG = [
    DoubledLearningRate,
    SlightlyLargerLearningRate,
    WrongWeightDecay,
    MomentumOff,
    SkipsTheLastBatch,
    StaleBatches,
    RepeatsABatch,
    DrawsWithReplacement,
    ShuffledLabels,
    LossNotUnscaled,
    LossSlightlyScaled,
    LabelSmoothing,
    DropoutOff,
    DropoutLeftOut,
    WeakerDropout,
    FrozenBatchNorm,
    GradientsNotZeroed,
]
RIGHT = [DoesNothing, DropoutDrawsOthers, SwappedForItsLike]
# Beside draws that are others anyway, what each of these does is looked for between two samples only.
BESIDE_OTHER_DRAWS = [DropoutWeakerInside, LossSlightlyScaled, LabelSmoothing, LossNotUnscaled]


class SleepsLess(Planted):
    """A real gain that no busy neighbour can take away."""

    factor = 20

    def apply(self, patch, setting):
        import time

        real = time.sleep
        patch.set(time, "sleep", lambda seconds: real(seconds / self.factor))


class SleepsLittleLess(SleepsLess):
    """Lost in the noise, and so rejected."""

    factor = 1.0001


class Compiles(Planted):
    """For shapes that never change, which is not for it to know."""

    def apply(self, patch, setting):
        import torch

        forward = torch._dynamo.optimize("eager", dynamic=False)(torch.nn.Linear.forward)
        patch.at(patch.joints.root_called, lambda proceed, root, args, kwargs: forward(root, *args, **kwargs))
