"""This project."""

import sys
import time

from work import Record, Work, tensors

import pfl

work = Work.read(sys.argv[1])
record = Record(work, "pfl-repro", "fused kernels" + (", a worker per core" if work.workers > 1 else ""))
(run,) = pfl.simulate(
    "fedavg",
    "cifar10",
    work.rule,
    clients=work.clients,
    model=work.model,
    participation=0.1,
    rounds=work.rounds,
    epochs=work.epochs,
    batch_size=work.batch_size,
    lr=work.lr,
    batch_order="shuffled" if work.shuffle else "fixed",
    eval_every=work.eval_every,
    execution=pfl.Execution(
        device=work.device,
        workers=work.workers if work.device == "cpu" else None,
        moments=("post_aggregation",),
        save=work.weights,
    ),
    progress=False,
)
measured = run.measured
startup = time.time() - work.began - measured.wall_seconds
record.accuracies = {e.round: e.post_aggregation.pooled for e in run.metrics.rounds}
model = pfl.load_models(work.weights).global_model()
record.write_figures(measured.samples, measured.train_seconds, startup, tensors(model))
