"""The job, in the form of NVFlare's examples: ``job.py WORKSPACE INITIAL-WEIGHTS FULL|DIFF [FOLDER]``."""

from __future__ import annotations

import sys

import torch
from model import SimpleNetwork  # type: ignore[import-not-found]
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv


def main() -> None:
    workspace, initial, transfer, *folder = sys.argv[1:]
    torch.manual_seed(0)
    torch.save(SimpleNetwork().state_dict(), initial)
    recipe = FedAvgRecipe(
        name="job",
        min_clients=2,
        num_rounds=2,
        model=SimpleNetwork(),
        initial_ckpt=initial,
        train_script="client.py",
        params_transfer_type=TransferType[transfer],
    )
    for at in ("clients", "server") if folder else ():
        import fedpriv.nvflare

        training = {"lr": 0.05, "local_epochs": 1, "batch_size": 8}
        fedpriv.nvflare.record(
            recipe, f"{folder[0]}/{at}", at=at, classes=10, input_shape=(3, 32, 32), net=SimpleNetwork,
            training=training, truth="model:samples", public="model:others",
        )  # fmt: skip
    recipe.execute(SimEnv(num_clients=2, workspace_root=workspace))


if __name__ == "__main__":
    main()
