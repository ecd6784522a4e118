"""A character model as an expert writes it by hand, against karpathy/minGPT `projects/chargpt`: that repository's
gpt-mini, blocks of 128, batches of 64 drawn with replacement, AdamW 5e-4 with betas 0.9 and 0.95, decay 0.1 on matrices
only, gradients clipped at 1.0, a line every 10 steps, 500 characters sampled and the weights saved every 500.

The text lies on the device, where batches are cut; attention is torch's fused one over the network's own layers."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import torch
from captured import captured, compiled, in_bf16, resident
from laps import Laps, LateLog, from_public, parser
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

BATCH, BLOCK, LOG_EVERY, SAMPLE_EVERY, OPENING = 64, 128, 10, 500, "O God, O God!"


def fused_attention(self: nn.Module, x: Tensor) -> Tensor:
    """Takes the place of a layer's hand-written softmax over a mask."""
    heads = (one.unflatten(2, (self.n_head, -1)).transpose(1, 2) for one in self.c_attn(x).chunk(3, dim=2))
    dropped = self.attn_dropout.p if self.training else 0.0
    mixed = scaled_dot_product_attention(*heads, dropout_p=dropped, is_causal=True)
    return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).flatten(2)))


def network(characters: int, kind: str) -> nn.Module:
    public = importlib.import_module("mingpt.model")
    config = public.GPT.get_default_config()
    config.model_type, config.vocab_size, config.block_size = kind, characters, BLOCK
    public.CausalSelfAttention.forward = fused_attention
    return public.GPT(config)


def optimizer_for(model: nn.Module, is_on_gpu: bool) -> torch.optim.Optimizer:
    matrices = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    known = set(map(id, matrices))
    others = [weight for weight in model.parameters() if id(weight) not in known]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.95), fused=True, capturable=is_on_gpu)


def main() -> None:
    options = parser(__doc__, warmup=520)
    options.add_argument("--public", help="folder of minGPT, whose network is used")
    options.add_argument("--data", help="the text; without it, noise")
    options.add_argument("--kind", default="gpt-mini", help="other than the script's for a smoke test only")
    given = options.parse_args()
    device, is_on_gpu = given.device, torch.device(given.device).type == "cuda"
    from_public(given.public, "minGPT")
    text = Path(given.data).read_text() if given.data else OPENING + "".join(map(chr, range(40, 90))) * 400
    characters = sorted(set(text))
    number_of = {character: number for number, character in enumerate(characters)}
    data = resident(torch.tensor([number_of[character] for character in text]), device)
    reach = torch.arange(BLOCK + 1, device=device)
    model = network(len(characters), given.kind).to(device).train()
    optimizer = optimizer_for(model, is_on_gpu)
    weights = list(model.parameters())

    def loss_of() -> Tensor:
        starts = torch.randint(0, len(data) - BLOCK, (BATCH, 1), device=device)
        blocks = data[starts + reach]
        with in_bf16(device):
            return model(blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous())[1]

    fast_loss_of = compiled(loss_of, device, given.capture)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = fast_loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return loss

    def sample() -> str:
        """The script's own way, in bf16: one character at a time, without a cache."""
        opening = torch.tensor([number_of[character] for character in OPENING], device=device)[None]
        model.eval()
        with torch.no_grad(), in_bf16(device):
            drawn = model.generate(opening, 500 if is_on_gpu else 2, temperature=1.0, do_sample=True, top_k=10)[0]
        model.train()
        return "".join(characters[number] for number in drawn.tolist())

    fast_step = captured(step, device, given.capture)
    laps, log, number = Laps(given), LateLog(device), 0
    while True:
        loss = fast_step()
        if number % LOG_EVERY == 0:
            log.write(f"step {number}", loss)
        if number % SAMPLE_EVERY == 0:
            print(sample())
            with tempfile.TemporaryFile() as file:
                torch.save(model.state_dict(), file)
        number += 1
        if laps.done(loss):
            laps.report("chargpt", kind=given.kind, data=given.data is not None)
            return


if __name__ == "__main__":
    main()
