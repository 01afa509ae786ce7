"""Every knob, once: the recipe and its sections, read from TOML.

    recipe file → preset and size → the file's own lines → `key=value` overrides → Recipe

Each knob stands here with its type, its default, its unit and one sentence. Unknown keys and impossible values are refused
when the recipe is read, with the key, what was given and what is allowed; nothing later in the house checks them again.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dragoman.errors import RecipeError
from dragoman.presets import PRESETS, SIZES
from dragoman.refusal import checked, instead, nearest, show


def _whole(value: Any) -> Any:
    """1e5 as the whole number that is meant; in TOML whatever has an exponent is a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Counts end where 32 bits do: the subword library, which takes the seed as well, counts no further. With some two thousand
# million pieces to learn, it never ends.
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1, lt=2**31)]
# Beyond these no machine has room, and some would try for hours.
Rows = Annotated[Whole, Field(ge=1, le=1_000)]
Width = Annotated[Whole, Field(ge=1, le=2**20)]
Pieces = Annotated[Count, Field(ge=5, lt=2**24)]
Natural = Annotated[Whole, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
# So that no sum of weights, and no size to the power of 1/temperature, is more than a float holds.
Weight = Annotated[float, Field(ge=0.0, le=1e9)]
Temperature = Annotated[float, Field(ge=0.1, le=1e4)]

RuleName = Literal[
    "length", "ratio", "identical", "duplicate-pair", "duplicate-source", "control", "mojibake", "markup", "script", "language",
    "numbers", "urls", "overlap",
]  # fmt: skip


class Section(BaseModel):
    """A frozen group of knobs that refuses keys it does not know, and true, "5" or infinity where it wants a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False)


SectionT = TypeVar("SectionT", bound=Section)


class TaskConfig(Section):
    kind: Literal["translation"] = "translation"
    """What the model does; the one place where translation and parsing part."""
    source_language: str = ""
    """Language code of the source: for reports, tokenised scores, cleaning, and files that hold many languages."""
    target_language: str = ""
    """Language code of the target, likewise."""
    tokenised: bool = False
    """The text is tokenised already: BLEU counts its tokens as they stand."""


def _text(given: str) -> str:
    """A command line holds any bytes; those that are no text come as halves of surrogate pairs, which no file of ours holds."""
    if any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ValueError("is not UTF-8; give another name")
    return given


Text = Annotated[str, AfterValidator(_text)]
FileName = Annotated[str, Field(min_length=1)]
_ONE = TypeAdapter[str](FileName)
_MANY = TypeAdapter[list[str]](Annotated[list[FileName], Field(min_length=1)])


def _one_or_many(given: Any) -> Any:
    """One file's name or a list of them. A union would tell of a mistake twice, and by the names of its types."""
    match given:
        case str():
            return _ONE.validate_python(given, strict=True)
        case list():
            return _MANY.validate_python(given, strict=True)
        case _:
            raise PydanticCustomError("name_or_list", "Input should be a text, in quotes, or a list of them")


def _corpus_name(given: str) -> str:
    """What can be part of a key and of a file's name, and stands for no other part of the data."""
    if given in ("valid", "test"):
        raise ValueError(f"data.{given} is another part of the data")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", given) is None:
        raise ValueError("use letters from a to z, digits, - and _, 64 at most, with a letter or a digit first")
    return given


FileNames = Annotated[str | list[str], PlainValidator(_one_or_many)]
CorpusName = Annotated[str, AfterValidator(_corpus_name)]
Format = Literal["auto", "lines", "tsv", "jsonl", "tmx", "xliff", "po", "sgm", "parquet", "brackets"]
STANDARD_INPUT = "-"


def listed(names: str | list[str] | None) -> list[str]:
    """One file's name or many, as a list."""
    return [] if names is None else [names] if isinstance(names, str) else names


class CorpusConfig(Section):
    source: FileNames | None = None
    """A text file (or a list of them), one sentence a line, plain, .gz, .xz, .bz2 or .zst; or WMT's SGM. Goes with `target`."""
    target: FileNames | None = None
    """As many files with the same number of lines in the other language."""
    file: FileNames | None = None
    """Instead or besides: a file that holds both sides (or a list; * stands for any name), or - for standard input."""
    format: Format = "auto"
    """How the files are to be read; `auto` goes by their endings."""
    fields: Annotated[list[FileName], Field(min_length=2, max_length=2)] | None = None
    """Where source and target stand: columns of a TSV from "1", or keys of JSON lines and Parquet, "a.b" for b within a."""
    weight: Annotated[Weight, Field(gt=0.0)] | None = None
    """This corpus's share of what an epoch draws from a mixture, relative to the others' weights."""
    exempt: list[RuleName] = []
    """Cleaning rules that are not applied to this corpus."""

    @model_validator(mode="before")
    @classmethod
    def _tsv(cls, given: Any) -> Any:
        """`tsv = "a.tsv"` is short for `file` and `format`, and how recipes of version 0.1 spelled it."""
        if not isinstance(given, Mapping) or "tsv" not in given:
            return given
        rest = {key: value for key, value in given.items() if key != "tsv"}
        if given["tsv"] is None:
            return rest
        if rest.get("file") is not None:
            raise ValueError("tsv is short for file with format = 'tsv', but file is given as well; drop one of the two")
        if rest.get("format") not in (None, "auto", "tsv"):
            raise ValueError(f"tsv is given, but format = {show(rest['format'])}: give file instead of tsv")
        return rest | {"file": given["tsv"], "format": "tsv"}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        sides = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if sides not in (["source", "target"], ["file"], ["source", "target", "file"]):
            raise ValueError(f"give source and target, or file, or all three; given: {' and '.join(sides) or 'none of them'}")
        if self.format != "auto" and len(sides) == 3:
            raise ValueError(f"format = {self.format!r} cannot hold of source and target and of file; leave it to the endings")
        if self.source is not None:
            self._two_files()
        return self._one_file() if self.file is not None else self

    def _two_files(self) -> Self:
        sources, targets = listed(self.source), listed(self.target)
        if len(sources) != len(targets):
            raise ValueError(f"files go in pairs, but source names {len(sources)} of them and target {len(targets)}")
        if self.format not in ("auto", "lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds both sides in one file: give file, not source and target")
        if self.fields is not None and self.file is None:
            raise ValueError("fields is for a file that holds both sides; drop it, or give file instead of source and target")
        if self.reads_standard_input:
            raise ValueError("standard input (-) has to hold both sides: give file = '-', with its format")
        return self

    def _one_file(self) -> Self:
        if self.format in ("lines", "sgm"):
            raise ValueError(f"format = {self.format!r} holds one side: give source and target instead of file")
        if self.fields is not None and self.format not in ("auto", "tsv", "jsonl", "parquet"):
            raise ValueError(
                f"fields is for tsv, jsonl and parquet; format = {self.format!r} says by itself where both sides stand"
            )
        if self.fields is not None and self.format == "tsv" and not all(re.fullmatch("[1-9][0-9]*", at) for at in self.fields):
            raise ValueError(f"fields = {show(self.fields)}: the columns of a TSV go by number, such as ['1', '2']")
        if self.reads_standard_input and listed(self.file) != [STANDARD_INPUT]:
            raise ValueError("standard input (-) cannot be one of several files: give file = '-' alone")
        if self.reads_standard_input and self.format == "auto":
            raise ValueError("file = '-' needs format: standard input has no ending to go by")
        return self

    @property
    def reads_standard_input(self) -> bool:
        return STANDARD_INPUT in [name for side in (self.source, self.target, self.file) for name in listed(side)]


class CleaningConfig(Section):
    """Rules that drop pairs, all off unless the recipe turns them on; pairs with an empty side are always dropped."""

    max_words: Count | None = None
    """`length`: drop pairs with more words than this on a side; a letter of a script without spaces counts as a word."""
    max_characters: Count | None = None
    """`length`: drop pairs with more characters than this on a side."""
    max_ratio: Annotated[float, Field(gt=1.0)] | None = None
    """`ratio`: drop pairs whose longer side has over ten characters and more than this many times those of the shorter."""
    identical: bool = False
    """Drop pairs whose sides are the same, save for case and spaces."""
    duplicate_pairs: bool = False
    """Drop all but the first of equal pairs, within a corpus and across those of a mixture."""
    duplicate_sources: bool = False
    """Drop all but the first of the pairs with equal sources, likewise."""
    control_characters: bool = False
    """`control`: drop pairs with control characters, the replacement character, or code points that are nobody's."""
    mojibake: bool = False
    """Drop pairs in which UTF-8 was once read as something else (extra `cleaning`)."""
    markup: bool = False
    """Drop pairs with what is left of HTML, XML, wiki or template markup."""
    script: Share | None = None
    """Drop pairs with less than this share of a side's letters in its language's script (extra `cleaning`)."""
    language: Share | None = None
    """Drop pairs with a side that is in another language, at no less than this certainty (extra `cleaning`)."""
    numbers: bool = False
    """Drop pairs whose sides do not hold the same numbers, however they are punctuated."""
    urls: bool = False
    """Drop pairs whose sides do not hold the same web and mail addresses."""
    overlap: bool = False
    """Drop pairs whose source or target stands in data.valid or data.test, whatever its case and punctuation."""


class ModifiersConfig(Section):
    """Changes made to training pairs as they are served, each to this share of the pairs, anew in every epoch."""

    upper_case: Share = 0.0
    """Both sides in capitals."""
    title_case: Share = 0.0
    """Both Sides With Capital Initials."""
    typos: Share = 0.0
    """Typing mistakes in the source: letters dropped, doubled, swapped, or replaced by a neighbour on the keyboard."""
    dropped_punctuation: Share = 0.0
    """Both sides without their final punctuation."""
    merged: Share = 0.0
    """This pair and the next one as one."""
    copied_source: Share = 0.0
    """The source as its own target, so that names and code pass through."""
    placeholders: Share = 0.0
    """A number or name that both sides share becomes a placeholder such as {0} or %s; where none is shared, one is put in."""


class StageConfig(Section):
    until_epoch: Count | None = None
    """The stage ends before the epoch of this number, counted from 0; the last stage has no end."""
    weights: dict[CorpusName, Weight] | None = None
    """Each corpus's share, relative to the others; those not named rest."""
    temperature: Temperature | None = None
    """Instead: shares as the sizes to the power of 1/temperature."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.weights is not None and self.temperature is not None:
            raise ValueError("weights and temperature are given; drop one of the two")
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError("weights draws from no corpus: give at least one a weight above 0")
        return self


class DataConfig(Section):
    root: Text = "."
    """Folder that the corpus paths start from; relative to where the command runs."""
    train: CorpusConfig | None = None
    """What to learn from, where it is one corpus."""
    corpora: dict[CorpusName, CorpusConfig] = {}
    """What to learn from, where it is a mixture: corpora by name."""
    temperature: Temperature | None = None
    """An epoch draws from each corpus of a mixture by its size to the power of 1/temperature; 1 sees every pair once."""
    stages: list[StageConfig] = []
    """A mixture that changes with the epochs, instead of weights and temperature."""
    valid: CorpusConfig | None = None
    """What to validate on."""
    test: CorpusConfig | None = None
    """What to score at the end of the run; never looked at before."""
    max_length: Annotated[Count, Field(ge=2)] = 256
    """Longest side of a training pair, in subword tokens with its end-of-sentence token."""
    over_long: Literal["drop", "truncate", "refuse"] = "drop"
    """What becomes of a training pair beyond max_length; whatever is chosen, its count and first lines are reported."""
    cleaning: CleaningConfig = CleaningConfig()
    modifiers: ModifiersConfig = ModifiersConfig()
    processes: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """Processes that clean and encode; one for each core when not given. Nothing but the time depends on it."""
    loaders: Annotated[Whole, Field(ge=0, le=1024)] = 0
    """Processes that make batches ahead while the model trains; 0 makes them in between. Nothing but the time depends on it."""

    @field_validator("train", "valid", "test", mode="before")
    @classmethod
    def _one_corpus(cls, given: Any, info: ValidationInfo) -> Any:
        several = "name several in data.corpora" if info.field_name == "train" else "give several files as a list"
        if isinstance(given, list) and any(isinstance(one, Mapping) for one in given):
            raise ValueError(f"this is one corpus, not a list of them: {several}")
        tables = [key for key, value in given.items() if isinstance(value, Mapping)] if isinstance(given, Mapping) else []
        if named := [key for key in tables if key not in CorpusConfig.model_fields]:
            raise ValueError(f"{show(named[0])} is none of its keys, and this is one corpus: {several}")
        return given

    @field_validator("train", "valid", "test")
    @classmethod
    def _outside_a_mixture(cls, corpus: CorpusConfig | None, info: ValidationInfo) -> CorpusConfig | None:
        if corpus is not None and corpus.weight is not None:
            raise ValueError("weight is for the corpora of a mixture, in data.corpora; drop it")
        if corpus is not None and info.field_name != "train":
            if corpus.exempt:
                raise ValueError("exempt is for what is cleaned, which is only what to learn from; drop it")
            if corpus.reads_standard_input:
                raise ValueError("file = '-' is for what to learn from; this is read more often than standard input can be")
        return corpus

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.train is not None and self.corpora:
            raise ValueError("train and corpora are given: name one corpus in train, or each of several in corpora")
        weighted = [name for name, corpus in self.corpora.items() if corpus.weight is not None]
        if weighted and len(weighted) < len(self.corpora):
            without = next(name for name in self.corpora if name not in weighted)
            raise ValueError(f"corpora.{without} has no weight, though corpora.{weighted[0]} has; give each one, or none")
        ways = [
            name for name, given in (("weights", weighted), ("temperature", self.temperature), ("stages", self.stages)) if given
        ]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} are given; the mixture can go by one of them only")
        if ways and not self.corpora:
            raise ValueError(f"{ways[0]} is for a mixture: name its corpora in data.corpora")
        piped = [name for name, corpus in self.corpora.items() if corpus.reads_standard_input]
        if len(piped) > 1:
            raise ValueError(f"corpora.{piped[0]} and corpora.{piped[1]} have file = '-': standard input can be read once only")
        self._check_stages()
        return self

    def _check_stages(self) -> None:
        begin = 0
        for number, stage in enumerate(self.stages):
            last = number == len(self.stages) - 1
            if last and stage.until_epoch is not None:
                raise ValueError(f"stages[{number}].until_epoch = {stage.until_epoch}, but the last stage has no end; drop it")
            if not last and stage.until_epoch is None:
                raise ValueError(f"stages[{number}] needs until_epoch: only the last stage goes on without end")
            if stage.until_epoch is not None and stage.until_epoch <= begin:
                raise ValueError(
                    f"stages[{number}].until_epoch = {stage.until_epoch} must be more than {begin}, where the stage begins"
                )
            begin = stage.until_epoch or begin
            if unknown := [name for name in stage.weights or {} if name not in self.corpora]:
                raise ValueError(f"stages[{number}].weights.{unknown[0]} is not in corpora{instead(unknown[0], self.corpora)}")

    def to_learn_from(self) -> dict[str, CorpusConfig]:
        """The training corpora by name; a single one is called train."""
        return {"train": self.train} if self.train is not None else dict(self.corpora)


class SubwordConfig(Section):
    kind: Literal["bpe", "unigram"] = "bpe"
    """SentencePiece model."""
    joint: bool = True
    """One model for both languages; false learns one for each."""
    vocabulary_size: Pieces = 32_000
    """Pieces in the (joint or source) model, the four special ones included."""
    target_vocabulary_size: Pieces | None = None
    """Pieces in the target model where joint is false; as vocabulary_size when not given."""
    byte_fallback: bool = True
    """Spell unknown characters as bytes, so that nothing becomes <unk>."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the corpus's characters that get pieces of their own."""
    normalisation: Literal["nfkc", "identity"] = "nfkc"
    """Unicode normalisation inside the model; `identity` leaves the text as it is."""
    split_digits: bool = False
    """Keep every digit a piece of its own, which numbers need to generalise."""
    lowercase: bool = False
    """Lower-case both sides before anything else."""
    model: FileName | None = None
    """Take this SentencePiece model (the joint one, or the source's) instead of learning one, whatever vocabulary_size."""
    target_model: FileName | None = None
    """Take this one for the target, where joint is false."""
    learn_from: Count | None = None
    """Most lines to learn the pieces from, spread evenly over the corpora; two million for BPE, half a million for unigram."""
    sampling: Share = 0.0
    """Split training text differently each time: BPE-dropout with this probability, or unigram sampling with this α."""

    @property
    def most_lines(self) -> int:
        """Lines to learn from, so that learning stays within 1.5 GiB where the recipe does not say."""
        return self.learn_from or (2_000_000 if self.kind == "bpe" else 500_000)


class ModelConfig(Section):
    encoder_layers: Rows = 6
    """N of the encoder."""
    decoder_layers: Rows = 6
    """N of the decoder."""
    d_model: Width = 512
    """Width of the residual stream."""
    d_ff: Width = 2048
    """Inner width of the feed-forward sub-layer."""
    num_heads: Width = 8
    """h, the heads of each attention."""
    d_k: Width | None = None
    """Width of a head's queries and keys; d_model / num_heads when not given."""
    d_v: Width | None = None
    """Width of a head's values; d_model / num_heads when not given."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after the residual sum (the text) or before the sub-layer."""
    final_norm: bool | None = None
    """One more normalisation at the end of each stack; on with pre and off with post when not given."""
    norm_epsilon: Positive = 1e-6
    """ε of layer normalisation."""
    attention_bias: bool = False
    """Biases on the four attention projections; the feed-forward sub-layer always has its own."""
    positions: Literal["interleaved", "concatenated", "learned"] = "interleaved"
    """Sinusoids as printed (sin, cos, sin, cos, …), as tensor2tensor coded them ([sin …, cos …]), or learned (row E)."""
    max_positions: Width = 1024
    """Rows of the learned positions; sinusoids have no limit."""
    tying: Literal["three-way", "two-way", "none"] = "three-way"
    """Which of source embedding, target embedding and output matrix are one: all, the last two, or none."""
    scale_embeddings: bool = True
    """Multiply embeddings by √d_model."""
    initialisation: Literal["glorot", "torch", "normal"] = "glorot"
    """Matrices from Glorot's uniform, PyTorch's own rule, or N(0, 0.02); embeddings are N(0, 1/√d_model) save with normal."""
    residual_dropout: Probability = 0.1
    """On each sub-layer's output, before the residual sum: the paper's P_drop."""
    embedding_dropout: Probability = 0.1
    """On the sum of embedding and position, in both stacks: the paper's P_drop."""
    attention_dropout: Probability = 0.0
    """On the attention weights."""
    activation_dropout: Probability = 0.0
    """After the ReLU."""
    decoder_start: Literal["bos", "eos", "zero"] = "bos"
    """What the decoder reads first: a begin token, the end token, or a zero vector."""
    source_eos: bool = True
    """End the source with an end-of-sentence token as well."""
    target_space: bool = False
    """Add one learned vector to the encoder's input, as tensor2tensor's target-space embedding did."""
    attention_window: Count | None = None
    """r of restricted self-attention (section 4): each position sees r neighbours on each side; all when not given."""

    @property
    def key_width(self) -> int:
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        return self.d_v or self.d_model // self.num_heads

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model = {self.d_model} does not divide by num_heads = {self.num_heads}; change one, or give d_k and d_v"
            )
        if self.positions != "learned" and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} is odd; sinusoids come in pairs, so make it even or learn positions")
        return self


class TrainingConfig(Section):
    seed: Natural = 1
    """Draws the weights, the order and the dropout."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Of the matrix products; `auto` takes bfloat16 where the processor has it. Weights and sums stay float32."""
    batch_tokens: Count = 4096
    """Padded tokens in a batch, counted on the side that is longer; so at most this many source and this many target."""
    accumulation: Count = 1
    """Batches summed into one step, over all devices together; the loss is divided by all their target tokens."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Over several devices: the whole model on each (DDP), or each a share of weights and optimiser (FSDP2)."""
    timeout_minutes: Positive = 30.0
    """Over several devices: how long one may keep the others waiting before all end and say where they stood."""
    compile: bool = False
    """Have torch.compile make kernels of the layers; needs a C++ compiler, and minutes at the start."""
    max_steps: Count = 100_000
    """Updates of the weights."""
    max_epochs: Positive | None = None
    """Stop after this many passes over the corpus."""
    max_minutes: Positive | None = None
    """Stop after this much wall-clock training, in minutes."""
    adam_beta1: Probability = 0.9
    """β₁ of Adam."""
    adam_beta2: Probability = 0.98
    """β₂ of Adam."""
    adam_epsilon: Positive = 1e-9
    """ε of Adam."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decoupled, as in AdamW."""
    schedule: Literal["paper", "inverse-sqrt", "constant"] = "paper"
    """`paper`: factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5); `inverse-sqrt`: the same shape with peak_rate."""
    rate_factor: Positive = 1.0
    """Factor of the paper's schedule."""
    peak_rate: Positive = 7e-4
    """Highest rate of the other schedules."""
    warmup_steps: Count = 4000
    """Steps of linear growth."""
    cooldown: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Last share of the budget (steps or minutes, whichever ends first) over which the rate falls linearly to zero."""
    label_smoothing: Probability = 0.1
    """ε_ls."""
    smoothing_form: Literal["uniform", "others", "real"] = "uniform"
    """Who gets ε: every class ε/V (PyTorch), the others ε/(V−1) (tensor2tensor), the others save padding ε/(V−2) (JoeyNMT)."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient; longer ones are scaled down."""
    spike_limit: Positive | None = None
    """Skip a step whose gradient norm lies this many standard deviations above the mean of the last 128."""
    skip_limit: Count = 10
    """Steps skipped one after the other, for a spike or for want of a finite number, before `when_lost` decides."""
    when_lost: Literal["stop", "restore"] = "stop"
    """After that many: stop with a diagnosis, or go back to the newest checkpoint and on with the data that follows."""
    ema_decay: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Keep a moving average of the weights: after each step, this share of it and the rest of the new weights."""
    log_every_steps: Count = 50
    """A line in the journal."""
    trackers: list[Literal["tensorboard", "mlflow", "wandb"]] = []
    """Who hears of the run beside the journal; each is an extra of its own."""
    validate_every_steps: Count = 1000
    """Validation by loss and perplexity, and by BLEU if validate_sentences is not 0."""
    validate_sentences: Natural = 1000
    """How many validation sentences to translate (greedily) for BLEU."""
    patience: Count | None = None
    """Stop after this many validations without a better one."""
    best_by: Literal["loss", "bleu"] = "loss"
    """What "better" means."""
    checkpoint_every_steps: Natural = 1000
    """Steps between checkpoints; 0 leaves it to the minutes."""
    checkpoint_every_minutes: Positive | None = None
    """Minutes between checkpoints."""
    keep_last: Count = 5
    """Checkpoints kept, the newest first; at least as many as averaging needs."""
    keep_best: Natural = 1
    """Checkpoints kept besides, the best first."""
    average: Literal["last", "best", "ema", "none"] = "last"
    """What the bundle holds at the end: the mean of the newest or of the best checkpoints, ema_decay's, or the newest alone."""
    average_count: Count = 5
    """How many of them."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.average == "best" and self.keep_best < self.average_count:
            raise ValueError(f"average_count = {self.average_count} needs as many in keep_best = {self.keep_best}")
        if self.average == "last" and self.keep_last < self.average_count:
            raise ValueError(f"average_count = {self.average_count} needs as many in keep_last = {self.keep_last}")
        if self.average == "ema" and self.ema_decay is None:
            raise ValueError("average = 'ema' needs a moving average: set ema_decay, such as 0.999")
        if self.best_by == "bleu" and not self.validate_sentences:
            raise ValueError("best_by = 'bleu' needs translations to judge: set validate_sentences, or best_by = 'loss'")
        if not self.checkpoint_every_steps and self.checkpoint_every_minutes is None:
            raise ValueError("give checkpoint_every_steps, checkpoint_every_minutes or both: a run must leave something")
        return self


class DecodingConfig(Section):
    method: Literal["beam", "greedy", "sample"] = "beam"
    """How the next token is chosen."""
    beam_size: Rows = 4
    """Hypotheses alive at once."""
    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """`gnmt`: ((5+|Y|)/6)^α (the paper); `power`: |Y|^α (most other toolkits). |Y| counts the end token."""
    alpha: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """α of the length penalty."""
    extra_length: Annotated[Whole, Field(ge=0, le=100_000)] = 50
    """Longest output is the input's length plus this, in tokens."""
    max_source: Count = 1024
    """Longest input in tokens that the model is given at once."""
    long_input: Literal["split", "refuse"] = "split"
    """A longer line is cut where a reader would pause and translated in parts, or left untranslated; both are reported."""
    stop: Literal["worst-finished", "best-finished"] = "worst-finished"
    """End early when no hypothesis alive can still beat the worst (the paper's code) or the best (later) of the finished."""
    nbest: Rows = 1
    """Translations returned for each sentence."""
    temperature: Annotated[float, Field(ge=1e-4, le=1e4)] = 1.0
    """Sampling: divides the logits."""
    top_k: Natural = 0
    """Sampling: only the k likeliest tokens; 0 takes all."""
    top_p: Annotated[float, Field(ge=0.001, le=1.0)] = 1.0
    """Sampling: only the likeliest tokens that together reach this probability."""
    seed: Natural = 1
    """Sampling: draws are a function of this and the sentence's place."""
    groups: Rows = 1
    """Diverse alternatives: the beam in so many groups that keep apart; `nbest` gives the best of each first."""
    diversity: Annotated[float, Field(gt=0.0, le=100.0)] = 0.5
    """With groups: how much lower, in natural logarithms, a token ranks for each hypothesis before that says it."""
    min_length: Natural = 0
    """Fewest tokens of an output; where an input's length plus `extra_length` is less, that."""
    no_repeat: Natural = 0
    """No sequence of so many tokens stands twice in an output; 0 lets all stand."""
    suppressed: list[Annotated[str, Field(min_length=1)]] = []
    """Pieces of the target's subword model that are never said."""
    loop_tokens: Natural = 32
    """Stop an output as looped where one group of tokens, said four times or more, fills its last so many; 0: never."""
    batch_tokens: Count = 4096
    """Padded source tokens in a batch, times the beam."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.method == "beam" and self.nbest > self.beam_size:
            raise ValueError(f"nbest = {self.nbest} is more than beam_size = {self.beam_size}")
        if self.method == "greedy" and self.nbest > 1:
            raise ValueError(f"nbest = {self.nbest} needs a beam or sampling; greedy search gives one translation")
        if self.groups > 1 and self.method != "beam":
            raise ValueError(f"groups = {self.groups} divide a beam, but method = {self.method!r}: use method = 'beam'")
        if self.beam_size % self.groups:
            raise ValueError(f"groups = {self.groups} cannot share beam_size = {self.beam_size} evenly: make it a multiple")
        if 0 < self.loop_tokens < 8:
            raise ValueError(f"loop_tokens = {self.loop_tokens} would stop what people write: give 8 or more, or 0 for never")
        return self


class Recipe(Section):
    name: Text = "run"
    """Names the run in reports."""
    run: Text = "runs/run"
    """Folder that the run writes; relative to where the command runs."""
    preset: Literal["paper", "t2t-2017", "modern"] = "paper"
    """The reading of the paper to start from."""
    size: str = "base"
    """The dimensions to start from: base, big, tiny or a row of Table 3."""
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    subword: SubwordConfig = SubwordConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.model.tying == "three-way" and not self.subword.joint:
            raise ValueError(
                "model.tying = 'three-way' needs one vocabulary: set subword.joint = true, or tying = 'two-way' or 'none'"
            )
        needing = [
            name
            for name, needs in (
                ("average = 'best'", self.training.average == "best"),
                ("best_by = 'bleu'", self.training.best_by == "bleu"),
                ("patience", self.training.patience is not None),
            )
            if needs
        ]
        if needing and self.data.valid is None:
            raise ValueError(f"training.{needing[0]} needs something to validate on: give data.valid")
        cleaning = self.data.cleaning
        for knob, share in (("script", cleaning.script), ("language", cleaning.language)):
            if share is not None and not (self.task.source_language and self.task.target_language):
                raise ValueError(f"data.cleaning.{knob} needs task.source_language and task.target_language")
        if cleaning.overlap and self.data.valid is None and self.data.test is None:
            raise ValueError("data.cleaning.overlap has nothing to compare with: give data.valid, data.test or both")
        if self.subword.joint and self.subword.target_vocabulary_size is not None:
            raise ValueError("subword.target_vocabulary_size is given but subword.joint is true: drop one of the two")
        if self.subword.target_model is not None and (self.subword.joint or self.subword.model is None):
            raise ValueError("subword.target_model goes with subword.model and joint = false")
        if not self.subword.joint and self.subword.model is not None and self.subword.target_model is None:
            raise ValueError("subword.model with joint = false needs subword.target_model, too")
        if self.subword.lowercase and (self.data.modifiers.upper_case or self.data.modifiers.title_case):
            raise ValueError(
                "data.modifiers.upper_case and title_case do nothing with subword.lowercase = true: drop them, or that"
            )
        changing = [f"data.modifiers.{name}" for name, share in self.data.modifiers if share]
        changing += ["subword.sampling"] if self.subword.sampling else []
        if changing and not self.subword.byte_fallback:
            raise ValueError(
                f"{changing[0]} needs subword.byte_fallback = true: text is put together from the encoded corpus, "
                "and an unknown character would be lost"
            )
        if self.data.max_length > self.training.batch_tokens:
            raise ValueError(
                f"data.max_length = {self.data.max_length} is more than training.batch_tokens = "
                f"{self.training.batch_tokens}: the longest pair would not fit into a batch"
            )
        if self.model.positions == "learned" and self.data.max_length > self.model.max_positions:
            raise ValueError(
                f"data.max_length = {self.data.max_length} is more than the {self.model.max_positions} "
                "learned positions of model.max_positions"
            )
        return self


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe, or one that comes with the package by its bare name, such as multi30k-ende.

    Raises RecipeError with file, key, what was given and what is allowed.
    """
    shipped = files("dragoman").joinpath("recipes", f"{path.name}.toml")
    if path.name == str(path) and not path.exists() and shipped.is_file():
        return make_recipe(parse_document(shipped.read_text(encoding="utf-8"), where=str(path)), overrides, where=str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"{path}: there is no such recipe") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    return make_recipe(parse_document(text, where=str(path)), overrides, where=str(path))


def parse_document(text: str, *, where: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises RecipeError naming the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where}: not TOML: {error}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or thousands of brackets
        raise RecipeError(f"{where}: not a recipe: a number too long to read, or values nested too deep") from None


def make_recipe(document: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "recipe") -> Recipe:
    """Put preset, size, document and `section.key=value` overrides together, the later over the earlier."""
    given: dict[str, Any] = {}
    _lay_over(given, document)
    for override in overrides:
        _override(given, override)
    whole: dict[str, Any] = {}
    _lay_over(whole, PRESETS[_named(given, "preset", "paper", PRESETS, where)])
    _lay_over(whole, SIZES[_named(given, "size", "base", SIZES, where)])
    _lay_over(whole, given)
    return checked(Recipe, whole, where)


def recipe_from_dict(document: Mapping[str, Any], *, where: str) -> Recipe:
    """Read back a recipe that was written out whole, presets already laid in."""
    return checked(Recipe, document, where)


def section_with(section: SectionT, changes: Mapping[str, Any], *, where: str) -> SectionT:
    """The same section with some knobs changed, checked as a recipe is."""
    return checked(type(section), {**section.model_dump(), **changes}, where)


def _named(given: Mapping[str, Any], key: str, default: str, allowed: Mapping[str, Any], where: str) -> str:
    name = given.get(key, default)
    if not isinstance(name, str) or name not in allowed:
        raise RecipeError(f"{where}: {key} = {show(name)} is not known; one of: {', '.join(allowed)}{nearest(name, allowed)}")
    return name


def _lay_over(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, Mapping) and isinstance(whole.get(key), dict):
            _lay_over(whole[key], value)
        else:
            whole[key] = {} if isinstance(value, Mapping) else value
            if isinstance(value, Mapping):
                _lay_over(whole[key], value)


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`; the value is TOML, and what is not TOML is taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise RecipeError(f"{show(text)} is not a setting: write key=value, such as training.max_steps=1000")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        parsed = {}
    return key.strip(), parsed["value"] if parsed.keys() == {"value"} else value.strip()


def _override(document: dict[str, Any], text: str) -> None:
    """Set `training.max_steps=10` in the document."""
    key, parsed = parse_setting(text)
    *sections, last = key.split(".")
    for name in sections:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            raise RecipeError(f"{show(text)}: {name} is a value, not a section")
    document[last] = parsed
