"""The good state in all its forms, what only looks like it, and what cannot be known."""

import torch
import torch.optim as optim
from torch.optim import SGD as Descent
from mylib.optim import Adam

params = make_parameters()

# already chosen
optim.Adam(params, fused=True)
optim.Adam(params, lr=1e-3, fused=False)
torch.optim.AdamW(params, foreach=True)
Descent(params, 0.1, foreach=False)
optim.Adagrad(params, 1e-2, 0, 0, 0, 1e-10, True)
optim.Adam(params, capturable=True)
optim.SGD(params, lr=0.1, differentiable=True)

# no fused kernel, or not torch's
optim.RMSprop(params)
optim.LBFGS(params)
Adam(params)

# settings that cannot be known
options = load_options()
optim.Adam(params, **options)
extra = {"lr": 1e-3}
if torch.cuda.is_available():
    extra["fused"] = True
optim.AdamW(params, **extra)
optim.AdamW(params, **{"fused": True, "lr": 1e-3})


def build(optim, params):
    return optim.Adam(params)  # another `optim`


def build_any(params, **kwargs):
    return torch.optim.SGD(params, 0.1, **kwargs)


optim.Adam(params)  # hotlap: ignore[fused-optimizer]
optim.Adam(params)  # hotlap: ignore
