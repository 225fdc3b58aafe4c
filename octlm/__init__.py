"""octlm trains, samples and proves a tiny decoder-only language model.

Reading order of the core path, an afternoon in all:

1. config.py      what a run is: typed, frozen sections, read from YAML
2. model/         ids -> logits: masks, norms, mlp, positions, attention, decoder; cache last
3. tokenizer.py   text <-> ids
4. corpus/, data.py   text -> token files -> batch(step, slice)
5. optim.py       the update and the learning-rate schedules
6. loop.py        the one training loop, from the first check to the last checkpoint
7. checkpoint.py  what a run leaves behind, and how it goes on bit for bit
8. sampling.py    logits -> the next id, with and without the cache

The names below are imported when they are first used: `import octlm` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octlm import audit as audit
    from octlm.checkpoint import load_run as load_run
    from octlm.config import ModelConfig as ModelConfig
    from octlm.model import CausalSelfAttention as CausalSelfAttention
    from octlm.model import Decoder as Decoder
    from octlm.model import KVCache as KVCache
    from octlm.model import attention_mask as attention_mask
    from octlm.model import causal_attention as causal_attention
    from octlm.sampling import generate as generate
    from octlm.sampling import stream as stream

EXPORTS = {
    "ModelConfig": "octlm.config",
    "Decoder": "octlm.model",
    "KVCache": "octlm.model",
    "CausalSelfAttention": "octlm.model",
    "attention_mask": "octlm.model",
    "causal_attention": "octlm.model",
    "generate": "octlm.sampling",
    "stream": "octlm.sampling",
    "load_run": "octlm.checkpoint",
}


def __getattr__(name: str) -> Any:
    """Import the exported `name` from its module on first use."""
    if name == "audit":
        return import_module("octlm.audit")
    if name not in EXPORTS:
        raise AttributeError(f"module 'octlm' has no attribute {name!r}")
    value = getattr(import_module(EXPORTS[name]), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    """Return the exported names, loaded or not, beside what is there already."""
    return sorted({*globals(), *EXPORTS, "audit"})
