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
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.losses.guided_alignment import AlignmentLossConfig, alignment_loss, record_head_weights
from dragoman.training.losses.label_smoothing import batch_loss, strip_tags
from dragoman.training.losses.rdrop import r_drop_loss


class ModelLoss(nn.Module):
    """A model and its loss behind one call, which is what DDP and FSDP2 can stand around."""

    def __init__(
        self,
        model: Transformer,
        *,
        epsilon: float,
        smoothing_mode: str,
        r_drop_alpha: float = 0.0,
        pos_loss_weight: float = 0.0,
        alignment_config: AlignmentLossConfig | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.epsilon = epsilon
        self.smoothing_mode = smoothing_mode
        self.r_drop_alpha = r_drop_alpha
        self.pos_loss_weight = pos_loss_weight
        self.alignment_config = alignment_config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss to minimise and the negative log-likelihood, each summed over the batch."""
        if self.alignment_config is None or batch.alignment_targets is None:
            return self._compute_base_loss(batch)
        with record_head_weights(self.model, self.alignment_config) as log_weights:
            loss, nll = self._compute_base_loss(batch)
        return loss + self.alignment_config.weight * alignment_loss(log_weights[0], batch.alignment_targets), nll

    def _compute_base_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Without what a guided head is told."""
        if self.r_drop_alpha:
            batch = strip_tags(self.model, batch)
            return r_drop_loss(
                self.model, batch, epsilon=self.epsilon, smoothing_mode=self.smoothing_mode, alpha=self.r_drop_alpha
            )
        return batch_loss(
            self.model, batch, epsilon=self.epsilon, smoothing_mode=self.smoothing_mode, pos_loss_weight=self.pos_loss_weight
        )


def parallelize_loss(loss: ModelLoss, distributed: DistributedContext, device: torch.device, mode: str) -> nn.Module:
    """The loss as training calls it, with gradients that are means over the ranks; its parameters are those to optimise.

    `ddp`: a whole model on each rank. `fsdp`: each holds its share of every weight, and layers are put together as they are
    needed, in place.
    """
    if distributed.world_size == 1:
        return loss
    if mode == "ddp":
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # later versions rename the switch
            return DistributedDataParallel(loss, broadcast_buffers=False, gradient_as_bucket_view=True)
    mesh = init_device_mesh(device.type, (distributed.world_size,))
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


def is_sharded(loss: nn.Module) -> bool:
    """Whether ranks hold shares of the weights."""
    return isinstance(loss, FSDPModule)


def defer_gradient_sync(loss: nn.Module) -> AbstractContextManager[None]:
    """While this holds, gradients are summed on each rank and not shared: there are more batches in the step."""
    if isinstance(loss, DistributedDataParallel):
        return cast(AbstractContextManager[None], loss.no_sync())
    return _DeferredGradientSync(loss) if isinstance(loss, FSDPModule) else nullcontext()


class _DeferredGradientSync(AbstractContextManager[None]):
    def __init__(self, loss: FSDPModule) -> None:
        self.loss = loss

    def __enter__(self) -> None:
        self.loss.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self.loss.set_requires_gradient_sync(True)


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """A tensor of which each rank may hold a share, put together. All ranks must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """This rank's share of a whole tensor that every rank has, divided as the pattern is."""
    if not isinstance(reference, DTensor):
        return tensor
    return distribute_tensor(tensor.to(reference.device), reference.device_mesh, reference.placements, src_data_rank=None)


@torch.no_grad()
def load_full_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Whole weights into a model of which each rank may hold a share. Names and shapes must be the model's."""
    for name, parameter in model.named_parameters():
        parameter.copy_(shard_like(weights[name], parameter))
