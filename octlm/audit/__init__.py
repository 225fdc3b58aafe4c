"""Which claims does a language model keep? Checks on any model from ids to logits, octlm's or not, with torch alone.

causality   no logit sees a later token, another row, an earlier call, or how long the input is
dependency  what each position reads (a matrix, not a verdict)
cache       generation with a cache equals one full pass
resume      an interrupted training equals an uninterrupted one
parity      two implementations agree
targets     the target of each token is the one after it
health      an untrained model is fit to be trained
floor       the model does not know more than the generator of its text

Each gives a Finding, which prints as one line; nothing here knows octlm.
"""

from octlm.audit.cache import cache
from octlm.audit.causality import causality
from octlm.audit.dependency import dependency
from octlm.audit.finding import Finding
from octlm.audit.floor import floor
from octlm.audit.health import health
from octlm.audit.parity import parity
from octlm.audit.resume import resume
from octlm.audit.targets import targets

__all__ = ["Finding", "cache", "causality", "dependency", "floor", "health", "parity", "resume", "targets"]
