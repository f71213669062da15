"""BlazeFL: its FedAvg, one client after another on one core, a pool of processes on more."""

import sys
import tempfile
from pathlib import Path

import torch.multiprocessing
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
)
from blazefl.contrib.fedavg import FedAvgPartitionType
from blazefl.core import IPCMode, ModelSelector, PartitionedDataset
from torch.utils.data import DataLoader, TensorDataset
from work import TEST_BATCH, Record, Work


class Networks(ModelSelector):
    def __init__(self, work):
        self.work = work

    def select_model(self, model_name):
        return self.work.network()


class Images(PartitionedDataset):
    """Reads a client's samples when it trains, so that a process need not be sent all of them."""

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
    pool = work.workers > 1
    setting = f"pool of {work.workers} processes, shared memory" if pool else "one client after another"
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
    with tempfile.TemporaryDirectory() as folder:
        if pool:
            trainer = FedAvgProcessPoolClientTrainer(
                **schedule,
                share_dir=Path(folder, "share"),
                state_dir=Path(folder, "state"),
                num_parallels=work.workers,
                ipc_mode=IPCMode.SHARED_MEMORY,
            )
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
if __name__ == "__main__":
    torch.multiprocessing.set_start_method("fork")
    main()
