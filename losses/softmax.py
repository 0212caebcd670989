"""Softmax cross-entropy: plain classification, the paper's pre-training."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from losses.base import Loss, Positive, Rates


class Softmax(Loss):
    """Cross-entropy of a linear classifier on the raw embeddings: -log softmax(A x + b)_y, mean over the batch."""

    title = "Softmax"
    cite = "Elezi et al., ECCV 2020 (pre-training)"
    family = "classification"
    bibtex = r"""
    @inproceedings{elezi2020group,
      author = {Elezi, Ismail and Vascon, Sebastiano and Torcinovich, Alessandro and Pelillo, Marcello and Leal-Taix{\'e}, Laura},
      title = {The Group Loss for Deep Metric Learning},
      booktitle = {European Conference on Computer Vision (ECCV)},
      year = {2020},
    }
    """  # noqa: E501
    space = {"lr_factor": Rates(1e-5, 1.0)}
    added = {"lr_factor": 1.0}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        bias: Annotated[bool, "whether the classifier has a bias"] = True,
        lr_factor: Annotated[
            Positive, "learning rate of the classifier, relative to that of the embedding layer"
        ] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.lr_factor = lr_factor
        self.classifier = nn.Linear(dim, num_classes, bias=bias)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(embeddings), labels)
