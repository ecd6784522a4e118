"""ResNet-50 as an expert writes it by hand, against pytorch/examples `imagenet/main.py -a resnet50 -b 256` and against
`courses/resnet50.py`, whose network it takes: torchvision's, where that is installed. SGD 0.1 with momentum 0.9 and
decay 1e-4, batches of 256 at 224x224, 1000 classes.

Its input already lies on the device, always the same: no photo is decoded and nothing is tested, so this is how fast a
step can be once data costs nothing, not a loop that trains on photos."""

from __future__ import annotations

import torch
from captured import captured, compiled, in_bf16, resident
from laps import Laps, LateLog, course, parser
from torch import Tensor
from torch.nn.functional import cross_entropy

LOG_EVERY = 10


def main() -> None:
    options = parser(__doc__, warmup=40)
    options.add_argument("--batch", type=int, default=256, help="other than the script's for a smoke test only")
    options.add_argument("--side", type=int, default=224, help="other than the script's for a smoke test only")
    given = options.parse_args()
    device, is_on_gpu = given.device, torch.device(given.device).type == "cuda"
    torch.backends.cudnn.benchmark = True
    model = course("resnet50").network().to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    images = torch.randn(given.batch, 3, given.side, given.side, device=device)
    images = images.to(torch.bfloat16 if is_on_gpu else torch.float32, memory_format=torch.channels_last)
    images = resident(images, device)
    labels = torch.randint(0, 1000, (given.batch,), device=device)

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with in_bf16(device):
            return cross_entropy(model(inputs), targets)

    fast_loss_of = compiled(loss_of, device, given.capture)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = fast_loss_of(images, labels)
        loss.backward()
        optimizer.step()
        return loss

    fast_step = captured(step, device, given.capture)
    laps, log, number = Laps(given), LateLog(device), 0
    while True:
        loss = fast_step()
        if number % LOG_EVERY == 0:
            log.write(f"step {number}", loss)
        number += 1
        if laps.done(loss):
            laps.report("resnet50", batch=given.batch)
            return


if __name__ == "__main__":
    main()
