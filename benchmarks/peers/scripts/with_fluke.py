"""fluke."""

import sys
import time

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import ClientObserver, FederationObserver
from torchmetrics import Accuracy
from work import TEST_BATCH, Record, Work

work = Work.read(sys.argv[1])
threads = f"{work.workers} threads of torch" if work.workers > 1 else "one thread"
record = Record(work, "fluke-fl", f"its FastDataLoader, accuracy as the only metric, {threads}")
participants = work.partition["participants"]


class GivenParticipants(Server):
    def get_eligible_clients(self, eligible_perc):
        return [self.clients[client] for client in participants[federation.rounds]]


class Algorithm(FedAVG):
    def get_server_class(self):
        return GivenParticipants


class Observer(ClientObserver, FederationObserver):
    """Times the clients, and evaluates the server's model when it is due."""

    def start_fit(self, round, client_id, model, **kwargs):
        self.began = time.time()

    def end_fit(self, round, client_id, model, loss, **kwargs):
        samples = work.epochs * len(work.partition["train"][client_id])
        record.spans.append((round, self.began, time.time(), samples))

    def end_round(self, round):
        if work.due(round):
            server = federation.server
            metrics = server.evaluate(environment.get_evaluator(), server.test_set, round)
            record.accuracies[round] = 100 * metrics["accuracy"]


def loader(images, labels, batch_size, shuffle):
    return FastDataLoader(images, labels, num_labels=10, batch_size=batch_size, shuffle=shuffle)


environment = FlukeENV()
environment.set_device(work.device)
environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
accuracy = Accuracy(task="multiclass", num_classes=10, top_k=1)
environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=10, accuracy=accuracy))
clients = [
    loader(*work.train_samples(client), work.batch_size, work.shuffle) for client in range(work.clients)
]
test = loader(*work.test_samples(), TEST_BATCH, shuffle=False)
data = DummyDataContainer(clients, [None] * work.clients, test, num_classes=10)
federation = Algorithm(
    work.clients,
    DataSplitter(data),
    DDict(
        model=work.network(),
        client=DDict(
            batch_size=work.batch_size,
            local_epochs=work.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    ),
)
federation.set_callbacks(Observer())
federation.run(work.rounds, eligible_perc=0.1, finalize=False)
record.write(federation.server.model)
