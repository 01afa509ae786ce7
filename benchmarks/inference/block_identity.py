"""Greedy outputs with and without prediction heads or a draft decoder, line by line, on real text.

    PYTHONPATH=benchmarks python -m inference.block_identity BUNDLE            10,000 lines, several hours on one core
    PYTHONPATH=benchmarks python -m inference.block_identity BUNDLE --quick    300 lines

BUNDLE comes from `dragoman accelerate`. For each output that differs, the float32 model computes the logits of both tokens at
the first difference. A difference below `TIE` is a tie that rounding decides. The last line holds `name=value` pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import torch
from common.instruction_set import describe_instruction_set, limit_to
from torch import Tensor

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import DecodingConfig
from dragoman.data.collate import collate
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.inference.backends.block_decoding import BlockDecoding
from dragoman.inference.backends.eager_blocks import EagerBlockModel
from dragoman.inference.backends.select import build_inference_model
from dragoman.tasks.generation import generate
from dragoman.tasks.inference_model import InferenceModel, as_inference_model, get_decoder_start_id, get_max_positions

from .domains import read_domains

TIE = 1e-3
"""Largest difference of two logits that counts as a tie. Sums of float32 in another order differ by less than 1e-4."""
QUICK_LINES, FULL_LINES = 300, 10_000
BACKENDS = {"compiled-int8": "int8", "compiled-float32": "float32", "packed-float32": "float32", "eager-float32": "float32"}


@dataclass(frozen=True)
class FixedBlocks:
    """Search over blocks of one size."""

    inner: BlockDecoding
    block_size: int

    def choose_block_size(self, num_sentences: int, *, may_be_one: bool) -> int:
        return self.block_size

    def greedy(self, source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
        return self.inner.greedy(source_BS, request, block_size=block_size)


@dataclass
class Comparison:
    """Outputs of one back end, batch size and block size beside those of greedy search."""

    num_lines: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    ties: list[float] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)


def build_backend(name: str, bundle: Bundle) -> InferenceModel:
    """Return the inference model of a back end, with the prediction heads or the draft decoder of the bundle."""
    assert bundle.proposer is not None
    assert bundle.metadata.proposal_training is not None
    acceptance = bundle.metadata.proposal_training.tokens_per_step
    if name == "eager-float32":
        inference_model = as_inference_model([bundle.model])
        block_model = EagerBlockModel(bundle.model, bundle.proposer)
        blocks = BlockDecoding.from_block_model(block_model, bundle.model, inference_model, acceptance, "eager")
        return replace(inference_model, block_search=blocks)
    return build_inference_model(
        [bundle.model],
        torch.device("cpu"),
        BACKENDS[name],  # type: ignore[arg-type]
        None,
        proposer=bundle.proposer,
        acceptance=acceptance,
        is_stand_in=name.startswith("packed"),
    )


def search(
    bundle: Bundle, inference_model: InferenceModel, sources: Sequence[Sequence[int]], batch_size: int, block_size: int
) -> list[Hypothesis]:
    """Return the greedy output of each source, in batches of this many sources of similar length. block_size: 1 for none"""
    config = DecodingConfig(method="greedy", nbest=1, speculative="off" if block_size == 1 else "on", batch_tokens=10**9)
    block_search = inference_model.block_search
    if block_size > 1:
        assert isinstance(block_search, BlockDecoding), "the back end has no search over blocks here"
        inference_model = replace(inference_model, block_search=FixedBlocks(block_search, block_size))
    start_id = get_decoder_start_id(bundle.recipe.model)
    prompt = bundle.tokenizer.decoder_prompt
    order = sorted(range(len(sources)), key=lambda index: (len(sources[index]), index))
    outputs: dict[int, Hypothesis] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        results = generate(inference_model, [sources[index] for index in batch], config, start_id=start_id, prompt=prompt)
        outputs |= zip(batch, [hypotheses[0] for hypotheses in results], strict=True)
    return [outputs[index] for index in range(len(sources))]


def list_tokens(output: Hypothesis) -> list[int]:
    """Return the tokens with the end token, if the output has it."""
    return [*output.tokens, *([END_ID] if output.finished else [])]


@torch.no_grad()
def compute_gap(bundle: Bundle, source: Sequence[int], tokens: list[int], others: list[int]) -> float:
    """Return the difference of the float32 logits of two outputs where they first differ; infinity if one is a prefix."""
    position = next((index for index, pair in enumerate(zip(tokens, others, strict=False)) if pair[0] != pair[1]), None)
    if position is None:
        return float("inf")
    prefix = [*bundle.tokenizer.decoder_prompt, *tokens[:position]]
    batch = collate([source], [prefix], start_id=get_decoder_start_id(bundle.recipe.model))
    logits_V = bundle.model(batch.source_BS, batch.inputs_BT)[0, -1].double()
    return abs(float(logits_V[tokens[position]] - logits_V[others[position]]))


def compare(
    bundle: Bundle, sources: Sequence[Sequence[int]], expected: Sequence[Hypothesis], outputs: Sequence[Hypothesis]
) -> Comparison:
    """Count the tokens, the steps, and the outputs that differ."""
    comparison = Comparison(num_lines=len(sources))
    for source, reference, output in zip(sources, expected, outputs, strict=True):
        comparison.num_tokens += len(output.token_log_probs)
        comparison.num_steps += len(output.step_lengths or output.token_log_probs)
        tokens, others = list_tokens(reference), list_tokens(output)
        if tokens != others or reference.has_repetition != output.has_repetition:
            gap = compute_gap(bundle, source, tokens, others)
            (comparison.ties if gap < TIE else comparison.differences).append(gap)
    return comparison


def encode_domains(bundle: Bundle, shared: Path, num_lines: int) -> dict[str, list[list[int]]]:
    """Return the source ids of the lines of each domain that the model reads."""
    limit = get_max_positions([bundle.model]) or DecodingConfig().max_source_tokens
    encoded = {
        name: [list(bundle.tokenizer.encode_source(line)) for line in lines]
        for name, lines in read_domains(shared, num_lines).items()
    }
    return {name: [ids for ids in sources if 1 < len(ids) <= limit] for name, sources in encoded.items()}


def run_backend(
    bundle: Bundle,
    name: str,
    domains: dict[str, list[list[int]]],
    batch_sizes: Sequence[int],
    block_sizes: Sequence[int],
    on_progress: Callable[[str], None],
) -> list[Comparison]:
    """Compare the outputs of one back end, and report each batch and block size."""
    inference_model, comparisons = build_backend(name, bundle), list[Comparison]()
    for batch_size in batch_sizes:
        expected = {domain: search(bundle, inference_model, sources, batch_size, 1) for domain, sources in domains.items()}
        for block_size in block_sizes:
            start = time.perf_counter()
            by_domain = {
                domain: compare(
                    bundle, sources, expected[domain], search(bundle, inference_model, sources, batch_size, block_size)
                )
                for domain, sources in domains.items()
            }
            rates = ", ".join(f"{domain} {item.num_tokens / item.num_steps:.3f}" for domain, item in by_domain.items())
            ties = [gap for item in by_domain.values() for gap in item.ties]
            differences = [gap for item in by_domain.values() for gap in item.differences]
            shown = " ".join(f"{gap:.2e}" for gap in sorted([*ties, *differences], reverse=True))
            on_progress(
                f"| {name} | {batch_size} | {block_size} | {sum(item.num_lines for item in by_domain.values()):,} | "
                f"{len(ties)} | {len(differences)} | {rates} | {shown or '-'} | {time.perf_counter() - start:.0f} s |"
            )
            comparisons += by_domain.values()
    return comparisons


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--quick", is_flag=True, help=f"Compare {QUICK_LINES} lines in place of {FULL_LINES:,}.")
@click.option("--lines", type=click.IntRange(min=3), help="Number of lines of all domains together.")
@click.option("--backend", "backends", type=click.Choice(list(BACKENDS)), multiple=True, help="Compare only these back ends.")
@click.option("--batch", "batch_sizes", type=click.IntRange(min=1), multiple=True, default=(1, 4, 32), show_default=True)
@click.option("--block", "block_sizes", type=click.IntRange(min=2), multiple=True, help="Block sizes.  [default: all]")
@click.option("--isa", "instruction_set", type=click.Choice(["avx2"]), help="Limit the kernels to this instruction set.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
def main(
    bundle: Path,
    quick: bool,
    lines: int | None,
    backends: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    block_sizes: tuple[int, ...],
    instruction_set: str | None,
    shared: Path | None,
) -> None:
    """Compare greedy outputs of BUNDLE with and without its prediction heads or draft decoder."""
    limit_to(instruction_set)
    shared = (shared or Path(__file__).resolve().parents[3] / "shared" / "data").resolve()
    opened = load_bundle(bundle)
    if opened.proposer is None:
        raise click.ClickException(f"{bundle}: has no prediction heads and no draft decoder; dragoman accelerate trains them")
    print(describe_instruction_set())
    domains = encode_domains(opened, shared, lines or (QUICK_LINES if quick else FULL_LINES))
    print(", ".join(f"{len(sources):,} lines of {domain}" for domain, sources in domains.items()))
    print("| back end | batch | k | lines | ties | other differences | tokens per step | differences of logits | time |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    comparisons = [
        comparison
        for name in backends or BACKENDS
        for comparison in run_backend(
            opened,
            name,
            domains,
            batch_sizes,
            block_sizes or range(2, opened.proposer.num_proposals + 2),
            lambda row: print(row, flush=True),
        )
    ]
    num_ties, num_differences = (
        sum(len(getattr(comparison, kind)) for comparison in comparisons) for kind in ("ties", "differences")
    )
    print(f"lines={sum(item.num_lines for item in comparisons)} ties={num_ties} differences={num_differences}")
    if num_differences:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
