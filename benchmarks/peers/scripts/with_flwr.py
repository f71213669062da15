"""Flower: its simulation engine with the message API."""

import sys
import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset
from work import Record, Work, accuracy

work = Work.read(sys.argv[1])
record = Record(work, "flwr", "simulation engine, a client process per core")
participants = work.partition["participants"]
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, _: Context) -> Message:
    began = time.time()
    model = work.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    data = TensorDataset(*work.train_samples(message.content["config"]["client"]))
    loader = DataLoader(data, work.batch_size, shuffle=work.shuffle)
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(work.epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            criterion(model(images.to(work.device)), labels.to(work.device)).backward()
            optimiser.step()
    metrics = MetricRecord({"num-examples": len(data), "began": began, "ended": time.time()})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


class Strategy(FedAvg):
    """FedAvg whose participants are given: any node simulates the client that the message names."""

    def configure_train(self, server_round, arrays, config, grid):
        nodes = list(grid.get_node_ids())
        for node, client in zip(nodes, participants[server_round - 1], strict=False):
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
            yield Message(content, dst_node_id=node, message_type=MessageType.TRAIN)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            metrics = reply.content["metrics"]
            samples = work.epochs * int(metrics["num-examples"])
            record.spans.append((server_round, metrics["began"], metrics["ended"], samples))
        return super().aggregate_train(server_round, replies)


@server_app.main()
def main(grid: Grid, _: Context) -> None:
    model = work.network()
    test = work.test_samples()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0 or not work.due(server_round):
            return None
        model.load_state_dict(arrays.to_torch_state_dict())
        record.accuracies[server_round] = accuracy(model, *test)
        return MetricRecord({"accuracy": record.accuracies[server_round]})

    strategy = Strategy(fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(model.state_dict()), work.rounds, evaluate_fn=evaluate)
    record.write(model)


gpus = 1 / work.workers if work.device == "cuda" else 0.0
run_simulation(
    server_app,
    client_app,
    num_supernodes=work.clients,
    backend_config={
        "init_args": {"address": "local", "num_cpus": work.workers},
        "client_resources": {"num_cpus": 1, "num_gpus": gpus},
    },
)
