"""The client app of a phone; its last line is the only change for fair selection."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fair_digits.task import learner, phone_items, to_record
from turnout.adapters.flower.client import with_status

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for one epoch on this phone's data."""
    name, config = str(context.run_config["dataset"]), message.content.config_records["config"]
    seed, number = int(config["seed"]), int(config["server-round"])
    phone = int(context.node_config["partition-id"])
    order = np.random.default_rng([seed, number, phone]).permutation(phone_items(name, seed)[phone])
    weights = message.content.array_records["arrays"]["weights"].numpy()
    models, losses = learner(name).train_clients(weights, order[None, None])
    metrics = MetricRecord({"num-examples": len(order), "loss": float(losses[0])})
    return Message(RecordDict({"arrays": to_record(models[0]), "metrics": metrics}), reply_to=message)


app = with_status(app)
