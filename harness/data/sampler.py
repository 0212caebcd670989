"""Batches of P classes x K images, and plain shuffled batches."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


class Balanced:
    """Batches of P classes with K images each.

    No class comes again before every other class had its turn; the same holds for the images of a class. No class and
    no image is twice in a batch. A class with fewer than K images contributes all of them, so a batch may be smaller
    than P x K. An epoch has as many batches as would hold the dataset once if each had P x K images, and at least one
    turn of every class. So where classes are smaller than K, it draws fewer images than the dataset has.
    """

    def __init__(self, labels: Tensor, classes: int, samples: int) -> None:
        self.members = [(labels == label).nonzero().squeeze(1) for label in range(int(labels.max()) + 1)]
        self.classes = min(classes, len(self.members))
        self.samples = samples
        images, turns = -(-len(labels) // (self.classes * samples)), -(-len(self.members) // self.classes)
        self.batches = max(images, turns)

    def __len__(self) -> int:
        return self.batches

    def epoch(self, generator: torch.Generator) -> Iterator[Tensor]:
        """The batches of one epoch, as indices into the labels."""

        def shuffle(items: Tensor) -> Callable[[], list[int]]:
            return lambda: items[torch.randperm(len(items), generator=generator)].tolist()

        turns = Turns(shuffle(torch.arange(len(self.members))))
        images = [Turns(shuffle(members)) for members in self.members]
        for _ in range(self.batches):
            chosen = turns.draw(self.classes)
            yield torch.tensor(
                [image for label in chosen for image in images[label].draw(min(self.samples, len(self.members[label])))]
            )


class Turns:
    """An endless shuffled queue: each item once per round, and no item twice in a draw."""

    def __init__(self, shuffle: Callable[[], list[int]]) -> None:
        self.shuffle = shuffle
        self.queue: list[int] = []

    def draw(self, count: int) -> list[int]:
        if len(self.queue) >= count:
            drawn, self.queue = self.queue[:count], self.queue[count:]
            return drawn
        # The rest of this round, filled up from the next one with items that are not in the draw yet.
        drawn, fresh = self.queue, self.shuffle()
        rest = set(drawn)
        drawn = drawn + [item for item in fresh if item not in rest][: count - len(drawn)]
        taken = set(drawn) - rest
        self.queue = [item for item in fresh if item not in taken]
        return drawn


class Shuffled:
    """Plain batches for pre-training: every image once per epoch, in random order; a last short batch is dropped."""

    def __init__(self, images: int, batch: int) -> None:
        self.images = images
        self.batch = min(batch, images)

    def __len__(self) -> int:
        return self.images // self.batch

    def epoch(self, generator: torch.Generator) -> Iterator[Tensor]:
        order = torch.randperm(self.images, generator=generator)
        for step in range(len(self)):
            yield order[step * self.batch : (step + 1) * self.batch]
