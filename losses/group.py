"""The Group Loss refines the labels of a batch together, by replicator dynamics."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses.base import Choice, Count, Limit, Loss, Positive, Range, squared_distances, unit

EPS = 1e-12  # the released code's floor inside the logarithm


class Group(Loss):
    """Classification of a whole batch at once (Elezi et al., sections 3.1 to 3.4 and Algorithm 1).

    X(0) = softmax(logits / temperature) with one-hot rows for `anchors` random samples of each class;
    X(t+1) = Q^-1 [X(t) * (W X(t))], `steps` times; L = mean over the batch of -log X(T)_y.

    W is the similarity of the embeddings. `negatives="clamp"` sets its negative entries to 0, "shift" raises all
    entries until the lowest is 0; then the diagonal is set to 0. Knobs default to the paper's text. Where the paper
    gives no value (steps, temperature) or several (1 or 2 anchors; classifiers with and without bias), they default to
    the released code for CUB-200-2011. The released code also keeps the diagonal (`zero_diagonal=False`) and adds the
    cross-entropy of the raw logits of all classes (`cross_entropy=1`). As there, anchors stay in the mean, to which
    they add 0.

    `classes="batch"` keeps only the columns of X that belong to classes in the batch (supplement, "large number of
    classes"). `objective="kl"` minimises the divergence within classes (supplement, "alternative loss formulation"),
    here the mean of KL(X_i || X_j) over ordered pairs. Use it with `anchors=0`: without EPS, a one-hot row would be
    infinitely far from any other row. The paper does not give the bandwidth s of `similarity="gaussian"`,
    exp(-d2 / s); here s is the batch's mean d2.
    """

    title = "Group Loss"
    cite = "Elezi et al., ECCV 2020"
    family = "pair"
    bibtex = r"""
    @inproceedings{elezi2020group,
      author = {Elezi, Ismail and Vascon, Sebastiano and Torcinovich, Alessandro and Pelillo, Marcello and Leal-Taix{\'e}, Laura},
      title = {The Group Loss for Deep Metric Learning},
      booktitle = {European Conference on Computer Vision (ECCV)},
      year = {2020},
    }
    """  # noqa: E501
    # no lr_factor: stored searches were drawn without it; a protocol's [search] may have it
    space = {
        "anchors": Choice(0, 1, 2, 3),
        "temperature": Range(1.0, 100.0, log=True),
        "cross_entropy": Choice(0.0, 1.0),
    }
    added = {"lr_factor": 1.0}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        anchors: Annotated[Count, "images per class that enter with their label as a one-hot row"] = 2,
        steps: Annotated[Count, "rounds of replicator dynamics"] = 1,
        temperature: Annotated[Positive, "divides the logits before their softmax"] = 24.0,
        similarity: Annotated[
            Literal["pearson", "cosine", "gaussian"], "how the similarity W of two embeddings is measured"
        ] = "pearson",
        negatives: Annotated[
            Literal["clamp", "shift"], "negative similarities become 0, or all are raised until the lowest is 0"
        ] = "clamp",
        zero_diagonal: Annotated[bool, "whether an image has no say in its own label"] = True,
        cross_entropy: Annotated[
            float, Limit(least=0), "weight of the cross-entropy of the raw logits, added to the loss"
        ] = 0.0,
        classes: Annotated[Literal["all", "batch"], "columns of X: all classes, or only those of the batch"] = "all",
        objective: Annotated[
            Literal["cross_entropy", "kl"], "cross-entropy of the refined labels, or their divergence within classes"
        ] = "cross_entropy",
        bias: Annotated[bool, "whether the classifier has a bias"] = True,
        lr_factor: Annotated[
            Positive, "learning rate of the classifier, relative to that of the embedding layer"
        ] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.lr_factor = lr_factor
        self.anchors = anchors
        self.steps = steps
        self.temperature = temperature
        self.similarity = similarity
        self.negatives = negatives
        self.zero_diagonal = zero_diagonal
        self.cross_entropy = cross_entropy
        self.classes = classes
        self.objective = objective
        self.classifier = nn.Linear(dim, num_classes, bias=bias)

    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """`anchors`, a boolean (n,), marks the anchor samples; by default they are drawn at random."""
        logits = self.classifier(embeddings)
        extra = self.cross_entropy * F.cross_entropy(logits, labels) if self.cross_entropy else 0
        if self.classes == "batch":
            present, labels = labels.unique(return_inverse=True)
            logits = logits[:, present]
        if anchors is None:
            anchors = draw_anchors(labels, self.anchors)
        X = F.softmax(logits / self.temperature, dim=1)
        X = torch.where(anchors[:, None], F.one_hot(labels, X.shape[1]).to(X.dtype), X)
        X = refine(X, self.similarities(embeddings), self.steps)
        return (kl_within_classes(X, labels) if self.objective == "kl" else nll(X, labels)) + extra

    def similarities(self, embeddings: Tensor) -> Tensor:
        """W (n, n), non-negative and symmetric."""
        if self.similarity == "gaussian":
            W = gaussian(embeddings)
        else:
            x = unit(centred(embeddings) if self.similarity == "pearson" else embeddings)
            W = x @ x.T
        W = W.relu() if self.negatives == "clamp" else W - W.min().clamp_max(0)
        return W - torch.diag(W.diagonal()) if self.zero_diagonal else W


def refine(X: Tensor, W: Tensor, steps: int) -> Tensor:
    """Replicator dynamics, eq. 5: X <- X * (W X), rows renormalised. X (n, m), W (n, n).

    An anchor's one-hot row is a fixed point. A row without any support keeps its values instead of becoming 0/0.
    """
    for _ in range(steps):
        grown = X * (W @ X)
        total = grown.sum(dim=1, keepdim=True)
        X = torch.where(total != 0, grown / torch.where(total != 0, total, 1), X)  # keeps a NaN visible
    return X


def draw_anchors(labels: Tensor, per_class: int) -> Tensor:
    """A boolean (n,): `per_class` random samples of each class, or all if the class has fewer."""
    same = labels[:, None] == labels
    lots = torch.rand(len(labels), device=labels.device)
    return (same & (lots[None, :] < lots[:, None])).sum(dim=1) < per_class


def nll(X: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log X_y. EPS is mixed in, not added, so that the value is never below 0."""
    right = X.gather(1, labels[:, None])
    return -torch.log(EPS + (1 - EPS) * right).mean()


def kl_within_classes(X: Tensor, labels: Tensor) -> Tensor:
    """Mean of KL(X_i || X_j) over ordered pairs i != j of one class; 0 without pairs."""
    X = (X + EPS) / (1 + EPS * X.shape[1])
    log = X.log()
    divergence = (X * log).sum(dim=1, keepdim=True) - X @ log.T
    pairs = labels[:, None] == labels
    pairs.fill_diagonal_(False)
    return divergence.masked_fill(~pairs, 0).sum() / pairs.sum().clamp_min(1)


def centred(x: Tensor) -> Tensor:
    """Rows minus their mean. A constant row becomes exactly 0, not a rounding error."""
    moved = x - x.mean(dim=1, keepdim=True)
    noise = 8 * torch.finfo(x.dtype).eps * x.detach().abs().amax(dim=1, keepdim=True)
    return moved * (moved.detach().abs().amax(dim=1, keepdim=True) > noise)


def gaussian(x: Tensor) -> Tensor:
    """exp(-d2 / s), s the mean squared distance of distinct samples."""
    distances = squared_distances(x)
    n = len(x)
    spread = distances.sum() / max(n * (n - 1), 1)
    return torch.exp(-distances / torch.where(spread > 0, spread, 1))
