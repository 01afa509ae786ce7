"""Data parallelism for a model's loss: DDP and FSDP2 wrappers, and conversion between whole tensors and shards."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dragoman.data.collate import Batch
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.losses.function import LossFunction
from dragoman.training.losses.guided_alignment import AlignmentLossConfig, alignment_loss, record_head_weights

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

# FSDP2 and its tensors are imported where a model is sharded, because their import takes half a second.


class ModelLoss(nn.Module):
    """Module of a model with its loss, for DDP and FSDP2 to wrap.

    loss_function: loss of a batch apart from guided alignment, such as `build_training_loss` returns
    """

    def __init__(
        self, model: Transformer, loss_function: LossFunction, *, alignment_config: AlignmentLossConfig | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_function = loss_function
        self.alignment_config = alignment_config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, each summed over the batch, in nats."""
        if self.alignment_config is None or batch.alignment_targets is None:
            return self.loss_function(self.model, batch)
        with record_head_weights(self.model, self.alignment_config) as log_weights:
            loss, nll = self.loss_function(self.model, batch)
        return loss + self.alignment_config.weight * alignment_loss(log_weights[0], batch.alignment_targets), nll


def parallelize_loss(loss: ModelLoss, distributed: DistributedContext, device: torch.device, mode: str) -> nn.Module:
    """Return the loss with gradients that are means over the ranks.

    `ddp`: each rank holds a whole model. `fsdp`: each rank holds a shard of every weight. The model is sharded in place, and
    layers are gathered when they are needed.
    """
    if distributed.world_size == 1:
        return loss
    if mode == "ddp":
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # later versions of torch rename the option
            return DistributedDataParallel(loss, broadcast_buffers=False, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (distributed.world_size,))
    # The warning is about in-place operations on views; no such operation follows a layer here.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    for layer in (*loss.model.encoder.layers, *loss.model.decoder.layers):
        cross_attention = getattr(layer, "cross_attention", None)
        if isinstance(cross_attention, Attention):
            # Keys and values of the memory are computed before the layer is called, so this module is gathered by itself.
            fully_shard(cross_attention, mesh=mesh)
            register_fsdp_forward_method(cross_attention, "project_kv")
        fully_shard(layer, mesh=mesh)
    fully_shard(loss, mesh=mesh)
    return loss


def is_sharded(loss: nn.Module) -> bool:
    """Return whether each rank holds a shard of the weights."""
    fsdp = _get_imported("torch.distributed.fsdp")
    return fsdp is not None and isinstance(loss, fsdp.FSDPModule)


def _get_imported(name: str) -> Any:
    """Return a module if it is imported, and else None. Nothing is sharded before the module is imported."""
    return sys.modules.get(name)


def defer_gradient_sync(loss: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which each rank sums its own gradients, because more batches of the step follow."""
    if isinstance(loss, DistributedDataParallel):
        return cast(AbstractContextManager[None], loss.no_sync())
    return _DeferredGradientSync(cast("FSDPModule", loss)) if is_sharded(loss) else nullcontext()


class _DeferredGradientSync(AbstractContextManager[None]):
    def __init__(self, loss: FSDPModule) -> None:
        self.loss = loss

    def __enter__(self) -> None:
        self.loss.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self.loss.set_requires_gradient_sync(True)


def gather_full_tensor(tensor: Tensor, distributed: DistributedContext) -> Tensor | None:
    """Return a whole tensor on rank 0, from the shards of all ranks, and None on the others. All ranks must call it.

    A plain gather makes no whole tensor on the other ranks, unlike DTensor's `full_tensor`. No rank has one to release that a
    thread of the process group may still use.
    """
    if not _is_shard(tensor):
        return tensor if distributed.is_rank_zero else None
    shard = _get_local(tensor)
    # FSDP2 divides the first dimension; the last ranks may have fewer rows, or none.
    num_rows = math.ceil(len(tensor) / distributed.world_size)
    padded = shard.new_zeros(num_rows, *shard.shape[1:])
    padded[: len(shard)] = shard
    if not distributed.is_rank_zero:
        dist.gather(padded)
        return None
    full_tensor = shard.new_empty(num_rows * distributed.world_size, *shard.shape[1:])
    dist.gather(padded, list(full_tensor.chunk(distributed.world_size)))
    return full_tensor[: len(tensor)]


def get_gradient_norm(parameters: Iterable[Tensor], distributed: DistributedContext) -> Tensor:
    """Return the norm of all gradients, which may be sharded. All ranks must call it."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([_get_local(gradient) for gradient in gradients])
    if any(_is_shard(gradient) for gradient in gradients):
        norm = distributed.all_reduce_tensor(norm.square()).sqrt()
    return norm


def _get_local(tensor: Tensor) -> Tensor:
    return cast("DTensor", tensor).to_local() if _is_shard(tensor) else tensor


def _is_shard(tensor: Any) -> bool:
    tensor_module = _get_imported("torch.distributed.tensor")
    return tensor_module is not None and isinstance(tensor, tensor_module.DTensor)


def shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """Return this rank's shard of a whole tensor, divided like the reference. Every rank has the whole tensor."""
    if not _is_shard(reference):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(reference, DTensor)
    return distribute_tensor(tensor.to(reference.device), reference.device_mesh, reference.placements, src_data_rank=None)


@torch.no_grad()
def load_full_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights into a model that may be sharded. Names and shapes must match the model's.

    Running statistics of batch normalization are loaded if the weights include them.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(shard_like(weights[name], parameter))
    for name, table in model.named_buffers():
        if name in weights:
            table.copy_(weights[name])
