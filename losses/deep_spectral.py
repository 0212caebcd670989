"""Deep spectral clustering compares the span of the embeddings with the span of the classes."""

import torch
from torch import Tensor

from losses.base import Loss


class DeepSpectral(Loss):
    """Distance of two orthogonal projectors (Law et al., section 3; eq. 10, number unchecked, is the part
    that depends on F).

    L = || F F+ - Y Y+ ||^2 = rank(F) + rank(Y) - 2 tr(Y Y+ F F+),  squared Frobenius norm, F (n, dim) the batch's
    raw embeddings, Y (n, classes) their one-hot labels, + the pseudo-inverse. The gradient has a closed form,
    -4 (I - F F+) Y Y+ (F+)^T. It is linear in n, needs no n x n matrix, and is right where singular values coincide,
    where the derivative of an SVD is not. Singular values below the rounding error of the largest count as 0. The
    released code, also on raw F, descends a quarter of this gradient; its rank cut has little effect in float32.

    With dim >= n, F F+ is in general the identity and the gradient is 0: such a batch is refused. Scaling all
    embeddings by one factor changes nothing.
    """

    title = "Deep Spectral"
    cite = "Law et al., ICML 2017"
    family = "pair"
    bibtex = """
    @inproceedings{law2017spectral,
      author = {Law, Marc T. and Urtasun, Raquel and Zemel, Richard S.},
      title = {Deep Spectral Clustering Learning},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2017},
    }
    """
    dim_below_batch = True

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        n, dim = embeddings.shape
        if dim >= n:
            raise ValueError(
                "deep_spectral needs more images in a batch (n) than embedding dimensions (dim): "
                f"with n={n}, dim={dim} it has no gradient; set a smaller dim or a larger batch"
            )
        if not embeddings.isfinite().all():
            return embeddings.sum() * torch.nan  # a decomposition would raise
        value, gradient = projector_distance(embeddings.detach(), labels)
        linear = (gradient * embeddings).sum()  # (I - F F+) F = 0: it adds the gradient and no value
        return value + linear - linear.detach()


def projector_distance(F: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """|| F F+ - Y Y+ ||^2 and its gradient with respect to F (n, d)."""
    U, S, Vh = torch.linalg.svd(F, full_matrices=False)
    alive = S / torch.where(S[0] > 0, S[0], 1) > torch.finfo(F.dtype).eps * max(F.shape)
    U = U * alive
    inverse = (U * torch.where(alive, S, 1).reciprocal()) @ Vh  # (F+)^T
    shared = U.square().sum() - (U - class_means(U, labels)).square().sum()  # tr(Y Y+ F F+)
    value = alive.sum() + len(labels.unique()) - 2 * shared
    pulled = class_means(inverse, labels)
    return value.clamp_min(0), -4 * (pulled - U @ (U.T @ pulled))


def class_means(x: Tensor, labels: Tensor) -> Tensor:
    """Y Y+ x: each row of x replaced by the mean of its class."""
    _, own, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = x.new_zeros(len(counts), x.shape[1]).index_add_(0, own, x)
    return (sums / counts[:, None])[own]
