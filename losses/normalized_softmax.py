"""Normalized softmax, of "Classification is a strong baseline for deep metric learning"."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from losses.base import Loss, Positive, Range, cosines


class NormalizedSoftmax(Loss):
    """Cross-entropy of cosine similarities to one weight vector per class (Zhai and Wu, section 3.1).

    L = -log( exp(x.w_y / T) / sum_z exp(x.w_z / T) ),  x and w of unit length, T = 0.05.

    The paper puts a LayerNorm without affine parameters before the embedding layer; here it is part of the network
    (`layer_norm` of a trial), not of the loss. pytorch-metric-learning's NormalizedSoftmaxLoss is the same formula.
    """

    title = "Normalized Softmax"
    cite = "Zhai and Wu, BMVC 2019"
    family = "classification"
    bibtex = """
    @inproceedings{zhai2019classification,
      author = {Zhai, Andrew and Wu, Hao-Yu},
      title = {Classification is a Strong Baseline for Deep Metric Learning},
      booktitle = {British Machine Vision Conference (BMVC)},
      year = {2019},
    }
    """
    space = {"temperature": Range(0.02, 0.2, log=True), "lr_factor": Range(1.0, 100.0, log=True)}

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        temperature: Annotated[Positive, "divides the cosines before the softmax"] = 0.05,
        lr_factor: Annotated[
            Positive, "learning rate of the class vectors, relative to that of the embedding layer"
        ] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.temperature = temperature
        self.lr_factor = lr_factor
        self.classifier = nn.Linear(dim, num_classes, bias=False)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(cosines(embeddings, self.classifier.weight) / self.temperature, labels)
