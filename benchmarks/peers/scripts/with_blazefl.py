"""BlazeFL: its FedAvg, one client after another on one core, a thread per core on more."""

import sys

from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.contrib.fedavg import FedAvgPartitionType
from blazefl.core import ModelSelector, PartitionedDataset
from torch.utils.data import DataLoader, TensorDataset
from work import TEST_BATCH, Record, Work


class Networks(ModelSelector):
    def __init__(self, work):
        self.work = work

    def select_model(self, model_name):
        return self.work.network()


class Images(PartitionedDataset):
    """Reads a client's samples when it trains, so that they need not all be in memory."""

    def __init__(self, work):
        self.work = work

    def get_dataset(self, type_, cid):
        test = type_ == FedAvgPartitionType.TEST
        return TensorDataset(*(self.work.test_samples() if test else self.work.train_samples(cid)))

    def set_dataset(self, type_, cid, dataset):
        pass

    def get_dataloader(self, type_, cid, batch_size, generator):
        data = self.get_dataset(type_, cid)
        if type_ == FedAvgPartitionType.TEST:
            return DataLoader(data, TEST_BATCH)
        shuffle = {"shuffle": True, "generator": generator} if self.work.shuffle else {}
        return DataLoader(data, batch_size, **shuffle)


class GivenParticipants(FedAvgBaseServerHandler):
    def sample_clients(self):
        return work.partition["participants"][self.round]


def main():
    setting = (
        f"{work.workers} threads, its recommended mode" if work.workers > 1 else "one client after another"
    )
    record = Record(work, "blazefl", setting)
    networks, images = Networks(work), Images(work)
    server = GivenParticipants(
        networks,
        work.model,
        images,
        global_round=work.rounds,
        num_clients=work.clients,
        sample_ratio=0.1,
        device=work.device,
        batch_size=work.batch_size,
        seed=0,
    )
    schedule = {
        "model_selector": networks,
        "model_name": work.model,
        "dataset": images,
        "device": work.device,
        "num_clients": work.clients,
        "epochs": work.epochs,
        "batch_size": work.batch_size,
        "lr": work.lr,
        "seed": 0,
    }
    if work.workers > 1:
        trainer = FedAvgThreadPoolClientTrainer(**schedule, num_parallels=work.workers)
    else:
        trainer = FedAvgBaseClientTrainer(**schedule)
    for number in range(1, work.rounds + 1):
        participants = server.sample_clients()
        samples = work.epochs * sum(len(work.partition["train"][client]) for client in participants)
        with record.training(number, samples):
            trainer.local_process(server.downlink_package(), participants)
        for package in trainer.uplink_package():
            server.load(package)
        if work.due(number):
            record.accuracies[number] = 100 * server.get_summary()["server_acc"]
    record.write(server.model)


work = Work.read(sys.argv[1])
main()
