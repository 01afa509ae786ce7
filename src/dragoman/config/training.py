"""How a model learns."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dragoman.config.fields import NonNegativeInt, PositiveFloat, PositiveInt, Probability, RecipeSection


class TrainingConfig(RecipeSection):
    seed: NonNegativeInt = 1
    """Draws the weights, the order and the dropout."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Of the matrix products; `auto` takes bfloat16 where it is clearly faster. Weights and sums stay float32."""
    batch_tokens: PositiveInt = 4096
    """Padded tokens in a batch, counted on the side that is longer; so at most this many source and this many target."""
    batches_per_update: PositiveInt = 1
    """Batches summed into one step, over all devices together; the loss is divided by all their target tokens."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Over several devices: the whole model on each (DDP), or each a share of weights and optimiser (FSDP2)."""
    distributed_timeout_minutes: PositiveFloat = 30.0
    """Over several devices: how long one may keep the others waiting before all end and say where they stood."""
    compile: bool = False
    """Have torch.compile make kernels of the layers; needs a C++ compiler, and minutes at the start."""
    max_steps: PositiveInt = 100_000
    """Updates of the weights."""
    max_epochs: PositiveFloat | None = None
    """Stop after this many passes over the corpus."""
    max_minutes: PositiveFloat | None = None
    """Stop after so many minutes of steps by the clock; validations and checkpoints do not count."""
    adam_beta1: Probability = 0.9
    """β₁ of Adam."""
    adam_beta2: Probability = 0.98
    """β₂ of Adam."""
    adam_epsilon: PositiveFloat = 1e-9
    """ε of Adam."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decoupled, as in AdamW."""
    schedule: Literal["noam", "inverse_sqrt", "constant"] = "noam"
    """`noam` (equation 3): factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5); `inverse_sqrt`: the same shape with peak_lr."""
    lr_factor: PositiveFloat = 1.0
    """Factor of the paper's schedule."""
    peak_lr: PositiveFloat = 7e-4
    """Highest rate of the other schedules."""
    warmup_steps: PositiveInt = 4000
    """Steps of linear growth."""
    lr_decay_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Last share of the budget (steps or minutes, whichever ends first) over which the rate falls linearly to zero."""
    label_smoothing: Probability = 0.1
    """ε_ls."""
    label_smoothing_mode: Literal["uniform", "exclude_target", "exclude_target_and_pad"] = "uniform"
    """Who gets ε: every class ε/V (PyTorch), the others ε/(V−1) (tensor2tensor), the others save padding ε/(V−2) (JoeyNMT)."""
    r_drop_alpha: Annotated[float, Field(ge=0.0, le=1e3)] = 0.0
    """R-Drop's α: each pair goes through the model twice, and both outputs are to agree this much; 0: once. Twice the cost."""
    guided_alignment_weight: Annotated[float, Field(ge=0.0, le=1e3)] = 0.0
    """What it weighs that one head of the decoder looks at the source word that a word came from; 0: no head is told."""
    alignment_layer: PositiveInt | None = None
    """The layer of that head, counted from 1; the last but one when not given."""
    alignment_head: PositiveInt = 1
    """That head, counted from 1."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of the gradient; longer ones are scaled down."""
    grad_norm_spike_sigma: PositiveFloat | None = None
    """Skip a step whose gradient norm lies this many standard deviations above the mean of the last 128."""
    max_consecutive_skips: PositiveInt = 10
    """Steps skipped one after the other, for a spike or for want of a finite number, before `on_divergence` decides."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """After that many: stop with a diagnosis, or go back to the newest checkpoint and on with the data that follows."""
    ema_decay: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Keep a moving average of the weights: after each step, this share of it and the rest of the new weights."""
    log_every_steps: PositiveInt = 50
    """A line in the journal."""
    loggers: list[Literal["tensorboard", "mlflow", "wandb"]] = []
    """Who hears of the run beside the journal; each is an extra of its own."""
    validate_every_steps: PositiveInt = 1000
    """Validation by loss and perplexity, and by BLEU (parsers: by F1) if num_validation_translations is not 0."""
    num_validation_translations: NonNegativeInt = 1000
    """How many validation sentences, from all over the set, to translate or parse (greedily) for BLEU or F1."""
    patience: PositiveInt | None = None
    """Stop after this many validations without a better one."""
    best_metric: Literal["loss", "bleu", "f1"] = "loss"
    """What "better" means."""
    checkpoint_every_steps: NonNegativeInt = 1000
    """Steps between checkpoints; 0 leaves it to the minutes."""
    checkpoint_every_minutes: PositiveFloat | None = None
    """Minutes between checkpoints by the clock, all included."""
    keep_last: PositiveInt = 5
    """Checkpoints kept, the newest first; at least as many as averaging needs."""
    keep_best: NonNegativeInt = 1
    """Checkpoints kept besides, the best first."""
    checkpoint_averaging: Literal["last", "best", "ema", "none"] = "last"
    """What the bundle holds at the end: the mean of the newest or of the best checkpoints, ema_decay's, or the newest alone."""
    num_averaged_checkpoints: PositiveInt = 5
    """How many of them."""

    @property
    def num_forward_passes(self) -> int:
        """Times that each pair goes through the model in a step."""
        return 2 if self.r_drop_alpha else 1

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.checkpoint_averaging == "best" and self.keep_best < self.num_averaged_checkpoints:
            raise ValueError(
                f"num_averaged_checkpoints = {self.num_averaged_checkpoints} needs as many in keep_best = {self.keep_best}"
            )
        if self.checkpoint_averaging == "last" and self.keep_last < self.num_averaged_checkpoints:
            raise ValueError(
                f"num_averaged_checkpoints = {self.num_averaged_checkpoints} needs as many in keep_last = {self.keep_last}"
            )
        if self.checkpoint_averaging == "ema" and self.ema_decay is None:
            raise ValueError("average = 'ema' needs a moving average: set ema_decay, such as 0.999")
        if self.best_metric != "loss" and not self.num_validation_translations:
            outputs = {"bleu": "translations", "f1": "trees"}[self.best_metric]
            raise ValueError(
                f"best_metric = {self.best_metric!r} needs {outputs} to judge: set num_validation_translations, or best_metric = 'loss'"
            )
        if not self.checkpoint_every_steps and self.checkpoint_every_minutes is None:
            raise ValueError("give checkpoint_every_steps, checkpoint_every_minutes or both: a run must leave something")
        return self
