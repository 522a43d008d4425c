"""An upper bound on the gain from training LoRA clients in groups: the texts of several clients in one batch.

The frozen weights of a LoRA encoder are the same for all clients, so a group of K clients could pass through it as one batch. The
clients' separate adapters can only add to the cost, so the time per sample in a batch K times as large bounds the gain. Measures
the CPU time (one thread) per sample of MiniLM's forward and backward pass (22.7 M parameters, adapters of rank 8), for clients
with 8 or 16 texts a batch, groups of 4, and texts of 12, 20 and 32 tokens; sizes take turns.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from machine import facts, parser_of, report, spread

from fedpriv.models.text.pretrained import find_encoder
from fedpriv.models.text.transformer import text_encoder

BATCHES, GROUP, TOKENS = (8, 16), 4, (12, 20, 32)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = text_encoder(find_encoder("minilm", []), "lora").train()
    adapters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]

    def seconds(samples: int, tokens: int) -> float:
        """Seconds of a forward and backward pass, per sample."""
        ids = torch.randint(1000, 20_000, (samples, tokens))
        began = time.process_time()
        torch.autograd.grad(encoder(ids).square().sum(), adapters)
        return (time.process_time() - began) / samples

    seconds(8, 12)  # warms up
    results: dict[str, Any] = {"benchmark": "lora_batch", **facts(("fedpriv", "torch")), "group": GROUP, "rows": []}
    for tokens in TOKENS:
        for batch in BATCHES:
            pairs = [(seconds(batch, tokens), seconds(GROUP * batch, tokens)) for _ in range(options.repeats)]
            alone = spread([1000 * single for single, _ in pairs])
            bound = spread([single / group for single, group in pairs])
            results["rows"].append({"tokens": tokens, "batch": batch, "ms_a_sample": alone, "at_most_times_as_fast": bound})
            span = f"{bound['median']:.2f} times as fast ({bound['min']:.2f}-{bound['max']:.2f})"
            print(
                f"{tokens} tokens, batch {batch}: {GROUP} clients together at most {span}; alone {alone['median']:.1f} ms a text",
                flush=True,
            )
    report(results, options.json)


if __name__ == "__main__":
    main()
