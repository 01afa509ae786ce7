"""Tables of features and back ends in Markdown, computed by the code that chooses a back end.

Run by `python -m dragoman.inference.backends.support_table`. The tables do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, UNKNOWN_ID
from dragoman.decoding.arrays import NUMPY
from dragoman.decoding.constraints import NO_DECODING_CONSTRAINTS, NO_SENTENCE_CONSTRAINTS, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.inference.backends.compiled.kernels.structs import MAX_BEAM_SIZE
from dragoman.inference.backends.protocol import Backend, BackendRequest, ModelTraits, Support
from dragoman.inference.backends.select import BACKENDS
from dragoman.tasks.generation import BatchSearch, GenerationJob
from dragoman.tasks.inference_model import InferenceModel

BASE_TRAITS = ModelTraits()
# The device and the usual precision of each back end.
BASE_REQUESTS = {
    "compiled": BackendRequest("cpu", "int8", BASE_TRAITS),
    "torch": BackendRequest("cuda", "bfloat16", BASE_TRAITS),
}
# Changes of the request, by feature.
FEATURES: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "int8": {"precision": "int8"},
    "parser's pointer": {"traits": replace(BASE_TRAITS, has_pointer=True)},
    "attention window": {},
    "more than 16 heads": {},
    "width that is not a multiple of 16": {},
    "SiLU or GELU": {},
    "RMSNorm, gates, relative and rotary positions": {},
    "output bias": {},
    "SSRU in the decoder": {"traits": replace(BASE_TRAITS, has_ssru=True)},
    "spectrogram in the place of tokens": {"traits": replace(BASE_TRAITS, is_compiled_only=True)},
    "recurrent, convolutional and other layers": {"traits": replace(BASE_TRAITS, has_unusual_layers=True)},
    "CTC decoder": {"traits": replace(BASE_TRAITS, has_unusual_layers=True, is_compiled=True)},
    "shortlist": {"has_shortlist": True},
}
# Searches that the compiled back end may run without Python: keys of the [decoding] section, the decoder's prompt, and the
# constraints on a sentence.
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    f"beam of at most {MAX_BEAM_SIZE}": {"method": "beam", "beam_size": MAX_BEAM_SIZE},
    "beam with `early_stopping=heuristic`, as in converted models": {"method": "beam", "early_stopping": "heuristic"},
    "beam with a language token before the output": {"method": "beam", "prompt": (UNKNOWN_ID,)},
    f"beam of more than {MAX_BEAM_SIZE}": {"method": "beam", "beam_size": MAX_BEAM_SIZE + 1},
    "diverse beam groups": {"method": "beam", "beam_size": 4, "num_beam_groups": 2},
    "sampling": {"method": "sample"},
    "repetition penalty": {"method": "beam", "beam_size": 4, "repetition_penalty": 1.2},
    "greedy or beam that keeps placeholders by a mask": {
        "method": "beam",
        "constraints": SentenceConstraints(exactly_once=(4,)),
    },
}


def compute_support(feature: str, backend: Backend) -> Support:
    """Return a back end's answer to its usual request with one feature."""
    return backend.supports(replace(BASE_REQUESTS[backend.name], **FEATURES[feature]))


class _AnySearch:
    """Stand-in for a native search. Only its limits are used."""

    max_beam_size = MAX_BEAM_SIZE

    def greedy(self, source_BS: NDArray[np.int64], request: SearchRequest) -> list[Hypothesis]:
        raise NotImplementedError

    def beam(
        self, source_BS: NDArray[np.int64], request: SearchRequest, *, beam_size: int, early_stopping: str, nbest: int
    ) -> list[list[Hypothesis]]:
        raise NotImplementedError


def is_native_search(search: str) -> bool:
    """Return whether the compiled back end runs this search without Python."""

    def unused(*args: Any) -> Any:
        raise NotImplementedError

    model = InferenceModel(unused, unused, NUMPY, None, native_search=_AnySearch())
    keys = dict(SEARCHES[search])
    prompt, constraints = keys.pop("prompt", ()), keys.pop("constraints", NO_SENTENCE_CONSTRAINTS)
    batch_search = BatchSearch(model, DecodingConfig(**keys), BEGIN_ID, NO_DECODING_CONSTRAINTS, None, False, prompt)
    return GenerationJob(batch_search, [[UNKNOWN_ID]], [0], [constraints]).is_native


def _format_cell(support: Support) -> str:
    return support.status.value + (f": {support.reason}" if support.reason else "")


def format_tables() -> str:
    """Return both tables as Markdown."""
    names = [backend.name for backend in BACKENDS]
    lines = [
        "# Features and back ends",
        "",
        "A request goes to the first back end, from left to right, that supports it on its device.",
        "A back end that falls back leaves the request to the next one. A refused request is an error.",
        "",
        f"| feature | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for feature in FEATURES:
        cells = [_format_cell(compute_support(feature, backend)) for backend in BACKENDS]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Searches of the compiled back end",
        "",
        "All back ends run all searches. The compiled back end runs some of them without Python.",
        "In the other ones, and with constraints on a sentence, Python calls the compiled step.",
        "",
        "| search | runs in |",
        "| --- | --- |",
    ]
    lines += [f"| {search} | {'machine code' if is_native_search(search) else 'Python'} |" for search in SEARCHES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_tables())
