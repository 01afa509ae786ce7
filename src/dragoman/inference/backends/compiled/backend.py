"""The compiled back end: what keeps a machine from running it, and the preparation of a model."""

from __future__ import annotations

from typing import NamedTuple

from dragoman.inference.backends.compiled import cpu_features
from dragoman.inference.backends.compiled.kernel_files import KernelFileError, has_kernels, load_library
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.protocol import Precision, PreparedModel
from dragoman.inference.backends.trained_model import TrainedModel


class KernelObstacle(NamedTuple):
    """Reason why this machine does not run the kernels.

    remedy, code: end and code of the error; empty if PyTorch runs the model in their place
    """

    reason: str
    remedy: str = ""
    code: str = ""


def find_kernel_obstacle() -> KernelObstacle | None:
    """Return why this machine does not run the kernels of the package, or None if it does."""
    try:
        if not has_kernels():
            return KernelObstacle("dragoman has no kernels for this platform")
        instruction_set = cpu_features.get_instruction_set()
        if instruction_set is None:
            return KernelObstacle("the processor has neither AVX2 nor NEON with dot products")
        load_library(instruction_set.name)
    except cpu_features.InstructionSetError as error:
        return KernelObstacle(str(error), "choose another set, or leave the variable out", "cpu-isa-unsupported")
    except KernelFileError as error:
        return KernelObstacle(error.reason, error.remedy, "kernels-unusable")
    return None


def prepare_compiled(model: TrainedModel, precision: Precision) -> PreparedModel:
    """Return the compiled model. The trained model must not change afterwards."""
    assert precision != "bfloat16"
    extension = model.config.compiled_extension
    if extension is None:
        return compile_model(model.get_weights(), precision)
    prepared_model: PreparedModel = extension.compile(model.get_weights(), precision)
    return prepared_model
