"""The triplet loss with a correction of the bias that selecting triplets brings: our reading of a published idea."""

from typing import Annotated

import torch
from torch import Tensor

from losses.base import Limit, Loss, Positive, Range, distances, unit


class BiasTriplet(Loss):
    """Triplets selected within the batch, and a term that keeps what was selected where the batch is (Yu et al.).

    L = L_triplet + weight L_match,  unit-length embeddings x, D the Euclidean distance.

    L_triplet = mean over anchors of [ D(a, p) - D(a, n) + margin ]+,  p the farthest image of the anchor's class, n the
    closest one of another class. Anchors that lack either are not in the mean.

    L_match = mean over classes c of |mu_c - nu_c|^2,  mu_c the mean of the batch's images of c, nu_c the mean of those
    of c that were selected, as p or n, each as often as it was. Classes of which nothing was selected are not in the
    mean. The gradient passes through both means, not through the selection. L_match is 0 where every image was selected
    equally often, and at most 4.

    This is our reading, not the authors' method. Public is the form: a triplet loss plus a term that matches, class by
    class, the mean of the selected images to that of all. Not public to us are its calibration (the weight, the margin,
    whether the term is squared, a sum or a mean), the selection that the published retrieval results used, whether the
    means are over the batch or the training set, and the network. `anchors` counts each anchor as selected too.
    """

    title = "Bias Triplet"
    cite = "Yu et al., ECCV 2018"
    family = "pair"
    bibtex = """
    @inproceedings{yu2018bias,
      author = {Yu, Baosheng and Liu, Tongliang and Gong, Mingming and Ding, Changxing and Tao, Dacheng},
      title = {Correcting the Triplet Selection Bias for Triplet Loss},
      booktitle = {European Conference on Computer Vision (ECCV)},
      year = {2018},
    }
    """
    space = {"margin": Range(0.05, 0.5, log=True), "weight": Range(0.01, 10.0, log=True)}
    extras = "Our reading of the published idea: its form is public, its calibration is not."

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: Annotated[Positive, "by how much the positive should be closer"] = 0.2,
        weight: Annotated[float, Limit(least=0), "weight of the term that matches means"] = 1.0,
        anchors: Annotated[bool, "anchors count as selected"] = False,
    ) -> None:
        super().__init__(num_classes, dim)
        self.margin = margin
        self.weight = weight
        self.anchors = anchors

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        x = unit(embeddings)
        D = distances(x)
        same = labels[:, None] == labels
        pairs = same.clone().fill_diagonal_(False)
        complete = pairs.any(dim=1) & ~same.all(dim=1)
        positive, p = D.masked_fill(~pairs, -1).max(dim=1)
        negative, n = D.masked_fill(same, torch.inf).min(dim=1)
        violations = (positive - negative + self.margin).masked_fill(~complete, 0).relu()
        triplet = violations.sum() / complete.sum().clamp_min(1)
        return triplet + self.weight * self.match(x, labels, self.selected(p, n, complete))

    def selected(self, p: Tensor, n: Tensor, complete: Tensor) -> Tensor:
        """(n,) how often each image was selected by the anchors that have both p and n."""
        counts = torch.zeros(len(p), dtype=torch.long, device=p.device)
        counts.index_add_(0, p, complete.long())
        counts.index_add_(0, n, complete.long())
        return counts + complete.long() if self.anchors else counts

    @staticmethod
    def match(x: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """L_match, given how often each image was selected."""
        classes, number = labels.unique(return_inverse=True)
        members = torch.nn.functional.one_hot(number, len(classes)).T.to(x.dtype)  # (classes, n)
        chosen = members * counts
        mu = members @ x / members.sum(dim=1, keepdim=True)
        nu = chosen @ x / chosen.sum(dim=1, keepdim=True).clamp_min(1)
        present = chosen.sum(dim=1) > 0
        squares = (mu - nu).square().sum(dim=1).masked_fill(~present, 0)
        return squares.sum() / present.sum().clamp_min(1)
