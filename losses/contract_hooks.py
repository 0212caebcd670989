"""What the hooks of a method that is more than a loss promise: a part of losses/contract.py."""

import copy

import torch
from torch import Tensor

from losses.base import Batch, Loss
from losses.small import (
    CLASSES,
    DIM,
    HEAD_DIM,
    Method,
    SmallView,
    Student,
    compared,
    loss_of,
    make,
    new,
    teacher_of,
    usual,
    value_of,
)


def builds_its_head(loss: type[Loss]) -> None:
    """Of the knobs and of `dim` alone, without the trunk's parameters; what it gives can be compared."""
    assert (loss.head is not Loss.head) == (loss.head_dim > 0), (
        f"its head_dim is {loss.head_dim}; a method with a head of its own states its dimension, any other 0"
    )
    x, _ = usual()
    instance = make(loss)
    rows = compared(instance, x)
    assert isinstance(rows, Tensor), "what it compares is not a tensor"
    assert rows.ndim == 2, f"what it compares has {rows.ndim} dimensions"
    assert len(rows) == len(x), f"what it compares has {len(rows)} rows for {len(x)} images"
    assert rows.isfinite().all(), "what it compares is not finite"
    if not isinstance(instance, Method):
        return
    owned = {id(parameter) for parameter in instance.head.parameters()}
    assert not owned & {id(parameter) for parameter in instance.stages.parameters()}, "its head owns the trunk"
    for classes in (2, CLASSES + 1):
        head = loss(classes, HEAD_DIM).head(instance.trunk).state_dict()
        shapes = {name: value.shape for name, value in instance.head.state_dict().items()}
        assert {name: value.shape for name, value in head.items()} == shapes, (
            f"its head depends on the number of training classes, which are not those it is tested on ({classes})"
        )
    torch.manual_seed(1)
    again = loss(2, HEAD_DIM).represent(instance.z(x))
    assert torch.equal(again, rows), "what it compares depends on more than its knobs and its head"


def planned(instance: "Loss | Method | Student", epoch: int) -> list[tuple[list[int], int]]:
    """The plan of an epoch as plain numbers; empty for the usual batches."""
    plan = loss_of(instance).plan(epoch, SmallView.before(epoch))
    return [(indices.tolist(), tag) for indices, tag in plan or []]


def plans_the_same_again(loss: type[Loss]) -> None:
    """A plan follows from the epoch and from what the state dict holds, whatever torch's generator is at: also when the
    run is resumed in the middle."""
    if loss.plan is Loss.plan:
        return
    first, second = make(loss), make(loss)
    x, y = usual()
    for epoch in (1, 2):
        before = planned(first, epoch)
        torch.manual_seed(epoch)
        assert planned(second, epoch) == before, f"epoch {epoch}: it does not plan the same batches again"
    resumed = new(loss)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    assert torch.equal(value_of(resumed, x, y), value_of(first, x, y)), "its value changes when it is resumed"
    for epoch in (3, 4):
        assert planned(resumed, epoch) == planned(first, epoch), f"epoch {epoch}: it plans otherwise when it is resumed"


def plans_what_an_epoch_needs(loss: type[Loss]) -> None:
    """As many batches as there are steps; none larger than the others' or with an image twice; and what its family
    needs in each."""
    if loss.plan is Loss.plan:
        return
    instance = make(loss)
    for epoch in range(1, 5):
        view, plan = SmallView.before(epoch), planned(instance, epoch)
        assert len(plan) in (0, view.steps), f"epoch {epoch}: {len(plan)} batches for {view.steps} steps"
        for indices, tag in plan:
            assert set(indices) <= set(range(len(view.labels))), f"epoch {epoch}: an image that does not exist"
            assert len(set(indices)) == len(indices), f"epoch {epoch}: an image twice in a batch"
            assert len(indices) <= view.classes * view.samples, f"epoch {epoch}: a batch of {len(indices)} images"
            labels = view.labels[torch.tensor(indices)]
            counts = labels.bincount()
            if loss.family == "pair":
                assert (counts > 0).sum() > 1, f"epoch {epoch}: a batch of one class, for a pair loss"
                assert counts.max() > 1, f"epoch {epoch}: a batch without a pair, for a pair loss"
            x = torch.randn(len(labels), DIM, generator=torch.Generator().manual_seed(0))
            z = instance.z(x) if isinstance(instance, Method) else x
            batch = Batch(x, labels, torch.tensor(indices), tag, epoch, view.epochs, teacher=teacher_of(labels))
            assert loss_of(instance).value(z, labels, batch).isfinite(), f"epoch {epoch}: its value is not finite"
