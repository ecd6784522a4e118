"""Train a small GPT on characters and let it write."""

import argparse
import math
import os
import random
import shutil
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent
TEXT_BYTES = 300_000

GRAMMAR = {
    "sentence": ["{clause}.", "{clause}, {link} {clause}.", "{clause}!", "why did {noun} {verb} {noun}?"],
    "clause": ["{noun} {past} {noun}", "{noun} {past} {place}", "{time} {noun} {past} {noun} {place}"],
    "noun": ["the {thing}", "the {adjective} {thing}", "a {adjective} {thing}", "{name}"],
    "thing": ["king", "miller", "fox", "river", "lantern", "bridge", "garden", "raven", "letter", "baker", "storm"],
    "adjective": ["old", "quiet", "golden", "narrow", "hungry", "green", "broken", "clever", "distant", "cold"],
    "name": ["Anna", "Tom", "Clara", "Old Henry", "Marta", "Jonas"],
    "verb": ["follow", "find", "leave", "call", "forget", "carry"],
    "past": ["followed", "found", "left", "called", "forgot", "carried", "waited for", "looked at"],
    "place": ["by the {thing}", "near the {adjective} {thing}", "in the {adjective} valley", "behind the mill"],
    "time": ["at dawn", "in winter", "every night", "once", "long ago"],
    "link": ["and", "but", "because", "while", "so"],
}


def speak(symbol, rng):
    parts = rng.choice(GRAMMAR[symbol]).replace("}", "{").split("{")
    return "".join(speak(part, rng) if i % 2 else part for i, part in enumerate(parts))


def make_text(root):
    """Write the text beside its final place and move it there in one go."""
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=root.name + ".", dir=root.parent))
    try:
        rng = random.Random(0)
        paragraphs, size = [], 0
        while size < TEXT_BYTES:
            sentences = [speak("sentence", rng) for _ in range(rng.randint(3, 7))]
            paragraphs.append(" ".join(s[0].upper() + s[1:] for s in sentences))
            size += len(paragraphs[-1]) + 2
        (unfinished / "input.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
        os.chmod(unfinished, 0o755)
        try:
            os.rename(unfinished, root)
        except OSError:
            if not root.is_dir():  # otherwise another run was faster
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class CharDataset(Dataset):
    """Blocks of characters, and the same blocks one character later."""

    def __init__(self, data, block_size):
        self.data = data
        self.block_size = block_size

    def __len__(self):
        return (len(self.data) - 1) // self.block_size

    def __getitem__(self, index):
        start = index * self.block_size
        chunk = self.data[start : start + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, dropout):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        mask = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)
        self.register_buffer("mask", mask)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.proj(y))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size, dropout):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size, dropout)
        self.ln2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer=2, n_head=4, n_embd=64, dropout=0.1):
        super().__init__()
        self.block_size = block_size
        self.tok_emb = nn.Embedding(vocab_size, n_embd)
        self.pos_emb = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head, block_size, dropout) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.tok_emb(idx) + self.pos_emb(pos))
        logits = self.head(self.ln_f(self.blocks(x)))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, length):
        for _ in range(length):
            logits, _ = self(idx[:, -self.block_size :])
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx = torch.cat([idx, torch.multinomial(probs, num_samples=1)], dim=1)
        return idx


@torch.no_grad()
def estimate_loss(model, loader, device):
    model.eval()
    losses = []
    for x, y in loader:
        _, loss = model(x.to(device), y.to(device))
        losses.append(loss.item())
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data" / "chars", help="folder with input.txt")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--limit", type=int, default=None, help="use only the first LIMIT characters")
    parser.add_argument("--sample", type=int, default=200, help="characters to write at the end")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    if not args.data.is_dir():
        print(f"making text in {args.data}")
        make_text(args.data)
    text = (args.data / "input.txt").read_text(encoding="utf-8")[: args.limit]
    chars = sorted(set(text))
    stoi = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
    n = int(0.9 * len(data))
    train_loader = DataLoader(CharDataset(data[:n], args.block_size), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(CharDataset(data[n:], args.block_size), batch_size=args.batch_size)

    model = GPT(len(chars), args.block_size).to(device)
    print(f"{len(text)} characters, {len(chars)} different, {sum(p.numel() for p in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    for epoch in range(args.epochs):
        total = 0.0
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            _, loss = model(x, y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
            optimizer.step()
            total += loss.item()
        val_loss = estimate_loss(model, val_loader, device)
        print(f"epoch {epoch + 1}/{args.epochs}  loss {total / len(train_loader):.4f}  val loss {val_loss:.4f}")

    model.eval()
    start = torch.tensor([[stoi.get("T", 0)]], device=device)
    print("".join(chars[i] for i in model.generate(start, args.sample)[0].tolist()))


if __name__ == "__main__":
    main()
