"""Late fusion of an image and a text, and of what there is of them."""

from __future__ import annotations

import torch
from small_encoders import TEXTS, encoder
from torch import nn

from fedpriv.data.tokens import tokenise
from fedpriv.models.pairs.fusion import WIDTH, Branch, Fusion
from fedpriv.models.registry import model_spec
from fedpriv.models.text.transformer import text_encoder
from fedpriv.samples import Pairs

IMAGES = torch.randn(len(TEXTS), 3, 32, 32, generator=torch.Generator().manual_seed(0))


def fusion() -> Fusion:
    torch.manual_seed(0)
    image, width = model_spec("resnet18").build((3, 32, 32))
    return Fusion(Branch(image, width), Branch(text_encoder(encoder(), "full"), 16))


def token_ids() -> torch.Tensor:
    return tokenise(TEXTS, encoder().tokenizer, 40)[0].long()


def test_side_by_side_each_through_linear_and_relu() -> None:
    net = fusion().eval()
    outputs = net(Pairs(IMAGES, token_ids()))
    assert outputs.shape == (len(TEXTS), 2 * WIDTH) == (len(TEXTS), 1024)
    for branch, shown, half in ((net.image, IMAGES, outputs[:, :WIDTH]), (net.text, token_ids(), outputs[:, WIDTH:])):
        expected = (branch.encoder(shown) @ branch.fc.weight.T + branch.fc.bias).clamp(min=0)
        torch.testing.assert_close(half, expected)


def test_what_is_not_there_is_zeros_and_its_branch_is_untouched() -> None:
    net = fusion().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for there, gone, pairs in (("image", "text", Pairs(IMAGES, None)), ("text", "image", Pairs(None, token_ids()))):
        net.zero_grad()
        out = net(pairs)
        half = out[:, WIDTH:] if gone == "text" else out[:, :WIDTH]
        assert (half == 0).all()
        out.sum().backward()
        assert all(p.grad is None or not p.grad.any() for p in getattr(net, gone).parameters())
        assert any(p.grad is not None and p.grad.any() for p in getattr(net, there).parameters())
        if gone == "image":  # nor BatchNorm's statistics
            continue
        changed = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}
        assert changed and all("running" in name or "num_batches" in name for name in changed)
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_the_half_that_is_there_is_the_half_of_the_whole() -> None:
    net = fusion().eval()
    whole = net(Pairs(IMAGES, token_ids()))
    assert torch.equal(net(Pairs(IMAGES, None))[:, :WIDTH], whole[:, :WIDTH])
    assert torch.equal(net(Pairs(None, token_ids()))[:, WIDTH:], whole[:, WIDTH:])


def test_trimming_a_pair_trims_its_text() -> None:
    net = fusion()
    ids = token_ids()
    wide = torch.cat([ids, ids.new_full((len(ids), 5), encoder().pad)], 1)
    image, text = net.trim(Pairs(IMAGES, wide))
    assert image is not None and torch.equal(image, IMAGES) and image.is_contiguous(memory_format=torch.channels_last)
    assert text is not None and torch.equal(text, ids)
    assert net.trim(Pairs(None, wide))[0] is None and net.trim(Pairs(IMAGES, None))[1] is None
    frozen = Fusion(Branch(nn.Identity(), 7), Branch(nn.Identity(), 16))
    features = Pairs(torch.randn(2, 7), torch.randn(2, 16))
    assert frozen.trim(features) == features and frozen(features).shape == (2, 1024)
