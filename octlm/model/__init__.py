"""The decoder and its parts: ids -> logits, every variant chosen at construction from a table.

Reading order: norms, mlp, positions, masks, cache, attention, decoder.

Shapes, in every comment of this package:
B rows, T queries, S keys, C model width, H heads, K key-value heads, D head width, F hidden width, V vocabulary.
"""

from octlm.model.attention import CausalSelfAttention, causal_attention
from octlm.model.cache import KVCache
from octlm.model.decoder import Decoder
from octlm.model.masks import attention_mask

__all__ = ["CausalSelfAttention", "Decoder", "KVCache", "attention_mask", "causal_attention"]
