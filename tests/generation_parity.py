"""Comparison of a converted model with a model of `transformers`: logits, and outputs of greedy and beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.inference.translator import Translator

MAX_EXTRA_TOKENS = 20
TIE_MARGIN = 1e-5
"""Difference of two scores that rounding in float32 may reverse."""
SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"num_beams": 1}, {"method": "greedy"}),
    "beam": (
        {"num_beams": 4, "early_stopping": False, "length_penalty": 1.0},
        {"method": "beam", "beam_size": 4, "early_stopping": "heuristic", "length_penalty": "power", "alpha": 1.0},
    ),
    "beam full": ({"num_beams": 4, "early_stopping": True}, {"method": "beam", "beam_size": 4, "early_stopping": "beam_full"}),
    "no length penalty": (
        {"num_beams": 4, "early_stopping": False, "length_penalty": 0.0},
        {"method": "beam", "beam_size": 4, "early_stopping": "heuristic", "alpha": 0.0},
    ),
}
"""Options of `generate` of transformers, and those of dragoman."""


@dataclass
class Peer:
    """Model of transformers and the translator of its conversion.

    encode: returns the source's ids of a line, from an independent tokenizer
    source_ids, target_ids: dragoman's id of each id of the source
    silent_ids: ids that no output of dragoman contains
    prompt: ids that the decoder reads after its start token
    options: options of each translation
    start_id: id with which the decoder of the source starts
    """

    model: Any
    translator: Translator
    encode: Callable[[str], list[int]]
    source_ids: list[int]
    target_ids: list[int]
    silent_ids: list[int]
    prompt: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    start_id: int = 2

    @torch.no_grad()
    def generate(self, lines: Sequence[str], options: dict[str, Any]) -> list[list[int] | None]:
        """Return the outputs of transformers in dragoman's ids, and None for a tie of the two best within `TIE_MARGIN`.

        Sources of one length form a batch, so none has padding.
        """
        sources = [self.encode(line) for line in lines]
        outputs: dict[int, list[int] | None] = {}
        count = min(2, options["num_beams"])
        for length in sorted({len(source) for source in sources}):
            indices = [index for index, source in enumerate(sources) if len(source) == length]
            batch = self.model.generate(
                torch.tensor([sources[index] for index in indices]),
                max_new_tokens=length + MAX_EXTRA_TOKENS + len(self.prompt),
                max_length=None,
                forced_eos_token_id=None,
                forced_bos_token_id=self.prompt[0] if self.prompt else None,
                bad_words_ids=[[index] for index in self.silent_ids],
                do_sample=False,
                num_return_sequences=count,
                output_scores=True,
                return_dict_in_generate=True,
                **options,
            )
            rows = [[self.target_ids[token] for token in row[1 + len(self.prompt) :]] for row in batch.sequences.tolist()]
            for position, index in enumerate(indices):
                outputs[index] = rows[count * position]
                if count == 2:
                    best, second = batch.sequences_scores[2 * position : 2 * position + 2].tolist()
                    outputs[index] = None if best - second < TIE_MARGIN else outputs[index]
        return [outputs[index] for index in range(len(lines))]

    def check_outputs(self, lines: Sequence[str], search: str) -> int:
        """Check that outputs are equal, and return their number.

        Of a beam search, only outputs that end by themselves count: at the length limit, transformers counts a cut hypothesis
        as finished.
        """
        generate_options, decoding = SEARCHES[search]
        target, num_compared = self.translator.bundle.tokenizer.target, 0
        translations = self.translator.translate(
            list(lines), max_extra_tokens=MAX_EXTRA_TOKENS, repetition_window=0, **self.options, **decoding
        )
        for line, translation, output in zip(lines, translations, self.generate(lines, generate_options), strict=True):
            if output is None:
                continue
            tokens = [target.piece_to_id(piece) for piece in translation.tokens]
            if END_ID in output:
                assert tokens == output[: output.index(END_ID)], line
            elif decoding["method"] == "greedy":
                assert translation.status == "truncated"
                assert len(tokens) >= MAX_EXTRA_TOKENS
                assert tokens == output, line
            else:
                continue
            num_compared += 1
        return num_compared

    @torch.no_grad()
    def check_logits(self, lines: Sequence[str], forward: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        """Check that the logits of random targets differ by at most 3e-5.

        forward: returns the logits of the source; by default those of `model`
        """
        chance = torch.Generator().manual_seed(1)
        source_ids, target_ids = torch.tensor(self.source_ids), torch.tensor(self.target_ids)
        for line in lines:
            source = torch.tensor([self.encode(line)])
            targets = torch.randint(4, len(target_ids), (1, 12), generator=chance)
            inputs = torch.cat([torch.tensor([[self.start_id, *self.prompt]]), targets], dim=1)
            expected = self._compute_logits(source, inputs) if forward is None else forward(source, inputs)
            logits = self.translator.bundle.model(source_ids[source], target_ids[inputs])
            logits, is_excluded = logits[:, :, target_ids], expected == -torch.inf
            assert (logits[is_excluded] < -1e4).all()
            torch.testing.assert_close(logits[~is_excluded], expected[~is_excluded], rtol=0, atol=3e-5)

    def _compute_logits(self, source: Tensor, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=source, decoder_input_ids=inputs, use_cache=False).logits
        return logits


def map_ids(translator_pieces: Callable[[str], int | None], tokens: Sequence[str]) -> list[int]:
    """Return dragoman's id of each token of a source."""
    special = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3}
    ids = [special[token] if token in special else translator_pieces(token) for token in tokens]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    return [index for index in ids if index is not None]


def shrink_and_favor_end(embeddings: Sequence[Tensor], output: Tensor, norm_bias: Tensor, end_id: int) -> None:
    """Make random weights with which most outputs end, some early and some late.

    Small embeddings hide the last token, so that outputs do not repeat it. The bias of the last normalization moves towards the
    vector of the end token, by about three standard deviations of a logit.
    """
    with torch.no_grad():
        for embedding in embeddings:
            embedding *= 0.1
        vector = output[end_id]
        norm_bias.copy_(2.8 * output.std() * len(vector) ** 0.5 * vector / vector.dot(vector))
