"""Messages between the client and a worker process: JSON lines.

The first message is the `WorkerSpec` with the number of threads; its answer has the checksums of the opened folders. Each
further message is one batch with its search; its answer has the hypotheses, or the text of an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.config import DecodingConfig
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.phrase import Phrase
from dragoman.io.storage import MANIFEST_FILE
from dragoman.tasks.generation import BatchSearch, GenerationJob
from dragoman.tasks.inference_model import InferenceModel

SearchResults = list[list[Hypothesis]]
"""Hypotheses of each source of a batch, best first."""


@dataclass(frozen=True)
class WorkerSpec:
    """Files and settings with which a worker process opens the same models as its client.

    checksums: SHA-256 of the manifest of each folder, when the client opened it
    """

    bundles: tuple[str, ...]
    precision: str
    shortlist: str | None
    checksums: tuple[str, ...]


def compute_checksums(paths: Sequence[str | Path]) -> tuple[str, ...]:
    """Return the SHA-256 of the manifest of each folder. Raises OSError."""
    return tuple(hashlib.sha256((Path(path) / MANIFEST_FILE).read_bytes()).hexdigest() for path in paths)


def is_serializable(job: object) -> bool:
    """Return whether a message can express this job: a search without functions of the caller."""
    return (
        isinstance(job, GenerationJob)
        and job.search.constraint_factory is None
        and job.search.decoding_constraints.allowed_tokens_fn is None
    )


def encode_request(job: GenerationJob, batch: Sequence[int]) -> dict[str, Any]:
    """Return the message for one batch of a job."""
    search = job.search
    sources, sample_ids, constraints = job.select_batch(batch)
    return {
        "config": search.config.model_dump(),
        "start_id": search.start_id,
        "prompt": search.prompt,
        "decoding_constraints": vars(search.decoding_constraints),
        "return_alternatives": search.return_alternatives,
        "restrict_vocabulary": search.inference_model.restrict_vocabulary is not None,
        "sources": [list(map(int, source)) for source in sources],
        "sample_ids": list(sample_ids),
        "constraints": [_encode_constraints(sentence_constraints) for sentence_constraints in constraints],
    }


def run_request(request: Mapping[str, Any], inference_model: InferenceModel) -> SearchResults:
    """Search the batch of a message and return its hypotheses."""
    decoding_constraints = {name: _to_tuples(value) for name, value in request["decoding_constraints"].items()}
    search = BatchSearch(
        inference_model if request["restrict_vocabulary"] else replace(inference_model, restrict_vocabulary=None),
        DecodingConfig.model_validate(request["config"]),
        request["start_id"],
        DecodingConstraints(**decoding_constraints),
        None,
        request["return_alternatives"],
        tuple(request["prompt"]),
    )
    constraints = [_decode_constraints(fields) for fields in request["constraints"]]
    return search.run(range(len(request["sources"])), request["sources"], request["sample_ids"], constraints)


def _encode_constraints(constraints: SentenceConstraints) -> dict[str, Any]:
    return vars(constraints) | {
        "include": [[phrase.to_dict() for phrase in group] for group in constraints.include],
        "exclude": [phrase.to_dict() for phrase in constraints.exclude],
    }


def _decode_constraints(fields: Mapping[str, Any]) -> SentenceConstraints:
    phrases: dict[str, Any] = {
        "include": tuple(tuple(map(Phrase.from_dict, group)) for group in fields["include"]),
        "exclude": tuple(map(Phrase.from_dict, fields["exclude"])),
    }
    return SentenceConstraints(**{name: phrases.get(name, _to_tuples(value)) for name, value in fields.items()})


def encode_results(results: SearchResults) -> list[list[list[Any]]]:
    """Return the hypotheses of a batch as JSON values."""
    return [[list(vars(hypothesis).values()) for hypothesis in hypotheses] for hypotheses in results]


def decode_results(document: Sequence[Sequence[Sequence[Any]]]) -> SearchResults:
    """Return the hypotheses that `encode_results` has encoded."""
    return [[Hypothesis(*map(_to_tuples, fields)) for fields in hypotheses] for hypotheses in document]


def _to_tuples(value: Any) -> Any:
    """Return nested lists as nested tuples."""
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
