"""Transformers as text encoders: what is padding does not count, and what learns is what should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_encoders import TEXTS, encoder, shape
from torch.func import functional_call, grad, vmap
from transformers import AutoModel

from fedpriv.data.tokens import tokenise
from fedpriv.errors import UsageError
from fedpriv.models.registry import assemble
from fedpriv.models.text.transformer import features, text_encoder
from fedpriv.parameters import ParameterSpace

KINDS = ["Bert", "Roberta", "DistilBert", "Albert", "Electra", "MPNet", "DebertaV2", "ModernBert", "GPT2", "Llama", "T5"]


@pytest.fixture(autouse=True)
def _the_same_weights_every_time() -> None:
    torch.manual_seed(0)


def token_ids() -> torch.Tensor:
    return tokenise(TEXTS, encoder().tokenizer, 40)[0].long()


def wider(ids: torch.Tensor, by: int = 7) -> torch.Tensor:
    return torch.cat([ids, ids.new_full((len(ids), by), encoder().pad)], 1)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_more_padding_changes_neither_outputs_nor_gradients(pooling: str) -> None:
    net, ids = text_encoder(encoder(pooling=pooling), "full").eval(), token_ids()
    results = []
    for shown in (ids, wider(ids)):
        out = net(shown)
        out.square().sum().backward()
        results.append((out.detach(), [p.grad.clone() for p in net.parameters() if p.grad is not None]))
        net.zero_grad()
    (alone, gradients), (other, others) = results
    torch.testing.assert_close(alone, other, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(gradients, others, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_trimming_takes_off_the_padding_that_all_have() -> None:
    net, ids = text_encoder(encoder(), "full"), token_ids()
    assert torch.equal(net.trim(wider(ids)), ids)
    short = net.trim(ids[[0, 3]])
    assert short.shape[1] == 6 and torch.equal(net.lengths(short), torch.tensor([6, 3]))  # [CLS] where is my card [SEP]
    assert net.trim(torch.full((2, 5), net.pad)).shape == (2, 1)


def test_pooling_against_a_loop() -> None:
    ids, pad = token_ids(), encoder().pad
    mean, cls, pooler = (text_encoder(encoder(pooling=pooling), "full").eval() for pooling in ("mean", "cls", "pooler"))
    pooler.transformer.load_state_dict(mean.transformer.state_dict(), strict=False)
    cls.transformer.load_state_dict(mean.transformer.state_dict())
    for row in ids:
        own = row[row != pad]
        outputs = pooler.transformer(input_ids=own[None])
        states = outputs.last_hidden_state[0]
        total = torch.zeros(16)
        for state in states:
            total = total + state
        torch.testing.assert_close(mean(row[None])[0], total / len(own))
        torch.testing.assert_close(cls(row[None])[0], states[0])
        torch.testing.assert_close(pooler(row[None])[0], outputs.pooler_output[0])


@pytest.mark.parametrize("kind", KINDS)
def test_any_architecture_says_what_transformers_says(kind: str) -> None:
    net, ids = text_encoder(encoder(kind), "full").eval(), token_ids()
    mask = ids.ne(encoder().pad)
    states = net.transformer(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    expected = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    torch.testing.assert_close(net(ids), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net(wider(ids)), expected, rtol=1e-4, atol=1e-5)


def test_sample_by_sample_as_torch_func_takes_it() -> None:
    net, ids = text_encoder(encoder(), "full").eval(), token_ids()
    assert net.by_sample and not text_encoder(encoder("GPT2"), "full").by_sample  # which is causal
    parameters = dict(net.named_parameters())

    def loss(own: Any, row: torch.Tensor) -> torch.Tensor:
        return functional_call(net, own, (row[None],)).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(parameters, ids)
    for place, row in enumerate(ids):
        alone = torch.autograd.grad(net(net.trim(row[None])).square().sum(), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, alone, strict=True):
            expected = torch.zeros_like(parameters[name]) if gradient is None else gradient
            torch.testing.assert_close(together[name][place], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 128])
def test_features_come_in_the_order_of_the_texts(chunk: int) -> None:
    net, ids = text_encoder(encoder(), "head"), wider(token_ids())
    vectors = features(net, ids, chunk)
    for row, own in zip(ids, vectors, strict=True):
        torch.testing.assert_close(net(net.trim(row[None]))[0], own)
    assert not net.training and not vectors.requires_grad


def test_lora_starts_as_the_model_and_is_all_that_learns() -> None:
    seen = []
    for tune in ("full", "lora"):
        torch.manual_seed(3)
        seen.append(text_encoder(encoder(), tune).eval())  # type: ignore[arg-type]
    base, lora = seen
    assert torch.equal(base(token_ids()), lora(token_ids()))
    learnt = {name for name, parameter in lora.named_parameters() if parameter.requires_grad}
    assert learnt and all("lora_" in name for name in learnt)
    net = assemble(lora, 16, (40,), 3, 8)
    space = ParameterSpace.of(net)
    assert {name for name in space.names if name.startswith("encoder.")} == {"encoder." + name for name in learnt}
    assert space.size == 2 * 2 * (2 * 16 * 8) + sum(p.numel() for p in (*net.projector.parameters(), *net.head.parameters()))


@pytest.mark.parametrize(("tune", "learns"), [("full", True), ("head", False)])
def test_all_of_it_learns_or_nothing(tune: Any, learns: bool) -> None:
    assert {p.requires_grad for p in text_encoder(encoder(), tune).parameters()} == {learns}


def test_a_pooler_that_nothing_comes_out_of_is_left_out() -> None:
    assert AutoModel.from_config(shape("Bert")).pooler is not None
    assert not any("pooler" in name for name, _ in text_encoder(encoder(), "full").named_parameters())
    with pytest.raises(UsageError, match=r"has no pooler; --set model\.pooling=mean"):
        text_encoder(encoder("DistilBert", "pooler"), "full")


def test_lora_where_peft_knows_no_place_for_it() -> None:
    with pytest.raises(UsageError, match=r"peft has no LoRA target for MPNet \(mpnet\); use model\.tune full or head"):
        text_encoder(encoder("MPNet"), "lora")


def test_constants_that_a_net_computes_for_itself_are_no_state() -> None:
    net = assemble(text_encoder(encoder("ModernBert"), "full"), 16, (40,), 3)
    assert any("inv_freq" in name for name, _ in net.named_buffers())
    assert not any("inv_freq" in name for name in ParameterSpace.of(net).names)
