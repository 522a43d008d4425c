"""What texts of several clients as one batch could gain under LoRA: a bound on training LoRA clients in groups.

The frozen weights of a LoRA encoder are the same for all clients, so a group of K clients could pass it with one batch of their K
batches. The clients' own adapters can only add to that, so the time of a sample in a batch K times as large bounds the gain from
above. Measured is the CPU time (one thread) of forward and backward pass of MiniLM (22.7 M parameters, adapters of rank 8) per
sample, for clients with 8 or 16 texts a batch, groups of 4, and texts of 12, 20 and 32 tokens; sizes take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from machine import facts, spread

from fedpriv.models.text.pretrained import find_encoder
from fedpriv.models.text.transformer import text_encoder

BATCHES, GROUP, TOKENS = (8, 16), 4, (12, 20, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = text_encoder(find_encoder("minilm", []), "lora").train()
    adapters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]

    def seconds(samples: int, tokens: int) -> float:
        """Of forward and backward pass, per sample."""
        ids = torch.randint(1000, 20_000, (samples, tokens))
        began = time.process_time()
        torch.autograd.grad(encoder(ids).square().sum(), adapters)
        return (time.process_time() - began) / samples

    seconds(8, 12)  # warms up
    results: dict[str, Any] = {"benchmark": "lora_batch", **facts(("fedpriv", "torch")), "group": GROUP, "rows": []}
    for tokens in TOKENS:
        for batch in BATCHES:
            pairs = [(seconds(batch, tokens), seconds(GROUP * batch, tokens)) for _ in range(options.repeats)]
            alone = spread([1000 * one for one, _ in pairs])
            bound = spread([one / other for one, other in pairs])
            results["rows"].append({"tokens": tokens, "batch": batch, "ms_a_sample": alone, "at_most_times_as_fast": bound})
            span = f"{bound['median']:.2f} times as fast ({bound['min']:.2f}-{bound['max']:.2f})"
            said = f"{tokens} tokens, batch {batch}: {GROUP} clients together at most {span}"
            print(f"{said}; alone {alone['median']:.1f} ms a text", flush=True)
    print(f"on {results['processor']}, load {results['load_average']}, Python {results['python']}, {results['versions']}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
