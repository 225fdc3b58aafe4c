"""Which claims does a language model keep? Checks on any `nn.Module` from ids to logits, octlm's or not.

Each audit returns a Finding; nothing here knows octlm.
"""

from octlm.audit.causality import causality
from octlm.audit.finding import Finding

__all__ = ["Finding", "causality"]
