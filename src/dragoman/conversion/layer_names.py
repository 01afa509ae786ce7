"""Names of the parts of a layer, which fairseq, MarianMT, M2M-100 and FSMT share."""

from __future__ import annotations

LAYER_PARTS = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "self_attn_layer_norm": "attention_residual.norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_residual.norm",
}
"""Parts of a layer: name in the source → name in dragoman."""
CROSS_ATTENTION_PARTS = {
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
}
