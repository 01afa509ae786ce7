"""What is learnt from: corpora, mixtures of them, their stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dragoman.config.cleaning import CleaningConfig, NoiseConfig
from dragoman.config.corpus import CorpusConfig, CorpusName
from dragoman.config.fields import Integer, PositiveInt, RecipeSection, Temperature, Utf8Text, Weight
from dragoman.config.validation import format_value, suggest_or_list_names


class CurriculumStageConfig(RecipeSection):
    end_epoch: PositiveInt | None = None
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


class DataConfig(RecipeSection):
    root: Utf8Text = "."
    """Folder that the corpus paths start from; relative to where the command runs."""
    train: CorpusConfig | None = None
    """What to learn from, where it is one corpus."""
    corpora: dict[CorpusName, CorpusConfig] = {}
    """What to learn from, where it is a mixture: corpora by name."""
    temperature: Temperature | None = None
    """An epoch draws from each corpus of a mixture by its size to the power of 1/temperature; 1 sees every pair once."""
    curriculum: list[CurriculumStageConfig] = []
    """A mixture that changes with the epochs, instead of weights and temperature."""
    valid: CorpusConfig | None = None
    """What to validate on."""
    test: CorpusConfig | None = None
    """What to score at the end of the run; never looked at before."""
    max_length: Annotated[PositiveInt, Field(ge=2)] = 256
    """Longest side of a training pair, in subword tokens with its end-of-sentence token."""
    overlong_pairs: Literal["drop", "truncate", "error"] = "drop"
    """What becomes of a training pair beyond max_length; whatever is chosen, its count and first lines are reported."""
    cleaning: CleaningConfig = CleaningConfig()
    noise: NoiseConfig = NoiseConfig()
    preprocessing_workers: Annotated[Integer, Field(ge=1, le=1024)] | None = None
    """Processes that clean and encode; one for each core when not given. Nothing but the time depends on it."""
    num_workers: Annotated[Integer, Field(ge=0, le=1024)] = 0
    """Processes that make batches ahead while the model trains; 0 makes them in between. Nothing but the time depends on it."""

    @field_validator("train", "valid", "test", mode="before")
    @classmethod
    def _check_single_corpus(cls, document: Any, info: ValidationInfo) -> Any:
        hint = "name several in data.corpora" if info.field_name == "train" else "give several files as a list"
        if isinstance(document, list) and any(isinstance(item, Mapping) for item in document):
            raise ValueError(f"this is one corpus, not a list of them: {hint}")
        tables = [key for key, value in document.items() if isinstance(value, Mapping)] if isinstance(document, Mapping) else []
        if unknown_keys := [key for key in tables if key not in CorpusConfig.model_fields]:
            raise ValueError(f"{format_value(unknown_keys[0])} is none of its keys, and this is one corpus: {hint}")
        return document

    @field_validator("train", "valid", "test")
    @classmethod
    def _check_outside_mixture(cls, corpus: CorpusConfig | None, info: ValidationInfo) -> CorpusConfig | None:
        if corpus is not None and corpus.weight is not None:
            raise ValueError("weight is for the corpora of a mixture, in data.corpora; drop it")
        if corpus is not None and info.field_name != "train":
            if corpus.skip_filters:
                raise ValueError("skip_filters is for what is cleaned, which is only what to learn from; drop it")
            if corpus.alignments is not None:
                raise ValueError("alignments guide what is learnt, and nothing is learnt from this; drop it")
            if corpus.reads_standard_input:
                raise ValueError("file = '-' is for what to learn from; this is read more often than standard input can be")
        return corpus

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.train is not None and self.corpora:
            raise ValueError("train and corpora are given: name one corpus in train, or each of several in corpora")
        weighted_names = [name for name, corpus in self.corpora.items() if corpus.weight is not None]
        if weighted_names and len(weighted_names) < len(self.corpora):
            unweighted_name = next(name for name in self.corpora if name not in weighted_names)
            raise ValueError(
                f"corpora.{unweighted_name} has no weight, though corpora.{weighted_names[0]} has; give each one, or none"
            )
        mixture_options = [
            name
            for name, value in (("weights", weighted_names), ("temperature", self.temperature), ("curriculum", self.curriculum))
            if value
        ]
        if len(mixture_options) > 1:
            raise ValueError(f"{' and '.join(mixture_options)} are given; the mixture can go by one of them only")
        if mixture_options and not self.corpora:
            raise ValueError(f"{mixture_options[0]} is for a mixture: name its corpora in data.corpora")
        stdin_names = [name for name, corpus in self.corpora.items() if corpus.reads_standard_input]
        if len(stdin_names) > 1:
            raise ValueError(
                f"corpora.{stdin_names[0]} and corpora.{stdin_names[1]} have file = '-': standard input can be read once only"
            )
        self._check_curriculum()
        return self

    def _check_curriculum(self) -> None:
        start_epoch = 0
        for index, stage in enumerate(self.curriculum):
            is_last = index == len(self.curriculum) - 1
            if is_last and stage.end_epoch is not None:
                raise ValueError(f"curriculum[{index}].end_epoch = {stage.end_epoch}, but the last stage has no end; drop it")
            if not is_last and stage.end_epoch is None:
                raise ValueError(f"curriculum[{index}] needs end_epoch: only the last stage goes on without end")
            if stage.end_epoch is not None and stage.end_epoch <= start_epoch:
                raise ValueError(
                    f"curriculum[{index}].end_epoch = {stage.end_epoch} must be more than {start_epoch}, where the stage begins"
                )
            start_epoch = stage.end_epoch or start_epoch
            if unknown_names := [name for name in stage.weights or {} if name not in self.corpora]:
                raise ValueError(
                    f"curriculum[{index}].weights.{unknown_names[0]} is not in corpora{suggest_or_list_names(unknown_names[0], self.corpora)}"
                )

    def training_corpora(self) -> dict[str, CorpusConfig]:
        """The training corpora by name; a single one is called train."""
        return {"train": self.train} if self.train is not None else dict(self.corpora)
