"""Techniques that are wrong on purpose, each in one subtle way, and right ones beside them. Parity must tell."""

from __future__ import annotations

from hotlap.technique import Family, Parity, Technique, Try


class Planted(Technique):
    family = Family.COMPUTE

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


class ShuffledLabels(Planted):
    def apply(self, patch, setting):
        def drawn(proceed, iterator):
            x, y = proceed(iterator)
            return x, y.flip(0)

        patch.at(patch.joints.batch_drawn, drawn)


class LossNotUnscaled(Planted):
    def apply(self, patch, setting):
        patch.at(patch.joints.loss_known, lambda proceed, loss, *rest, **k: proceed(loss * 1024, *rest, **k))


class DropoutOff(Planted):
    def apply(self, patch, setting):
        import torch

        def found(root):
            for module in root.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0

        patch.at(patch.joints.root_found, found)


class FrozenBatchNorm(Planted):
    def apply(self, patch, setting):
        import torch

        def call(proceed, root, args, kwargs):
            for module in root.modules():
                if isinstance(module, torch.nn.BatchNorm1d):
                    module.eval()
            return proceed(root, args, kwargs)

        patch.at(patch.joints.root_called, call)


class GradientsNotZeroed(Planted):
    def apply(self, patch, setting):
        import torch

        patch.set(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: None)


WRONG = [
    DoubledLearningRate,
    SlightlyLargerLearningRate,
    WrongWeightDecay,
    SkipsTheLastBatch,
    StaleBatches,
    ShuffledLabels,
    LossNotUnscaled,
    DropoutOff,
    FrozenBatchNorm,
    GradientsNotZeroed,
]
