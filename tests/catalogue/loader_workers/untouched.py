"""Loaders that have workers, that must not have them, or of which nothing is known."""

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split
from mylib import DataLoader as OtherLoader, Photos


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1)


class InMemory(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.inputs[index], torch.tensor(self.labels[index])


class Photo(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return decode(self.paths[index])


photos = Photo()
arguments = parse_arguments()

# has workers, by keyword, position or kwargs
DataLoader(photos, num_workers=4)
DataLoader(photos, 16, True, None, None, 4)
DataLoader(photos, num_workers=arguments.workers)
settings = {"num_workers": 2, "pin_memory": True}
DataLoader(photos, batch_size=4, **settings)

# may have them
kwargs = {"num_workers": 1, "pin_memory": True} if torch.cuda.is_available() else {}
DataLoader(photos, batch_size=4, **kwargs)
train_kwargs = {"batch_size": 4}
if torch.cuda.is_available():
    train_kwargs.update({"num_workers": 1})
DataLoader(photos, **train_kwargs)
DataLoader(photos, **vars(arguments))
DataLoader(*arguments)

# must not
DataLoader(Stream())
stream = Stream()
DataLoader(stream, batch_size=4)

# in memory already
tensors = TensorDataset(torch.zeros(8, 2))
DataLoader(tensors, shuffle=True)
DataLoader(Subset(tensors, [0, 1]), shuffle=True)
part, rest = random_split(tensors, [4, 4])
DataLoader(part, shuffle=True)
DataLoader(InMemory(), shuffle=True)
DataLoader([1, 2, 3], shuffle=True)

# nothing known
OtherLoader(photos)
DataLoader(Photos())  # may be iterable


def loader_of(dataset):
    return DataLoader(dataset, shuffle=True)


DataLoader(photos)  # hotlap: ignore[loader-workers]
