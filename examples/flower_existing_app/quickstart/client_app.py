"""quickstart: a Flower client."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import load_data, test, train

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Trains the model on local data."""
    data = load_data(int(context.node_config["partition-id"]))
    (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    weights, loss = train(weights, data, float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    """Evaluates the model on local data."""
    data = load_data(int(context.node_config["partition-id"]))
    (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"eval_acc": test(weights, data), "num-examples": len(data[1])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
