"""The textbook loop (`benchmarks/textbook.py`) on torch alone."""

import sys
from types import SimpleNamespace

import numpy as np
from work import Record, Work

from benchmarks.textbook import TextbookFedAvg

work = Work.read(sys.argv[1])
threads = f"{work.workers} threads of torch" if work.workers > 1 else "one thread"
record = Record(work, "torch", threads)
division = SimpleNamespace(**work.partition)
images, labels = (np.load(work.folder / f"{name}.npy") for name in ("images", "labels"))
dataset = SimpleNamespace(images=images, labels=labels, mean=division.mean, std=division.std)
loop = TextbookFedAvg(work.network(), dataset, division, work.batch_size, work.shuffle)
for number, participants in enumerate(division.participants[: work.rounds], start=1):
    samples = work.epochs * sum(len(division.train[client]) for client in participants)
    with record.training(number, samples):
        _, states = loop.train(participants, work.epochs, work.lr)
    loop.aggregate(participants, states)
    if work.due(number):
        sizes = [len(indices) for indices in division.test]
        record.accuracies[number] = 100 * float(np.average(loop.evaluate(), weights=sizes))
record.write(loop.model)
