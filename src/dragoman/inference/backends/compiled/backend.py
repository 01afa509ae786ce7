"""Requests that the compiled back end runs: int8 and float32 on processors with AVX2 or NEON."""

from __future__ import annotations

from dragoman.inference.backends.compiled import cpu_features
from dragoman.inference.backends.compiled.kernel_files import KernelFileError, has_kernels, load_library
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.protocol import (
    SUPPORTED,
    UNUSUAL_LAYERS,
    BackendRequest,
    Precision,
    PreparedModel,
    Support,
    fall_back,
    refuse,
    refuse_instruction_set,
    refuse_kernels,
)
from dragoman.inference.backends.trained_model import TrainedModel


class CompiledBackend:
    """Machine code of the package, which runs whole searches without Python."""

    name = "compiled"

    def supports(self, request: BackendRequest) -> Support:
        if request.device_type != "cpu":
            return fall_back("the kernels are for processors")
        if request.precision == "bfloat16":
            return refuse("a processor computes in float32 or int8")
        traits = request.traits
        return UNUSUAL_LAYERS if traits.has_unusual_layers and not traits.is_compiled else SUPPORTED

    def check_machine(self, precision: Precision) -> Support:
        """Return whether the package has kernels for this processor. Damaged or foreign ones are refused."""
        try:
            if not has_kernels():
                return fall_back("dragoman has no kernels for this platform")
            instruction_set = cpu_features.get_instruction_set()
            if instruction_set is None:
                return fall_back("the processor has neither AVX2 nor NEON with dot products")
            load_library(instruction_set.name)
        except cpu_features.InstructionSetError as error:
            return refuse_instruction_set(str(error))
        except KernelFileError as error:
            return refuse_kernels(error.reason, error.remedy)
        return SUPPORTED

    def prepare(self, model: TrainedModel, precision: Precision) -> PreparedModel:
        assert precision != "bfloat16"
        extension = model.config.compiled_extension
        if extension is None:
            return compile_model(model.get_weights(), precision)
        prepared_model: PreparedModel = extension.compile(model.get_weights(), precision)
        return prepared_model
