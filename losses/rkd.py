"""RKD, relational knowledge distillation: a network learns the distances and angles that its teacher sees."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.base import Batch, Limit, Loss, Range, squared_distances

NEAREST = 1e-12  # squared: two images are at least this far apart


class Rkd(Loss):
    """The distances and angles of a batch, as a frozen teacher sees them (Park et al.; released code of the authors).

    L = distance L_D + angle L_A,  s the embeddings, t the teacher's of the same augmented images; h is the smooth L1
    loss, h(x) = x^2 / 2 for |x| <= 1 and |x| - 1/2 beyond.
    L_D = mean over all n^2 pairs of h( phi(s)_ij - phi(t)_ij ),  phi(x)_ij = |x_i - x_j| divided by the mean of those
    above 0. Each network has its own mean, and the gradient goes through the student's.
    L_A = mean over all n^3 triples of h( psi(s)_abc - psi(t)_abc ),  psi(x)_abc the cosine of the angle at a between b
    and c; 0 where b or c is a. Labels are not used.

    The embedding is not normalised, neither in training nor at test time, where raw Euclidean distances count. The
    teacher's is compared as its own loss does, with unit length by default. The weights are the released ones.

    Differences from the released code. Angles follow from distances by the law of cosines, in double precision; there
    they come from n^2 differences. As there, two images are at least 1e-6 apart, and an angle at two equal ones is 0;
    here those count as equal that are closer than the rounding of double precision.

    `teacher` names the loss that the teacher is trained with, in a trial of its own with the student's seed and fold.
    It has the student's settings, but not its learning rate and weight decay: these and its knobs are the protocol's
    for its loss. Our choice: both networks are alike, and the teacher trains for all the epochs that the student has,
    also where the student stops before. Released are a teacher ResNet-50 with 512 dimensions, trained by a triplet loss
    with margin 0.2 on distances that are not squared, with negatives drawn by distance; a student that is smaller or
    its equal, with twice the steps and ten times the rate.
    """

    title = "RKD"
    cite = "Park et al., CVPR 2019"
    family = "pair"
    bibtex = """
    @inproceedings{park2019relational,
      author = {Park, Wonpyo and Kim, Dongju and Lu, Yan and Cho, Minsu},
      title = {Relational Knowledge Distillation},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2019},
    }
    """
    space = {"distance_weight": Range(0.1, 10.0, log=True), "angle_weight": Range(0.1, 10.0, log=True)}
    distance = "euclidean"
    extras = "While training, a second network runs beside it: its teacher, which is trained first."

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        teacher: Annotated[str, "the loss that its teacher is trained with"] = "triplet",
        distance_weight: Annotated[float, Limit(least=0), "weight of the distances"] = 1.0,
        angle_weight: Annotated[float, Limit(least=0), "weight of the angles"] = 2.0,
    ) -> None:
        super().__init__(num_classes, dim)
        self.distance_weight, self.angle_weight = distance_weight, angle_weight

    def forward(self, embeddings: Tensor, labels: Tensor, batch: Batch | None = None) -> Tensor:
        if batch is None or batch.teacher is None:
            raise ValueError("it needs a batch with a teacher")
        return self.distill(embeddings, batch.teacher(batch.images))

    def distill(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The loss of two embeddings (n, any dimension) of the same images."""
        ours, theirs = (squared_distances(x.double()) for x in (student, teacher.detach()))
        value = self.distance_weight * F.smooth_l1_loss(relative(ours), relative(theirs))
        value = value + self.angle_weight * F.smooth_l1_loss(angles(ours), angles(theirs))
        return value.to(student.dtype)


def relative(squared: Tensor) -> Tensor:
    """phi, from squared distances (n, n). A single image has none, and gives 0."""
    itself = torch.eye(len(squared), dtype=torch.bool, device=squared.device)
    D = squared.clamp_min(NEAREST).sqrt().masked_fill(itself, 0)
    return D / (D[~itself].mean() if len(D) > 1 else 1)


def angles(squared: Tensor) -> Tensor:
    """psi, from squared distances (n, n): at [a, b, c] the cosine of the angle at a between b and c."""
    equal = squared <= 0
    inverse = squared.masked_fill(equal, 1).rsqrt().masked_fill(equal, 0)
    sides = squared[:, :, None] + squared[:, None, :] - squared
    return sides * inverse[:, :, None] * inverse[:, None, :] / 2
