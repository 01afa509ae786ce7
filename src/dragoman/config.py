"""Every knob, once: the recipe and its sections, read from TOML.

    recipe file → preset and size → the file's own lines → `key=value` overrides → Recipe

Each knob stands here with its type, its default, its unit and one sentence. Unknown keys and impossible values are refused
when the recipe is read, with the key, what was given and what is allowed; nothing later in the house checks them again.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dragoman.errors import RecipeError
from dragoman.presets import PRESETS, SIZES


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


class Section(BaseModel):
    """A frozen group of knobs that refuses keys it does not know, and true, "5" or infinity where it wants a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False)


SectionT = TypeVar("SectionT", bound=Section)


class TaskConfig(Section):
    kind: Literal["translation"] = "translation"
    """What the model does; the one place where translation and parsing part."""
    source_language: str = ""
    """Language code of the source, for reports and tokenised scores."""
    target_language: str = ""
    """Language code of the target, for reports and tokenised scores."""
    tokenised: bool = False
    """The text is tokenised already: BLEU counts its tokens as they stand."""


class CorpusConfig(Section):
    source: str | None = None
    """A text file, one sentence a line (plain, .gz, .xz, .bz2 or .zst); goes with `target`."""
    target: str | None = None
    """The same number of lines in the other language."""
    tsv: str | None = None
    """Instead of the two: one file with `source TAB target` on each line."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = (self.source is not None, self.target is not None, self.tsv is not None)
        if given not in {(True, True, False), (False, False, True)}:
            names = " and ".join(name for name, value in self if value is not None) or "none of them"
            raise ValueError(f"give either both source and target, or tsv alone; given: {names}")
        return self


class DataConfig(Section):
    root: str = "."
    """Folder that the corpus paths start from; relative to where the command runs."""
    train: CorpusConfig | None = None
    """What to learn from."""
    valid: CorpusConfig | None = None
    """What to validate on."""
    test: CorpusConfig | None = None
    """What to score at the end of the run; never looked at before."""
    max_length: Annotated[Count, Field(ge=2)] = 256
    """Longest side of a training pair, in subword tokens with its end-of-sentence token."""
    over_long: Literal["drop", "truncate", "refuse"] = "drop"
    """What becomes of a training pair beyond max_length; whatever is chosen, its count and first lines are reported."""


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
    """Batches summed into one step; the loss is divided by all their target tokens."""
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
    log_every_steps: Count = 50
    """A line in the journal."""
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
    average: Literal["last", "best", "none"] = "last"
    """What the bundle holds at the end: the mean of the newest or of the best checkpoints, or the newest alone."""
    average_count: Count = 5
    """How many of them."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.average == "best" and self.keep_best < self.average_count:
            raise ValueError(f"average_count = {self.average_count} needs as many in keep_best = {self.keep_best}")
        if self.average == "last" and self.keep_last < self.average_count:
            raise ValueError(f"average_count = {self.average_count} needs as many in keep_last = {self.keep_last}")
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
    """Longest input in tokens; a longer line is left untranslated and reported."""
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
    batch_tokens: Count = 4096
    """Padded source tokens in a batch, times the beam."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.method == "beam" and self.nbest > self.beam_size:
            raise ValueError(f"nbest = {self.nbest} is more than beam_size = {self.beam_size}")
        if self.method == "greedy" and self.nbest > 1:
            raise ValueError(f"nbest = {self.nbest} needs a beam or sampling; greedy search gives one translation")
        return self


class Recipe(Section):
    name: str = "run"
    """Names the run in reports."""
    run: str = "runs/run"
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
        if self.subword.joint and self.subword.target_vocabulary_size is not None:
            raise ValueError("subword.target_vocabulary_size is given but subword.joint is true: drop one of the two")
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
    return _validate(Recipe, whole, where)


def recipe_from_dict(document: Mapping[str, Any], *, where: str) -> Recipe:
    """Read back a recipe that was written out whole, presets already laid in."""
    return _validate(Recipe, document, where)


def section_with(section: SectionT, changes: Mapping[str, Any], *, where: str) -> SectionT:
    """The same section with some knobs changed, checked as a recipe is."""
    return _validate(type(section), {**section.model_dump(), **changes}, where)


def _named(given: Mapping[str, Any], key: str, default: str, allowed: Mapping[str, Any], where: str) -> str:
    name = given.get(key, default)
    if not isinstance(name, str) or name not in allowed:
        raise RecipeError(f"{where}: {key} = {_show(name)} is not known; one of: {', '.join(allowed)}{_nearest(name, allowed)}")
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
        raise RecipeError(f"{_show(text)} is not a setting: write key=value, such as training.max_steps=1000")
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
            raise RecipeError(f"{_show(text)}: {name} is a value, not a section")
    document[last] = parsed


def _validate(section: type[SectionT], document: Mapping[str, Any], where: str) -> SectionT:
    try:
        return section.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        key = key if key.isprintable() and len(key) <= 80 else _show(key)
        if first["type"] == "extra_forbidden":
            known = _keys_beside(section, first["loc"])
            nearest = _nearest(first["loc"][-1], known) or f"; one of: {', '.join(known)}"
            raise RecipeError(f"{where}: {key} is not a key{nearest}") from None
        if first["type"] == "value_error":
            message = first["msg"].removeprefix("Value error, ")
            raise RecipeError(f"{where}: {key}{': ' if key else ''}{message}") from None
        message = _PLAINLY.get(first["type"], first["msg"])
        raise RecipeError(f"{where}: {key or 'the whole'} = {_show(first['input'])}: {message}") from None


_PLAINLY = {
    "bool_type": "Input should be true or false",
    "int_type": "Input should be a whole number",
    "float_type": "Input should be a number",
    "string_type": "Input should be a text, in quotes",
    "model_type": "Input should be a section of key = value",
}


def _show(value: Any) -> str:
    """A value as TOML writes it, as far as Python does the same, and not longer than a line bears."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "…"


def _keys_beside(section: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for name in location[:-1]:
        field = section.model_fields[str(name)]
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        section = next(part for part in candidates if isinstance(part, type) and issubclass(part, BaseModel))
    return list(section.model_fields)


def _nearest(name: Any, known: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
