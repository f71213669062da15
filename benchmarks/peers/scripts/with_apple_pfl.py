"""Apple's pfl, with its PyTorch model; a process per worker under torchrun."""

import sys
from itertools import chain

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from work import TEST_BATCH, Record, Work, accuracy

work = Work.read(sys.argv[1])
setting = "users' tensors in memory" + (", a process per core with torchrun" if work.workers > 1 else "")
record = Record(work, "pfl", setting)


class ShuffledDataset(PyTorchTensorDataset):
    """A user's tensors in new batches in every epoch; pfl's own are always the same."""

    def iter(self, batch_size):
        if not work.shuffle:
            yield from super().iter(batch_size)
            return
        images, labels = self.raw_data
        for batch in torch.randperm(len(labels)).split(batch_size or len(labels)):
            yield images[batch], labels[batch]


class AveragingStatistics(PyTorchModel):
    """Also averages the running statistics of batch norm, which pfl leaves at the last user's."""

    def __init__(self, model, **kwargs):
        super().__init__(model, **kwargs)
        self._statistics = {n: b for n, b in model.named_buffers() if b.is_floating_point()}
        self._variable_map |= self._statistics

    def apply_model_update(self, statistics):
        for name, tensor in self._statistics.items():
            tensor.add_(statistics[name])
        trained = {name: statistics[name] for name in statistics if name not in self._statistics}
        return super().apply_model_update(type(statistics)(trained))


class Timed(FederatedAveraging):
    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        number, samples = central_context.current_central_iteration + 1, work.epochs * len(user_dataset)
        with record.training(number, samples):
            return super().train_one_user(initial_model_state, model, user_dataset, central_context)


class Evaluation(TrainingProcessCallback):
    """Evaluates on the test samples, in the first process."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if work.due(central_iteration + 1) and get_ops().distributed.global_rank == 0:
            record.accuracies[central_iteration + 1] = accuracy(model.pytorch_model, *test)
        return False, Metrics()


def loss(images, labels):
    net.train()
    return torch.nn.functional.cross_entropy(net(images), labels)


def metrics(images, labels):
    net.eval()
    correct = (net(images).argmax(1) == labels).sum().item()
    return {"accuracy": Weighted(correct, len(labels))}


net = work.network()
net.loss, net.metrics = loss, metrics
test = [tensor.to(work.device) for tensor in work.test_samples()]
users = {user: ShuffledDataset(work.train_samples(user)) for user in range(work.clients)}
order = chain.from_iterable(work.partition["participants"])
data = FederatedDataset(users.__getitem__, lambda: next(order))
model = AveragingStatistics(
    net,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
)
Timed().run(
    NNAlgorithmParams(
        central_num_iterations=work.rounds,
        evaluation_frequency=10**6,
        train_cohort_size=len(work.partition["participants"][0]),
        val_cohort_size=None,
    ),
    SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
    model,
    NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch_size
    ),
    NNEvalHyperParams(local_batch_size=TEST_BATCH),
    callbacks=[Evaluation()],
)
if get_ops().distributed.world_size > 1:
    parts = [None] * get_ops().distributed.world_size
    torch.distributed.all_gather_object(parts, record.spans)
    record.spans = list(chain.from_iterable(parts))
if get_ops().distributed.global_rank == 0:
    record.write(net)
