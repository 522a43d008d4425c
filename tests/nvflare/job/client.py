"""The training script of a site, in the form of NVFlare's examples."""

from __future__ import annotations

import nvflare.client as flare
import torch
from model import TRAINING, SimpleNetwork, inputs  # type: ignore[import-not-found]
from torch.nn import functional as F


def main() -> None:
    torch.set_num_threads(1)
    flare.init()
    site = flare.system_info()["site_name"]
    model = SimpleNetwork()
    optimizer = torch.optim.SGD(model.parameters(), lr=TRAINING["lr"])
    images, labels = inputs(site)
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(tensor) for name, tensor in received.params.items()})
        draws = torch.Generator().manual_seed(received.current_round)
        for _ in range(TRAINING["local_epochs"]):
            for batch in torch.randperm(len(labels), generator=draws).split(TRAINING["batch_size"]):
                optimizer.zero_grad()
                F.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
        flare.send(flare.FLModel(params=model.cpu().state_dict(), metrics={"accuracy": 0.0}, meta={"NUM_STEPS_CURRENT_ROUND": 4}))


if __name__ == "__main__":
    main()
