"""A language model over a vocabulary that is no multiple of 8."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 1003


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 20)
        self.hidden = nn.Linear(20, 20)
        self.head = nn.Linear(20, WORDS)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(self.words(x))))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    batch = torch.randint(WORDS, (4, 9))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[:, :-1]).view(-1, WORDS), batch[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
