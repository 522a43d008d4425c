"""Which versions of fedpriv work together: those whose code computes the same, by a hash of its files."""

from __future__ import annotations

import pytest

from fedpriv.deploy.versions import WITH_EFFECT, WITHOUT_EFFECT, check_code, code_hash, code_version
from fedpriv.errors import UsageError
from tests.test_arrows import imports

HASH = code_hash(code_version())


@pytest.mark.parametrize("code", [code_version(), f"0.0.9+{HASH}", f"9.9+local.1+{HASH}"])
def test_other_versions_of_the_same_code_work_together(code: str) -> None:
    check_code(code, "client 2 runs")


@pytest.mark.parametrize("code", [f"0.1.0+{'0' * 12}", "0.1.0", "", f"{HASH}+0.1.0", None, 7, ["0.1.0"]])
def test_other_code_is_named_with_both_versions_and_what_to_do(code: object) -> None:
    with pytest.raises(UsageError) as refused:
        check_code(code, "client 2 runs")
    assert str(refused.value) == (
        f"client 2 runs fedpriv {code}, and here is fedpriv {code_version()}, which may compute other numbers; "
        "install the same version on all machines, and start them again"
    )


def test_what_the_hash_leaves_out_is_not_imported_by_what_computes_a_run() -> None:
    reached, left = set[str](), ["fedpriv.deploy.client.client_node", "fedpriv.deploy.remote_clients", "fedpriv.server.rounds"]
    while left:
        if (module := left.pop()) not in reached and module.startswith("fedpriv."):
            reached.add(module)
            left += [imported.module for imported in imports()[module] if imported.when != "for types"]
    assert len(reached) > 100
    files = {f"{module.removeprefix('fedpriv.').replace('.', '/')}.py" for module in reached}
    assert {file for file in files if file.split("/")[0] in WITHOUT_EFFECT} == WITH_EFFECT
