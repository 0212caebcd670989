"""ArcFace: cross-entropy of angles to the classes, with a margin added to the right one."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses.base import Limit, Loss, Positive, Range, Rates, cosines


class ArcFace(Loss):
    """Additive angular margin (Deng et al., eq. 3, number unchecked).

    L = -log( e^(scale cos(theta_y + margin)) / (e^(scale cos(theta_y + margin)) + sum over c != y of e^(scale cos
    theta_c)) ),  theta_c the angle between the embedding and the weight vector of class c, margin in radians.

    cos(theta + m) is computed as cos theta cos m - sin theta sin m, without an arc cosine. A sin theta below the
    rounding error counts as 0 and has no gradient. Beyond theta = pi - m, where cos(theta + m) would rise again,
    cos theta - m sin m replaces it, as in the released code (a later version lets it rise) and in
    pytorch-metric-learning. The paper's scale of 64 is tuned for faces. A margin above a right angle is refused: with
    it the logit no longer falls as the angle grows. pytorch-metric-learning's ArcFaceLoss (2.x) is the same formula;
    its margin is in degrees, 28.6 by default (0.499 radians).
    """

    title = "ArcFace"
    cite = "Deng et al., CVPR 2019"
    family = "classification"
    bibtex = """
    @inproceedings{deng2019arcface,
      author = {Deng, Jiankang and Guo, Jia and Xue, Niannan and Zafeiriou, Stefanos},
      title = {{ArcFace}: Additive Angular Margin Loss for Deep Face Recognition},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2019},
    }
    """
    space = {
        "scale": Range(8.0, 256.0, log=True),
        "margin": Range(0.05, 1.0),
        "lr_factor": Rates(5e-6, 1.0),
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        scale: Annotated[Positive, "factor of the cosines before the softmax"] = 64.0,
        margin: Annotated[float, Limit(above=0, most=1.57), "angle added to that of the right class, in radians"] = 0.5,
        lr_factor: Annotated[
            Positive, "learning rate of the class vectors, relative to that of the embedding layer"
        ] = 1.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.scale = scale
        self.margin = margin
        self.lr_factor = lr_factor
        self.classifier = nn.Linear(dim, num_classes, bias=False)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        cosine = cosines(embeddings, self.classifier.weight)
        right = labels[:, None]
        harder = cosine.scatter(1, right, self.add_margin(cosine.gather(1, right)))
        return F.cross_entropy(self.scale * harder, labels)

    def add_margin(self, cosine: Tensor) -> Tensor:
        """cos(theta + margin) of cos theta."""
        square = 1 - cosine.square()
        hidden = square <= 8 * torch.finfo(cosine.dtype).eps
        sine = square.masked_fill(hidden, 1).sqrt().masked_fill(hidden, 0)
        added = math.cos(self.margin) * cosine - math.sin(self.margin) * sine
        return torch.where(cosine > -math.cos(self.margin), added, cosine - self.margin * math.sin(self.margin))
