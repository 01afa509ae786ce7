"""Several devices for one model, from outside the model: DDP and FSDP2 around its loss, and whole tensors out of shares."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dragoman.data.collate import Batch
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.transformer import Transformer
from dragoman.training.distributed.process_group import World
from dragoman.training.losses.guided_alignment import Guidance, guided_loss, watched_head
from dragoman.training.losses.label_smoothing import as_said, batch_loss
from dragoman.training.losses.rdrop import r_drop_loss


class ModelLoss(nn.Module):
    """A model and its loss behind one call, which is what DDP and FSDP2 can stand around."""

    def __init__(
        self,
        model: Transformer,
        *,
        epsilon: float,
        form: str,
        r_drop: float = 0.0,
        pos_loss_weight: float = 0.0,
        guidance: Guidance | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.epsilon = epsilon
        self.form = form
        self.r_drop = r_drop
        self.pos_loss_weight = pos_loss_weight
        self.guidance = guidance

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss to minimise and the negative log-likelihood, each summed over the batch."""
        if self.guidance is None or batch.guide is None:
            return self._told_nothing(batch)
        with watched_head(self.model, self.guidance) as seen:
            loss, nll = self._told_nothing(batch)
        return loss + self.guidance.weight * guided_loss(seen[0], batch.guide), nll

    def _told_nothing(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Without what a guided head is told."""
        if self.r_drop:
            batch = as_said(self.model, batch)
            return r_drop_loss(self.model, batch, epsilon=self.epsilon, form=self.form, alpha=self.r_drop)
        return batch_loss(self.model, batch, epsilon=self.epsilon, form=self.form, pos_loss_weight=self.pos_loss_weight)


def spread(loss: ModelLoss, world: World, device: torch.device, how: str) -> nn.Module:
    """The loss as training calls it, with gradients that are means over the ranks; its parameters are those to optimise.

    `ddp`: a whole model on each rank. `fsdp`: each holds its share of every weight, and layers are put together as they are
    needed, in place.
    """
    if world.size == 1:
        return loss
    if how == "ddp":
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # later versions rename the switch
            return DistributedDataParallel(loss, broadcast_buffers=False, gradient_as_bucket_view=True)
    mesh = init_device_mesh(device.type, (world.size,))
    # It warns of views that an operation in place might spoil; there is none on what a layer returns.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    layers = [module for module in loss.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    for layer in layers:
        if isinstance(layer, DecoderLayer):
            # The source's keys and values are computed before the layer is called, so this part is put together by itself.
            fully_shard(layer.cross_attention, mesh=mesh)
            register_fsdp_forward_method(layer.cross_attention, "remember")
        fully_shard(layer, mesh=mesh)
    fully_shard(loss, mesh=mesh)
    return loss


def is_divided(loss: nn.Module) -> bool:
    """Whether ranks hold shares of the weights."""
    return isinstance(loss, FSDPModule)


def gradients_stay(loss: nn.Module) -> AbstractContextManager[None]:
    """While this holds, gradients are summed on each rank and not shared: there are more batches in the step."""
    if isinstance(loss, DistributedDataParallel):
        return cast(AbstractContextManager[None], loss.no_sync())
    return _Unshared(loss) if isinstance(loss, FSDPModule) else nullcontext()


class _Unshared(AbstractContextManager[None]):
    def __init__(self, loss: FSDPModule) -> None:
        self.loss = loss

    def __enter__(self) -> None:
        self.loss.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self.loss.set_requires_gradient_sync(True)


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which each rank may hold a share, put together. All ranks must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """This rank's share of a whole tensor that every rank has, divided as the pattern is."""
    if not isinstance(pattern, DTensor):
        return tensor
    return distribute_tensor(tensor.to(pattern.device), pattern.device_mesh, pattern.placements, src_data_rank=None)


@torch.no_grad()
def put_whole_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Whole weights into a model of which each rank may hold a share. Names and shapes must be the model's."""
    for name, parameter in model.named_parameters():
        parameter.copy_(share_like(weights[name], parameter))
