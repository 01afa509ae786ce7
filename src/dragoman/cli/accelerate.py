"""Command `accelerate`: train prediction heads or a draft decoder. Both make greedy search faster with equal output."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import click

from dragoman.cli.options import (
    PATH_TYPE,
    check_output_paths,
    device_option,
    json_option,
    output_path_option,
    overwrite_option,
    precision_option,
    treat_termination_as_interrupt,
)


@click.command()
@click.argument("bundle", type=PATH_TYPE)
@click.argument("corpus", type=PATH_TYPE)
@output_path_option("Bundle to write.", required=True)
@overwrite_option("Replace a bundle that exists.")
@click.option(
    "--method",
    type=click.Choice(["heads", "draft"]),
    default="heads",
    show_default=True,
    help="Prediction heads, which propose all tokens at once, or a draft decoder of one layer.",
)
@click.option(
    "--num-proposals",
    "--num-heads",
    "num_proposals",
    type=click.IntRange(1, 15),
    default=4,
    show_default=True,
    help="Tokens that are proposed for one step, at most.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Target tokens to train on.  [default: a tenth of those of the bundle's training, or 1,000,000 if they are unknown]",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of weights and batches.")
@device_option
@precision_option()
@json_option()
def accelerate(
    bundle: Path,
    corpus: Path,
    output: Path,
    overwrite: bool,
    method: str,
    num_proposals: int,
    tokens: int | None,
    seed: int,
    device: str,
    precision: str,
    as_json: bool,
) -> None:
    """Train prediction heads or a draft decoder on BUNDLE's own greedy outputs for CORPUS, and write both as a bundle.

    CORPUS is a text file in the source language, or a file of pairs: TSV, JSON lines, TMX, XLIFF, PO or Parquet. Only its
    source side is read. The weights of BUNDLE stay as they are. Greedy search then proposes several tokens and verifies them in
    one step. Its output is the same, and a large model is faster with single sentences. The same command resumes a training
    that has stopped, from OUTPUT.part.

    \b
    Example:  dragoman accelerate runs/multi30k-ende/bundle train.en.gz -o multi30k-fast
              dragoman translate multi30k-fast test.en method=greedy
    """
    from dragoman.cli.console import print_facts, print_json, progress_bar, stderr_console
    from dragoman.cli.json_outputs import AccelerateOutput
    from dragoman.errors import BundleError, InterruptedRun

    check_output_paths(output, overwrite=overwrite, input_paths=[bundle, corpus])
    treat_termination_as_interrupt()
    folder, console = output.with_name(f"{output.name}.part"), stderr_console()

    from dragoman.bundle import add_proposer, compute_bundle_digest  # the import of torch takes seconds
    from dragoman.inference.backends.proposals import find_unsupported_part
    from dragoman.inference.greedy_outputs import claim_folder, hash_lines, read_source_lines, write_greedy_outputs
    from dragoman.inference.load import load
    from dragoman.io.storage import lock_dir
    from dragoman.tasks.inference_model import get_decoder_start_id
    from dragoman.training.proposal_objectives import DecoderInputs, Output
    from dragoman.training.proposal_training import Method, ProposalOptions, ProposalTrainer, choose_target_tokens

    translator = load(bundle, task="translation", device=device, precision=precision)
    if (part := find_unsupported_part(translator.models[0])) is not None:
        raise BundleError(
            f"{bundle}: has {part}, which excludes prediction heads and a draft decoder; translate without them",
            code="proposer-unsupported",
        )
    metadata, task = translator.metadata, translator.recipe.task
    target_tokens = choose_target_tokens(tokens, metadata.target_tokens)
    lines = read_source_lines(corpus, source_language=task.source_language, target_language=task.target_language)
    options = ProposalOptions(method=cast(Method, method), num_proposals=num_proposals, target_tokens=target_tokens, seed=seed)
    request = {"bundle": compute_bundle_digest(bundle), "corpus": hash_lines(lines), "precision": translator.precision}
    claim_folder(
        folder,
        request | {"method": method, "number_of_proposals": num_proposals, "number_of_tokens": target_tokens, "seed": seed},
    )
    try:
        with lock_dir(folder):
            with progress_bar(console, "greedy outputs", len(lines)) as bar:
                rows = write_greedy_outputs(
                    translator,
                    lines,
                    folder,
                    max_tokens=target_tokens,
                    seed=seed,
                    on_progress=bar.advance,
                )
            trainer = ProposalTrainer(
                DecoderInputs(
                    translator.models[0],
                    get_decoder_start_id(translator.recipe.model),
                    translator.bundle.tokenizer.decoder_prompt,
                ),
                [Output(source, target) for source, target in rows],
                options,
                folder,
            )
            with progress_bar(console, "training", trainer.num_steps, unit="steps") as bar:
                trainer.on_step = lambda _: bar.advance(1)
                proposer = trainer.train()
            training = trainer.describe()
            new_metadata = metadata.with_proposal_training(training, is_draft=method == "draft")
            add_proposer(bundle, output, proposer, new_metadata, overwrite=overwrite)
    except KeyboardInterrupt:
        raise InterruptedRun(f"interrupted: {folder} keeps the progress; run the same command to resume") from None
    shutil.rmtree(folder, ignore_errors=True)
    result = AccelerateOutput(
        str(output),
        str(bundle),
        method,
        num_proposals,
        training.lines,
        training.target_tokens,
        training.steps,
        training.seconds,
        {str(size): rate for size, rate in training.tokens_per_step.items()},
    )
    if as_json:
        print_json(result)
        return
    rates = ", ".join(f"{rate:.2f} with blocks of {size}" for size, rate in training.tokens_per_step.items())
    facts = {"bundle": output, "base": bundle, "method": method, "proposals": num_proposals, "lines": f"{training.lines:,}"}
    facts |= {"training": f"{training.steps:,} steps, {training.target_tokens:,} tokens, {training.seconds:.0f} s"}
    print_facts("accelerate", facts | {"tokens per step": rates})
