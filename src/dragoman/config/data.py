"""What is learnt from: corpora, mixtures of them, their stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dragoman.config.cleaning import CleaningConfig, NoiseConfig
from dragoman.config.corpus import CorpusConfig, CorpusName
from dragoman.config.fields import Count, Section, Temperature, Text, Weight, Whole
from dragoman.config.validation import instead, show


class CurriculumStageConfig(Section):
    end_epoch: Count | None = None
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
    curriculum: list[CurriculumStageConfig] = []
    """A mixture that changes with the epochs, instead of weights and temperature."""
    valid: CorpusConfig | None = None
    """What to validate on."""
    test: CorpusConfig | None = None
    """What to score at the end of the run; never looked at before."""
    max_length: Annotated[Count, Field(ge=2)] = 256
    """Longest side of a training pair, in subword tokens with its end-of-sentence token."""
    overlong_pairs: Literal["drop", "truncate", "error"] = "drop"
    """What becomes of a training pair beyond max_length; whatever is chosen, its count and first lines are reported."""
    cleaning: CleaningConfig = CleaningConfig()
    noise: NoiseConfig = NoiseConfig()
    preprocessing_workers: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """Processes that clean and encode; one for each core when not given. Nothing but the time depends on it."""
    num_workers: Annotated[Whole, Field(ge=0, le=1024)] = 0
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
            if corpus.skip_filters:
                raise ValueError("skip_filters is for what is cleaned, which is only what to learn from; drop it")
            if corpus.alignments is not None:
                raise ValueError("alignments guide what is learnt, and nothing is learnt from this; drop it")
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
            name
            for name, given in (("weights", weighted), ("temperature", self.temperature), ("curriculum", self.curriculum))
            if given
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
        for number, stage in enumerate(self.curriculum):
            last = number == len(self.curriculum) - 1
            if last and stage.end_epoch is not None:
                raise ValueError(f"curriculum[{number}].end_epoch = {stage.end_epoch}, but the last stage has no end; drop it")
            if not last and stage.end_epoch is None:
                raise ValueError(f"curriculum[{number}] needs end_epoch: only the last stage goes on without end")
            if stage.end_epoch is not None and stage.end_epoch <= begin:
                raise ValueError(
                    f"curriculum[{number}].end_epoch = {stage.end_epoch} must be more than {begin}, where the stage begins"
                )
            begin = stage.end_epoch or begin
            if unknown := [name for name in stage.weights or {} if name not in self.corpora]:
                raise ValueError(
                    f"curriculum[{number}].weights.{unknown[0]} is not in corpora{instead(unknown[0], self.corpora)}"
                )

    def training_corpora(self) -> dict[str, CorpusConfig]:
        """The training corpora by name; a single one is called train."""
        return {"train": self.train} if self.train is not None else dict(self.corpora)
