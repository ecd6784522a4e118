"""Workers that already live on, that are started once only, or of which nothing is known."""

import argparse

import torch
from torch.utils.data import DataLoader
from mylib import DataLoader as OtherLoader, evaluate, photos

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--more-workers", type=int)
args = parser.parse_args()

# chosen
chosen = DataLoader(photos, num_workers=4, persistent_workers=True)
off = DataLoader(photos, num_workers=4, persistent_workers=False)
options = {"num_workers": 1, "persistent_workers": True} if torch.cuda.is_available() else {}
gated = DataLoader(photos, **options)

# no workers, or nobody knows how many
none = DataLoader(photos)
zero = DataLoader(photos, num_workers=0)
asked = DataLoader(photos, num_workers=args.workers)
unknown = DataLoader(photos, num_workers=args.more_workers)
spread = DataLoader(photos, **vars(args))
other = OtherLoader(photos, num_workers=2)

# iterated once
once = DataLoader(photos, num_workers=4)
for batch in once:
    pass
only_measured = DataLoader(photos, num_workers=4)

for epoch in range(10):
    for loader in (chosen, off, gated, none, zero, asked, unknown, spread, other):
        for batch in loader:
            pass
    for batch in none:
        pass
    for batch in zero:
        pass
    for batch in asked:
        pass
    for batch in unknown:
        pass
    for batch in other:
        pass
    for batch in gated:
        pass
    print(len(only_measured))
    # built anew in every epoch: there is nothing that could live on
    fresh = DataLoader(photos, num_workers=4)
    for batch in fresh:
        pass
    evaluate(fresh)


# one pass, drawn from by hand
endless = DataLoader(photos, num_workers=4)
batches = iter(endless)
while True:
    batch = next(batches)


def loader_of(dataset):
    return DataLoader(dataset, num_workers=4)


ignored = DataLoader(photos, num_workers=4)  # hotlap: ignore[persistent-workers]
for epoch in range(10):
    for batch in ignored:
        pass
