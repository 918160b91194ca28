"""Measures training of models of one's own (TorchTask): stacked by torch.func.vmap against a plain loop over clients.

    PYTHONPATH=src python benchmarks/own_models.py --out own_models.json

Needs torch and NumPy only. Both ways train the same clients from the same weights, in one process and in turns; the
script prints the ratio of their times and the largest difference of a weight, on the CPU and on a GPU if there is one.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from turnout.bench.timing import in_turns
from turnout.errors import TurnoutError
from turnout.lab import Cohort, TorchTask, Training
from turnout.lab.training.learners.devices import device_name
from turnout.lab.training.learners.stacked_modules import StackedModuleLearner

CLASSES = 10
BATCH = 10


class Mlp(nn.Sequential):
    """A perceptron with two hidden layers on 64 features."""

    def __init__(self, width: int = 128) -> None:
        super().__init__(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))


class Block(nn.Module):
    """A residual block with GroupNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, after), nn.GroupNorm(4, after)])
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(values)))
        return functional.relu(self.norms[1](self.second(inner)) + self.shortcut(values))


class ResNet(nn.Sequential):
    """A ResNet of three stages on 28 × 28 pixels."""

    def __init__(self, width: int = 16, blocks: int = 1) -> None:
        stages = [(1 if stage == 0 else width << (stage - 1), width << stage) for stage in range(3)]
        layers: list[nn.Module] = []
        for stage, (before, after) in enumerate(stages):
            layers += [Block(before, after, 1 if stage == 0 else 2)]
            layers += [Block(after, after, 1) for _ in range(blocks - 1)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 2, CLASSES))


class Transformer(nn.Module):
    """Two encoder layers on sequences of 32 tokens."""

    def __init__(self, width: int = 64, tokens: int = 64, length: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.score(self.encode(self.embed(tokens) + self.place).mean(dim=1))
        return scores


def features(rng: np.random.Generator, items: int) -> Any:
    return rng.normal(size=(items, 64))


def images(rng: np.random.Generator, items: int) -> Any:
    return rng.normal(size=(items, 1, 28, 28))


def sequences(rng: np.random.Generator, items: int) -> Any:
    return rng.integers(64, size=(items, 32))


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs, and how many items each client holds on a CPU and on a GPU."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator, int], Any]
    cpu_items: int
    gpu_items: int


CASES = (
    Case("MLP", Mlp, features, 100, 500),
    Case("ResNet", ResNet, images, 20, 200),
    Case("ResNet, wide", partial(ResNet, 64, 2), images, 0, 100),  # on a GPU only
    Case("transformer", Transformer, sequences, 50, 500),
)


@dataclass(frozen=True, slots=True)
class OwnModelComparison:
    """Median seconds of a round of `clients` clients; `ragged` if they hold different numbers of items.

    `difference` is the largest difference of a weight between both ways, `moved` the largest change of a weight by
    training. Both are measured with float32 products (without TF32), the times with torch's default.
    `eager_seconds` is the time without CUDA graphs.
    """

    model: str
    parameters: int
    device: str
    clients: int
    items: int
    ragged: bool
    plain_seconds: float
    stacked_seconds: float
    eager_seconds: float | None
    difference: float
    moved: float

    @property
    def ratio(self) -> float:
        """Time of the plain loop, divided by the time of the stacked computation."""
        return self.plain_seconds / self.stacked_seconds


def make_task(case: Case, items: int, clients: int, *, ragged: bool, method: Any) -> TorchTask:
    """Returns a task on random data; the clients of a ragged one hold between a half and all of `items`."""
    rng = np.random.default_rng(0)
    inputs, targets = case.inputs(rng, clients * items), rng.integers(CLASSES, size=clients * items)
    test = case.inputs(rng, 100), rng.integers(CLASSES, size=100)
    sizes = [items if not ragged else items // 2 + client * (items // 2) // clients for client in range(clients)]
    split = [client * items + np.arange(size) for client, size in enumerate(sizes)]
    training = Training(batch_size=BATCH, learning_rate=0.05, momentum=0.9)
    return TorchTask(
        case.model, functional.cross_entropy, (inputs, targets), test, split, training=training, method=method
    )


def compare_own_model(case: Case, device: str, clients: int, *, ragged: bool, repeats: int) -> OwnModelComparison:
    """Trains one round both ways, compares the weights, and measures both in turns.

    Args:
        case: The model.
        device: The torch device.
        clients: The number of clients of the round.
        ragged: Whether the clients hold different numbers of items.
        repeats: How often both are measured.
    """
    items = case.cpu_items if device == "cpu" else case.gpu_items
    plain_task, task = (
        make_task(case, items, clients, ragged=ragged, method=method) for method in ("plain", "stacked")
    )
    plain, stacked = plain_task.learner(device, workers=1), task.learner(device)
    orders = plain_task.split(clients).items[:, None]
    shares = (orders[:, 0] >= 0).sum(axis=1).astype(float)
    start = plain.initial_weights(0)
    cohort, stacked_cohort = Cohort(start, orders, shares), Cohort(stacked.loaded(start), orders, shares)
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    expected, trained = plain.train([cohort])[0].weights, stacked.train([stacked_cohort])[0].weights
    stacked.close()  # graphs were captured without TF32
    torch.backends.cudnn.allow_tf32 = tf32
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: plain.train([cohort]),
        "stacked": lambda: stacked.train([stacked_cohort]),
    }
    eager = StackedModuleLearner(task.spec, device=device, graphs=False)
    if device != "cpu":
        ways["eager"] = lambda: eager.train([stacked_cohort])
    seconds = dict(zip(ways, in_turns(list(ways.values()), repeats), strict=True))
    for learner in (stacked, eager):
        learner.close()
    return OwnModelComparison(
        case.name,
        plain.network.parameters,
        device_name(device),
        clients,
        items,
        ragged,
        seconds["plain"],
        seconds["stacked"],
        seconds.get("eager"),
        float(np.abs(stacked.saved(trained) - expected).max()),
        float(np.abs(expected - start).max()),
    )


def main() -> int:
    """Prints one line per model, device and number of clients; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="write all results to this file, as JSON")
    parser.add_argument("--device", action="append", help="cpu or cuda; by default all that there are")
    parser.add_argument(
        "--clients", type=int, action="append", help="clients of a round; by default 8, on a GPU also 32"
    )
    parser.add_argument("--model", action="append", choices=[case.name for case in CASES], help="by default all")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    devices = options.device or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    results, failed = [], False
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads", flush=True)
    for device in devices:
        rounds = [(clients, False) for clients in options.clients or ([8] if device == "cpu" else [8, 32, 64])]
        rounds.append((rounds[0][0], True))
        for case in CASES:
            if (options.model and case.name not in options.model) or (device == "cpu" and not case.cpu_items):
                continue
            for clients, ragged in rounds:
                try:
                    found = compare_own_model(case, device, clients, ragged=ragged, repeats=options.repeats)
                except (RuntimeError, TurnoutError) as error:  # the other cases are measured all the same
                    failed = True
                    print(f"{device}, {case.name}, {clients} clients: {type(error).__name__}: {error}", flush=True)
                    continue
                results.append({**asdict(found), "ratio": found.ratio})
                eager = "" if found.eager_seconds is None else f" (without graphs {found.eager_seconds * 1e3:.1f} ms)"
                print(
                    f"{found.device}, {case.name} ({found.parameters} parameters), {clients} clients with "
                    f"{'at most ' if ragged else ''}{found.items} items: plain {found.plain_seconds * 1e3:.1f} ms, "
                    f"stacked {found.stacked_seconds * 1e3:.1f} ms{eager}, ratio {found.ratio:.2f}; largest difference "
                    f"of a weight {found.difference:.2g}, largest change {found.moved:.2g}",
                    flush=True,
                )
                if options.out is not None:
                    options.out.write_text(json.dumps({"torch": torch.__version__, "results": results}, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
