"""Command `calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from dragoman.console.options import PATH_TYPE, bundle_argument, device_option, json_option
from dragoman.io.json_fields import OPTIONAL


@dataclass(frozen=True)
class CalibrateOutput:
    """Output of `dragoman model calibrate --json`.

    sentences: number of translations in the calibration set
    chrf_correlation: Spearman's rank correlation of the confidence with sentence chrF, with references
    """

    bundle: str
    sentences: int
    chrf_correlation: Annotated[float | None, OPTIONAL] = None


@click.command()
@bundle_argument
@click.argument("source", type=PATH_TYPE)
@click.argument("reference", type=PATH_TYPE, required=False)
@click.option(
    "--max-sentences",
    type=click.IntRange(min=100),
    default=500,
    show_default=True,
    help="Most lines to translate; they are spread over the file.",
)
@device_option
@json_option()
def calibrate(bundle: Path, source: Path, reference: Path | None, max_sentences: int, device: str, as_json: bool) -> None:
    """Calibrate the confidence of BUNDLE on the validation set SOURCE, and store the calibration in the bundle.

    Training does so by itself at its end. This command is for converted bundles and for another domain. The lines are
    translated in float32 with the decoding options of the bundle's recipe. REFERENCE is optional. With it, the result shows
    how well the confidence ranks the translations: the rank correlation with sentence chrF.

    \b
    Example:  dragoman model calibrate models/opus-mt-en-de valid.en valid.de
    """
    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.errors import DataError
    from dragoman.formats.text import read_lines
    from dragoman.formats.tsv import read_parallel_lines

    sources, references = list(read_lines(source)), None
    if reference is not None:
        sources, references = read_parallel_lines(source, reference)
    indices = [index for index, line in enumerate(sources) if line.strip()]
    if len(indices) > max_sentences:
        indices = [indices[position * len(indices) // max_sentences] for position in range(max_sentences)]
    with progress_bar(stderr_console(), "translating", len(indices)) as bar:
        from dataclasses import replace

        from dragoman.bundle import replace_config  # the import of torch takes seconds, in which the bar is shown
        from dragoman.inference.load import load
        from dragoman.tasks.confidence import MIN_CALIBRATION_SENTENCES, calibrate_model
        from dragoman.tasks.inference_model import get_decoder_start_id
        from dragoman.tasks.translation import LineSearch

        translator = load(bundle, task="translation", device=device, precision="float32")
        session, recipe = translator.session, translator.recipe
        start_id = get_decoder_start_id(recipe.model)
        search = LineSearch(
            session.inference_model,
            translator.bundle.tokenizer,
            recipe.task,
            recipe.decoding,
            start_id,
            session.forced_decoders[0],
        )
        calibration = calibrate_model(
            search,
            [sources[index] for index in indices],
            None if references is None else [references[index] for index in indices],
            head=translator.metadata.alignment,
            on_progress=bar.advance,
        )
        if calibration is None:
            raise DataError(
                f"{source}: {len(indices)} lines with text are too few; give {MIN_CALIBRATION_SENTENCES} or more that the "
                "bundle can translate",
                code="empty-data",
            )
        replace_config(bundle, metadata=replace(translator.metadata, confidence=calibration))
    if as_json:
        print_json(CalibrateOutput(str(bundle), calibration.sentences, chrf_correlation=calibration.chrf_correlation))
        return
    click.echo(f"{bundle}: calibrated on {calibration.sentences} translations")
    if calibration.chrf_correlation is not None:
        click.echo(f"rank correlation of the confidence with sentence chrF: {calibration.chrf_correlation:.3f}")
