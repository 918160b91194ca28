"""A client whose speed is configured: --node-config "client-id='c1' data=1 slowness=2.5"."""

import time

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fair_loopback.task import HELD, LEARNER, to_record
from turnout.adapters.flower.client import with_status

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for one epoch on this client's data, after the configured delay."""
    time.sleep(float(context.node_config["slowness"]))
    order = np.random.default_rng().permutation(HELD[int(context.node_config["data"])])
    weights = message.content.array_records["arrays"]["weights"].numpy()
    models, losses = LEARNER.train_clients(weights, order[None, None])
    metrics = MetricRecord({"num-examples": len(order), "loss": float(losses[0])})
    return Message(RecordDict({"arrays": to_record(models[0]), "metrics": metrics}), reply_to=message)


app = with_status(app)
