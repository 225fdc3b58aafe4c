"""How is the residual stream kept at a steady scale?

layernorm   y = (x - mean(x)) / sqrt(var(x) + eps) * gain + bias     Ba, Kiros, Hinton 2016, arXiv 1607.06450
rmsnorm     y = x / sqrt(mean(x^2) + eps) * gain                     Zhang, Sennrich 2019, arXiv 1910.07467

Both are torch's own modules, built as `NORMS[name](width, eps=eps)`.
"""

from torch import nn

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}
