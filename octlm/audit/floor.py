"""Does a model know the answer? A bet against it, on text whose exact probability is known.

Theorem. Let the text x be drawn from p, and let q be a model: q(x) >= 0 and the sum over all x of q(x) is at most 1,
as it is when each symbol's distribution sees only the symbols before it. Then E_p[q(x) / p(x)] is the sum of q(x) over
all x with p(x) > 0, at most 1, and by Markov's inequality, for every alpha,

    P(q(x) / p(x) >= 1 / alpha) <= alpha                                 (x ~ p)

So q(x) / p(x) is an e-value (Vovk and Wang 2021, arXiv 1912.06116; the likelihood ratio as a bet: Shafer 2021, JRSS A
184(2)): a model that reaches 1 / alpha beats the generator itself, and an honest one does that with probability alpha
at most. A model that sees its targets is no distribution and is not held by the bound.

Assumptions, and how to meet them:
- q and p score the same symbols: the first token, the end of the text, and every tail of a window. A token left out
  of log q raises it.
- each text has one derivation (the grammar is unambiguous), so that p(x) is the probability of the text.
- the texts are p's own draws: nothing was dropped because it was seen before.
- q was fixed before it saw them. A checkpoint that was chosen by its loss on them was not: draw fresh texts, or give
  `looks`, how many were tried, by which the e-value is divided (the largest is at most the sum of all).
- log-softmax and sums in float64.

A validation loss below the generator's entropy is a hint and no proof: the best checkpoint was chosen by it, and which
documents validate is no draw of p's. Score fresh texts.
"""

import math
from collections.abc import Sequence

from octlm.audit.finding import Finding

CLAIM = "the model does not know more than the generator of the text"


def floor(log_q: Sequence[float], log_p: Sequence[float], *, alpha: float = 1e-6, looks: int = 1) -> Finding:
    """Weigh a model's log-probabilities of independent texts against the generator's; both natural logarithms.

    Holds unless the e-value, the product of q / p over `looks`, reaches 1 / alpha; an honest model fails with
    probability alpha at most. worst is the e-value (inf where it overflows). Raises ValueError for lists of different
    lengths, an empty one, a NaN, a log-probability above 0, an infinite log_p, alpha outside (0, 1), or looks below 1.
    """
    log_q, log_p = [float(x) for x in log_q], [float(x) for x in log_p]
    if len(log_q) != len(log_p) or not log_q:
        raise ValueError(f"floor: {len(log_q)} and {len(log_p)} texts: need as many, and one at least")
    if not 0 < alpha < 1 or looks < 1:
        raise ValueError(f"floor: alpha={alpha}, looks={looks}: need 0 < alpha < 1 and looks >= 1")
    if not all(math.isfinite(p) and p <= 0 for p in log_p) or not all(q <= 0 for q in log_q):
        raise ValueError("floor: log_q and log_p must be at most 0 and no NaN, and log_p finite")
    excess = math.fsum(log_q) - math.fsum(log_p)  # -inf where q rules a text out
    log_e = excess - math.log(looks)
    e_value = math.exp(log_e) if log_e < 709 else math.inf
    ok = log_e < -math.log(alpha)
    per_text = excess / len(log_q) / math.log(2)
    where = "" if ok else f"e-value 10^{log_e / math.log(10):.1f}: {per_text:.1f} bits a text below the floor"
    return Finding(CLAIM, ok, e_value, 1 / alpha, where, len(log_q))
