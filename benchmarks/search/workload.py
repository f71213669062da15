"""The workloads on which the searches are compared: one per data set, small enough for thousands of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.workload import Workload

FOLDER = Path("reports/engineering/search")

# The rungs of a search are at a ninth and a third of the rounds, as in the papers' tables. With an MLP, a
# configuration takes half the time that it takes with the digits' CNN.
SMALL = Workload(clients=20, model="mlp", participation=0.2, rounds=18, epochs=1, batch_size=16, eval_every=2)

WORKLOADS = {
    "digits": replace(SMALL, dataset="digits", partition="dirichlet:0.1,min=10,test=0.25,seed=7", lr=0.2),
    "mnist": replace(
        SMALL, dataset="mnist", partition="dirichlet_client:0.1,size=80,test_size=40,seed=7", lr=0.05
    ),
}
