"""A residual network of your own on images: a small ResNet with GroupNorm learns the bundled 8 × 8 digits, or
Fashion-MNIST if you have it, on forty clients that each hold images of a few classes only. FairPace selects the clients
in the paper's simulated world. GroupNorm instead of BatchNorm lets a GPU train all clients of a round in one
computation (--device cuda); on a CPU they train in one process per core. It needs torch (pip install '.[lab]');
the default takes about a minute on a CPU.

    python examples/own_model_resnet.py [--dataset fashion-mnist] [--rounds 100] [--device cuda] [--save model.pt]
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from turnout import make_policy
from turnout.lab import PaperWorld, TorchTask, Training, load_dataset, partition, play


class Block(nn.Module):
    """Two convolutions, and a shortcut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.GroupNorm(4, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(4, after),
        )
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Adds both paths."""
        return torch.relu(self.inner(images) + self.shortcut(images))


def make_resnet(width: int = 8) -> nn.Module:
    """Builds the network: three blocks, then one score per class."""
    return nn.Sequential(
        Block(1, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def make_task(dataset: str = "digits", width: int = 8, items: int = 60) -> TorchTask:
    """Returns the network with its loss, the images, and a function that divides them among the clients."""
    data = load_dataset(dataset)
    train, test = (images.transpose(0, 3, 1, 2) / data.brightest for images in (data.train_images, data.test_images))
    return TorchTask(
        partial(make_resnet, width),
        nn.functional.cross_entropy,
        (train.astype(np.float32), data.train_labels),
        (test.astype(np.float32), data.test_labels),
        partial(partition, items=items, gamma=0.5),
        training=Training(learning_rate=0.1, batch_size=20, momentum=0.5),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="digits", choices=["digits", "fashion-mnist"])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--width", type=int, default=8, help="channels of the first block")
    parser.add_argument("--items", type=int, default=60, help="images of each client")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for a GPU")
    parser.add_argument("--workers", type=int, help="processes on a CPU, by default one per core")
    parser.add_argument("--save", type=Path, help="write the trained model to this file")
    options = parser.parse_args()
    task = make_task(options.dataset, options.width, options.items)
    every = max(options.rounds // 10, 1)
    world = task.world(PaperWorld(seed=0), evaluate_every=every, device=options.device, workers=options.workers)
    seconds = 0.0
    for record in play(make_policy("fair-pace", 40), world, options.rounds):
        seconds += record.report.duration
        if "accuracy" in record.report.metrics:
            print(f"round {record.round}: accuracy {record.report.metrics['accuracy']:.3f} after {seconds:.0f} s")
    learner = world.federation.learner
    if options.save is not None:
        torch.save(task.module(learner.saved(world.weights)).state_dict(), options.save)
    learner.close()
