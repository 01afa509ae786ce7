"""Recipe section `training`: batches, optimizer, schedule, loss, validation and checkpoints."""

from typing import Annotated, Any, ClassVar, Literal, cast

from dragoman.config.extension import ExtensibleSection, Extension
from dragoman.config.fields import (
    FileName,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    SmallPositiveInt,
)
from dragoman.config.section import Limits, RecipeSection, model_validator


class LoraConfig(RecipeSection):
    """Low-rank adapters (Hu et al. 2021): W + alpha / rank · B · A, in which only A and B are trained."""

    rank: SmallPositiveInt = 16
    """Rows of A and columns of B, r."""
    alpha: PositiveFloat = 32.0
    """α; the product of B and A is multiplied by α / r."""
    targets: Annotated[list[FileName], Limits(min_length=1)] = ["*"]
    """Patterns of the linear layers that get an adapter, such as `*attention.query`; `*` is all, as in QLoRA."""


class LossExtension(Extension):
    """Keys that a loss adds to the section `training`, and the change that it makes to the loss of a batch.

    Functions and contexts are those of `dragoman.training.losses.function`, which this module does not import.
    """

    @property
    def has_teacher(self) -> bool:
        """Return whether another model of equal size reads each pair, too, for reports and budgets."""
        return False

    @property
    def num_candidates(self) -> int:
        """Return the number of outputs of each sentence that a step decodes and trains on, for reports and budgets."""
        return 0

    def change_loss(self, loss: Any, context: Any) -> Any:
        """Return the `LossFunction` of this loss, for a `LossContext` and the function without it."""
        return loss


class TrainingConfig(ExtensibleSection):
    """Training options. A step is one update of the weights."""

    hook: ClassVar[str] = "losses"

    seed: NonNegativeInt = 1
    """Seed of initial weights, batch order, dropout and noise."""
    init_from: FileName | None = None
    """Bundle to fine-tune, a folder or the name of a model: weights, tokenizer, model, and task and decoding as defaults."""
    init_optimizer: Literal["fresh", "keep"] = "fresh"
    """Moments of Adam with init_from: zeros, or those of the newest checkpoint of the bundle's run."""
    freeze: list[FileName] = []
    """Patterns of parameters that keep the values of init_from, such as `encoder.*`; `*` matches any characters."""
    lora: LoraConfig | None = None
    """Low-rank adapters that are trained instead of the weights of init_from; none by default."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Number format of matrix products; `auto` measures whether bfloat16 is faster, and weights stay float32."""
    batch_tokens: PositiveInt = 4096
    """Most tokens in a batch, padding included, on the source side and on the target side."""
    batches_per_update: PositiveInt = 1
    """Batches in one step over all devices; gradients are summed, and the loss is divided by all target tokens of the step."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Parallelism over several devices: a full model on each (DDP), or sharded weights and optimizer (FSDP2)."""
    distributed_timeout_minutes: PositiveFloat = 30.0
    """Minutes that a device may wait for the others before all of them stop with an error."""
    compile: bool = False
    """Whether torch.compile compiles the layers; this needs a C++ compiler and some minutes at the start."""
    max_steps: PositiveInt = 100_000
    """Steps after which training stops."""
    max_epochs: PositiveFloat | None = None
    """Passes over the training data after which training stops."""
    max_minutes: PositiveFloat | None = None
    """Minutes of steps after which training stops; validations and checkpoints do not count."""
    max_flops: PositiveFloat | None = None
    """Floating-point operations of all steps after which training stops, counted as in the report."""
    clock: Literal["wall", "processor"] = "wall"
    """Clock of the minutes of steps: time of day, or processor time of the process, which leaves out waiting for a core."""
    adam_beta1: Probability = 0.9
    """β₁ of Adam (section 5.3)."""
    adam_beta2: Probability = 0.98
    """β₂ of Adam (section 5.3)."""
    adam_epsilon: PositiveFloat = 1e-9
    """ε of Adam (section 5.3)."""
    weight_decay: Annotated[float, Limits(ge=0.0)] = 0.0
    """Decoupled weight decay, as in AdamW."""
    schedule: Literal["noam", "inverse_sqrt", "constant"] = "noam"
    """Learning rate schedule: `noam` is equation 3 of the paper, and the other two warm up to peak_lr."""
    lr_factor: PositiveFloat = 1.0
    """Factor of the `noam` schedule: lr = lr_factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5)."""
    peak_lr: PositiveFloat = 7e-4
    """Highest learning rate of the schedules `inverse_sqrt` and `constant`."""
    warmup_steps: PositiveInt = 4000
    """Steps over which the learning rate grows linearly."""
    lr_decay_ratio: Annotated[float, Limits(ge=0.0, le=1.0)] = 0.0
    """Last share of the budget of steps or minutes over which the learning rate falls linearly to zero."""
    label_smoothing: Probability = 0.1
    """Probability mass taken from the target token, ε_ls (section 5.4)."""
    label_smoothing_mode: Literal["uniform", "exclude_target", "exclude_target_and_pad"] = "uniform"
    """Tokens that share ε_ls: all V (PyTorch), all but the target (tensor2tensor), or all but target and padding (JoeyNMT)."""
    guided_alignment_weight: Annotated[float, Limits(ge=0.0, le=1e3)] = 0.0
    """Weight of the guided alignment loss, which trains one decoder head to attend to aligned source words; 0 turns it off."""
    alignment_layer: PositiveInt | None = None
    """Decoder layer of the alignment head, counted from 1, by default the last but one."""
    alignment_head: PositiveInt = 1
    """Alignment head in its layer, counted from 1."""
    clip_norm: PositiveFloat | None = None
    """Largest gradient norm; a larger gradient is scaled down to it."""
    grad_norm_spike_sigma: PositiveFloat | None = None
    """Standard deviations above the mean of the last 128 gradient norms beyond which a step is skipped."""
    max_consecutive_skips: PositiveInt = 10
    """Consecutive skipped steps, because of spikes or values that are not finite, after which `on_divergence` applies."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """Reaction to a diverged run: stop with a diagnosis, or continue from an earlier checkpoint with the data that follows."""
    ema_decay: Annotated[float, Limits(ge=0.0, lt=1.0)] | None = None
    """Decay of an exponential moving average of the weights, updated after each step; none by default."""
    log_every_steps: PositiveInt = 50
    """Steps between lines of the metrics log."""
    loggers: list[Literal["tensorboard", "mlflow", "wandb"]] = []
    """Loggers that get the metrics besides the metrics log; each needs the extra of its name."""
    validate_every_steps: PositiveInt = 1000
    """Steps between validations."""
    num_validation_translations: NonNegativeInt = 1000
    """Validation sentences to translate or parse with greedy search for BLEU or F1; 0 leaves loss and perplexity only."""
    patience: PositiveInt | None = None
    """Validations without improvement after which training stops early."""
    best_metric: Literal["loss", "bleu", "f1"] = "loss"
    """Metric of early stopping and of the best checkpoints: `bleu` for translation, `f1` for parsing; ties go to the loss."""
    checkpoint_every_steps: NonNegativeInt = 1000
    """Steps between checkpoints; 0 leaves it to checkpoint_every_minutes."""
    checkpoint_every_minutes: PositiveFloat | None = None
    """Minutes of wall-clock time between checkpoints."""
    checkpoint_url: str | None = None
    """Folder of an object store, such as s3://bucket/run, that gets a copy of each checkpoint and of the final bundle."""
    keep_last: PositiveInt = 5
    """Newest checkpoints to keep, at least num_averaged_checkpoints if checkpoint_averaging = 'last'."""
    keep_best: NonNegativeInt = 1
    """Best checkpoints to keep, at least num_averaged_checkpoints if checkpoint_averaging = 'best'."""
    checkpoint_averaging: Literal["last", "best", "ema", "none"] = "last"
    """Weights of the final bundle: mean of the newest or best checkpoints, moving average, or those of the last step; with
    init_from, `best` counts the start as a checkpoint."""
    num_averaged_checkpoints: PositiveInt = 5
    """Checkpoints to average if checkpoint_averaging is `last` or `best`."""

    @property
    def loss_extensions(self) -> tuple[LossExtension, ...]:
        """Return the extensions of this section: the losses that change that of the references."""
        return cast(tuple[LossExtension, ...], self.extensions)

    @property
    def has_teacher(self) -> bool:
        """Return whether another model of equal size reads each pair, too."""
        return any(extension.has_teacher for extension in self.loss_extensions)

    @property
    def num_candidates(self) -> int:
        """Return the number of outputs of each sentence that a step decodes and trains on."""
        return sum(extension.num_candidates for extension in self.loss_extensions)

    @model_validator
    def _check_fine_tuning(self) -> None:
        options = {
            "init_optimizer = 'keep'": self.init_optimizer == "keep",
            "freeze": bool(self.freeze),
            "lora": self.lora is not None,
        }
        used = [name for name, is_used in options.items() if is_used]
        if used and self.init_from is None:
            raise ValueError(f"{used[0]} needs a bundle to start from: give init_from, or drop it")
        if self.lora is not None and (self.freeze or self.init_optimizer == "keep"):
            excluded = "freeze" if self.freeze else "init_optimizer = 'keep'"
            raise ValueError(f"lora and {excluded} are given, but lora trains no weight of the bundle: drop one of the two")

    @model_validator
    def _check_consistency(self) -> None:
        if self.checkpoint_averaging == "best" and self.keep_best < self.num_averaged_checkpoints:
            raise ValueError(
                f"num_averaged_checkpoints = {self.num_averaged_checkpoints} needs as many in keep_best = {self.keep_best}"
            )
        if self.checkpoint_averaging == "last" and self.keep_last < self.num_averaged_checkpoints:
            raise ValueError(
                f"num_averaged_checkpoints = {self.num_averaged_checkpoints} needs as many in keep_last = {self.keep_last}"
            )
        if self.checkpoint_averaging == "ema" and self.ema_decay is None:
            raise ValueError("checkpoint_averaging = 'ema' needs a moving average: set ema_decay, such as 0.999")
        if self.best_metric != "loss" and not self.num_validation_translations:
            outputs = {"bleu": "translations", "f1": "trees"}[self.best_metric]
            raise ValueError(
                f"best_metric = {self.best_metric!r} needs {outputs} to score: set num_validation_translations, or "
                "best_metric = 'loss'"
            )
        if not self.checkpoint_every_steps and self.checkpoint_every_minutes is None:
            raise ValueError("no checkpoint is scheduled: give checkpoint_every_steps, checkpoint_every_minutes or both")
