"""One model of six directions beside six models of one direction, on the LibreOffice help.

    PYTHONPATH=benchmarks python -m quality.adaptation_languages --shared ../shared/data

The directions are English from and into German, French and Japanese. The six models share the steps of the one model. It also
translates German to French: directly, which no model was trained on, and over English.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section, Table
from common.usage import CommandError

from dragoman.evaluation.bleu_tokenizer import choose_bleu_tokenizer
from dragoman.evaluation.bootstrap import paired_bootstrap

from .adaptation_data import LANGUAGES, Corpora, MissingCorpusError, prepare_languages
from .adaptation_runs import run_dragoman

STEPS = 2_400
DIRECTIONS = tuple(pair for language in LANGUAGES for pair in (("en", language), (language, "en")))
ZERO_SHOT = ("de", "fr")
QUICK_SCALE, QUICK_SENTENCES = 0.005, 20
RECIPE = """preset = "modern"
size = "tiny"

[data]
max_length = 128

[tokenizer]
model_type = "unigram"
vocab_size = 10_000
byte_fallback = true
character_coverage = 0.9995

[model]
encoder_layers = 4
decoder_layers = 2
d_model = 128
d_ff = 512
num_heads = 4
residual_dropout = 0.1
embedding_dropout = 0.1

[training]
precision = "float32"
batch_tokens = 2_048
batches_per_update = 1
schedule = "inverse_sqrt"
peak_lr = 2.5e-3
lr_decay_ratio = 0.4
num_validation_translations = 120
checkpoint_averaging = "none"

[decoding]
min_length = 1
"""


@dataclass(frozen=True)
class LanguageRuns:
    """Runs of the seven models in a folder. Finished runs stay, and interrupted runs resume."""

    folder: Path
    steps: int
    num_sentences: int | None = None

    @property
    def data(self) -> Path:
        return self.folder / "languages"

    def get_run(self, source: str, target: str) -> Path:
        """Return the run of one direction."""
        return self.folder / "runs" / f"{source}-{target}"

    @property
    def multilingual_run(self) -> Path:
        return self.folder / "runs" / "languages"

    def train_multilingual(self) -> None:
        settings = [
            'tokenizer.language_token=">>{}<<"',
            "tokenizer.language_token_placement=source",
            "data.pair_temperature=2.0",
        ]
        for key, split in (("corpora", "train"), ("valid_corpora", "dev")):
            for language in LANGUAGES:
                corpus = f"data.{key}.{language}"
                settings += [
                    f"{corpus}.file={self.data}/en-{language}-{split}.tsv",
                    f"{corpus}.source_language=en",
                    f"{corpus}.target_language={language}",
                    f"{corpus}.both_directions=true",
                ]
        self._train(self.multilingual_run, self.steps, warmup=self.steps // 6, settings=settings)

    def train_bilingual(self, source: str, target: str) -> None:
        """Train one direction with a sixth of the steps."""
        other = target if source == "en" else source
        columns = ["1", "2"] if source == "en" else ["2", "1"]
        steps = self.steps // len(DIRECTIONS)
        settings = [
            f"task.source_language={source}",
            f"task.target_language={target}",
            f"data.train.file={self.data}/en-{other}-train.tsv",
            f"data.train.columns={columns}",
        ]
        self._train(self.get_run(source, target), steps, warmup=steps // 4, settings=settings)

    def _train(self, run: Path, steps: int, *, warmup: int, settings: list[str]) -> None:
        if (run / "report.json").exists():
            return
        recipe = self.folder / "languages.toml"
        recipe.write_text(RECIPE, encoding="utf-8")
        run_dragoman(
            "train",
            recipe,
            f"run={run}",
            f"training.max_steps={steps}",
            f"training.warmup_steps={max(1, warmup)}",
            f"training.validate_every_steps={max(1, steps // 2)}",
            f"training.checkpoint_every_steps={max(1, steps // 12)}",
            *settings,
        )

    def get_test_side(self, source: str, target: str, side: str) -> Path:
        """Return the file of one side of a test set."""
        if source == "en" or (source, target) == ZERO_SHOT:
            path = self.data / f"{source}-{target}-test.{side}"
        else:
            path = self.data / f"{target}-{source}-test.{'target' if side == 'source' else 'source'}"
        if self.num_sentences is None:
            return path
        short = self.folder / "outputs" / path.name
        lines = path.read_text(encoding="utf-8").split("\n")[: self.num_sentences]
        short.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return short

    def translate(self, name: str, bundle: Path, source: str, target: str, *options: str) -> list[str]:
        """Return the translations of a test set, which are written to outputs/NAME."""
        output = self.folder / "outputs" / name
        output.parent.mkdir(exist_ok=True)
        if not output.exists():
            text = self.get_test_side(source, target, "source")
            run_dragoman("translate", bundle, text, "-o", output, "--precision", "float32", *options)
        return output.read_text(encoding="utf-8").split("\n")[:-1]


@click.command()
@click.option("--quick", is_flag=True, help="Few steps and 20 sentences of each test set, to check that it works.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the open corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the runs; the same command resumes them.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(quick: bool, shared: Path | None, work: Path | None, report: Path | None) -> None:
    """Train one model of six directions and six models of one, and score them on the same test sets."""
    started = time.monotonic()
    package_path = Path(__file__).resolve().parent
    work = (work or package_path / ".work" / ("languages-quick" if quick else "languages")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    console = open_console()
    machine = print_machine(console, cores=1, quick=quick, libraries=("dragoman", "torch", "numpy"))
    runs = LanguageRuns(work, round(STEPS * QUICK_SCALE) if quick else STEPS, QUICK_SENTENCES if quick else None)
    try:
        if not runs.data.exists():
            corpora = (shared or package_path.parents[1].parent / "shared" / "data").resolve()
            prepare_languages(Corpora(corpora), runs.data)
        section = run_benchmark(runs)
    except MissingCorpusError as error:
        section = Section(notes=[str(error)])
    except CommandError as error:
        console.print(str(error), markup=False)
        sys.exit(1)
    print_section(console, section)
    print_end(console, {"languages": section}, machine, seconds=time.monotonic() - started, json_path=report)


def run_benchmark(runs: LanguageRuns) -> Section:
    """Train and score everything that is not there yet."""
    runs.train_multilingual()
    for direction in DIRECTIONS:
        runs.train_bilingual(*direction)
    section, multilingual = Section(), runs.multilingual_run / "bundle"
    table = Table("Six directions", ["direction", "bilingual", "multilingual", "difference", "p", "chrF", "chrF ", "sentences"])
    for source, target in DIRECTIONS:
        bilingual = runs.translate(f"{source}-{target}.bi", runs.get_run(source, target) / "bundle", source, target)
        joint = runs.translate(f"{source}-{target}.multi", multilingual, source, target, "--from", source, "--to", target)
        table.rows.append(compare(section, runs, (source, target), bilingual, joint))
    section.tables.append(table)
    source, target = ZERO_SHOT
    outputs = {
        "zero-shot": runs.translate(
            "zero-shot", multilingual, source, target, "--from", source, "--to", target, "zero_shot=true"
        ),
        "over English": runs.translate("pivot", multilingual, source, target, "--from", source, "--to", target, "--via", "en"),
    }
    zero_table = Table("German to French", ["", "zero-shot", "over English", "difference", "p", "chrF", "chrF ", "sentences"])
    zero_table.rows.append(compare(section, runs, ZERO_SHOT, outputs["zero-shot"], outputs["over English"]))
    section.tables.append(zero_table)
    return section


def compare(section: Section, runs: LanguageRuns, direction: tuple[str, str], first: list[str], second: list[str]) -> list[str]:
    """Return the cells of two systems, and add their figures and signatures to the section."""
    name = "-".join(direction)
    references = runs.get_test_side(*direction, "target").read_text(encoding="utf-8").split("\n")[:-1]
    tokenizer = choose_bleu_tokenizer(direction[1])
    bleu = paired_bootstrap(second, first, [references], tokenize=tokenizer)
    chrf = paired_bootstrap(second, first, [references], metric="chrf")
    section.figures[name] = {
        "bleu": [bleu.b.value, bleu.a.value],
        "bleu_p": bleu.p_value,
        "bleu_interval": bleu.interval,
        "chrf": [chrf.b.value, chrf.a.value],
        "chrf_p": chrf.p_value,
        "sentences": len(references),
    }
    for note in (bleu.a.signature, chrf.a.signature):
        if note not in section.notes:
            section.notes.append(note)
    return [
        name,
        f"{bleu.b.value:.2f}",
        f"{bleu.a.value:.2f}",
        f"{bleu.difference:+.2f}",
        f"{bleu.p_value:.3f}",
        f"{chrf.b.value:.1f}",
        f"{chrf.a.value:.1f}",
        f"{len(references):,}",
    ]


if __name__ == "__main__":
    main()
