"""Loops that are not plain enough to be sure of."""

import torch
from torch import nn

model = nn.Linear(8, 2)
other = nn.Linear(8, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluation(loader):
    model.eval()
    with torch.no_grad():
        for inputs, labels in loader:
            print(criterion(model(inputs), labels))


def condition_between(loader):
    for inputs, labels in loader:
        output = model(inputs)
        if labels is not None:
            loss = criterion(output, labels)
        loss.backward()
        optimizer.step()


def in_one_statement(loader):
    for inputs, labels in loader:
        criterion(model(inputs), labels).backward()
        optimizer.step()


def two_backward_passes(loader):
    for inputs, labels in loader:
        first = criterion(model(inputs), labels)
        first.backward()
        second = criterion(other(inputs), labels)
        second.backward()
        optimizer.step()


def on_one_line(loader):
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels); loss.backward(); optimizer.step()


def conditional_backward(loader, training):
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels)
        if training:
            loss.backward()
            optimizer.step()


def output_as_array(loader):
    for inputs, labels in loader:
        output = model(inputs)
        loss = criterion(output, labels)
        loss.backward()
        optimizer.step()
        print(output.detach().numpy())


def with_a_closure(loader):
    for inputs, labels in loader:

        def closure():
            loss = criterion(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
