"""The job, in the form of NVFlare's examples: ``job.py WORKSPACE INITIAL-WEIGHTS FULL|DIFF [FOLDER]``."""

from __future__ import annotations

import sys

import torch
from model import MEAN, ROUNDS, SITES, STD, TRAINING, SimpleNetwork  # type: ignore[import-not-found]
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv


def main() -> None:
    workspace, initial, transfer, *folder = sys.argv[1:]
    torch.save(SimpleNetwork().state_dict(), initial)
    recipe = FedAvgRecipe(
        name="job",
        min_clients=SITES,
        num_rounds=ROUNDS,
        model=SimpleNetwork(),
        initial_ckpt=initial,
        train_script="client.py",
        params_transfer_type=TransferType[transfer],
    )
    for at in ("clients", "server") if folder else ():
        import fedpriv.nvflare

        fedpriv.nvflare.record(
            recipe, f"{folder[0]}/{at}", at=at, classes=10, input_shape=(3, 32, 32), net=SimpleNetwork, training=TRAINING,
            mean=MEAN, std=STD, truth="model:samples", public="model:others",
        )  # fmt: skip
    recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace))


if __name__ == "__main__":
    main()
