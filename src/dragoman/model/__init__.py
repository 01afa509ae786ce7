"""The encoder-decoder Transformer of "Attention Is All You Need": tensors in, tensors out.

A model, a forward pass, the paper's loss and greedy decoding on the caller's own tensors::

    import torch
    from dragoman.config import ModelConfig
    from dragoman.decoding.greedy import decode_tokens
    from dragoman.decoding.interface import SearchSettings
    from dragoman.model import build_model
    from dragoman.torch_engine.arrays import TorchArrays

    source, target = torch.randint(4, 100, (2, 7)), torch.randint(4, 100, (2, 9))  # token ids, (B, S) and (B, T)
    model = build_model(ModelConfig(d_model=64, d_ff=128), source_vocab_size=100, target_vocab_size=100, padding_id=0)
    inputs = torch.cat([torch.full((2, 1), 2), target[:, :-1]], dim=1)  # the start token is 2
    logits = model(source, inputs)  # (B, T, V)
    loss = torch.nn.functional.cross_entropy(logits.mT, target, ignore_index=0, label_smoothing=0.1)
    loss.backward()
    with torch.no_grad():
        settings, state = SearchSettings(start_id=2, end_id=3), model.eval().start(source)
        arrays = TorchArrays(source.device)
        outputs = decode_tokens(model.step, state, max_lengths=[20, 20], settings=settings, arrays=arrays)

Sources and targets are padded on the right with `padding_id`. Each output is a `dragoman.decoding.hypothesis.Hypothesis`.

Dimensions, as suffixes of tensor names in this package and in `dragoman.decoding`:

    B sentences    N rows of the decoder (B, or B times the beam size)    S source length    T target length
    D d_model    H heads    K key width of a head    U value width of a head    V vocabulary size
"""

from dragoman.model.attention import Attention, KeyValue, record_attention, set_attention_impl
from dragoman.model.factory import build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward
from dragoman.model.transformer import Decoder, DecoderState, Encoder, Transformer, set_matmul_impl

__all__ = [
    "Attention",
    "Decoder",
    "DecoderLayer",
    "DecoderState",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeyValue",
    "Transformer",
    "build_model",
    "record_attention",
    "set_attention_impl",
    "set_matmul_impl",
]
