"""quickstart: a Flower server."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains and prints the final accuracy."""
    rounds = int(context.run_config["num-server-rounds"])
    arrays = ArrayRecord([np.zeros(11)])
    strategy = FedAvg(fraction_train=float(context.run_config["fraction-train"]))
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
    print(f"accuracy after {rounds} rounds: {result.evaluate_metrics_clientapp[rounds]['eval_acc']:.3f}")
