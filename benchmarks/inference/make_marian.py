"""Main program that writes a MarianMT model with random weights by transformers, in the peers' environment.

    python -m inference.make_marian FOLDER VOCABULARY

The sizes are those of the OPUS-MT models. The folder already has the tokenizer's files.
"""

from __future__ import annotations

import sys
from typing import Any


def write_model(folder: str, vocabulary: int) -> None:
    """Write `config.json`, `generation_config.json` and the weights. The last id is padding, with which outputs start."""
    import torch
    import transformers

    library: Any = transformers  # its annotations refuse keywords from a dictionary
    sizes = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("layers", 6), ("ffn_dim", 2048), ("attention_heads", 8))
    }
    padding, end = vocabulary - 1, 0
    special = {"pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": end, "bos_token_id": end}
    torch.manual_seed(1)
    model = library.MarianMTModel(
        library.MarianConfig(
            vocab_size=vocabulary,
            d_model=512,
            activation_function="swish",
            scale_embedding=True,
            max_position_embeddings=512,
            forced_eos_token_id=None,
            **sizes,
            **special,
        )
    )
    model.generation_config = library.GenerationConfig(num_beams=4, max_length=512, bad_words_ids=[[padding]], **special)
    model.save_pretrained(folder)


if __name__ == "__main__":
    write_model(sys.argv[1], int(sys.argv[2]))
