"""What `grader try` tells to write: as the script's framework has it, in real processes."""

import sys
import textwrap

from grader.own import trying
from grader.own.trying import Lever, Rung
from tests.own_jobs import LOOK

TRAINER = """
    import torch
    def train(model, data):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4000):
            for x, y in torch.utils.data.DataLoader(data, batch_size=32):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
"""
SCRIPT = """
    import torch
    from transformers import trainer
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    trainer.train(torch.nn.Linear(8, 1), data)
"""


def test_a_trainer_that_makes_loader_and_optimizer_has_its_own_words(tmp_path):
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text(textwrap.dedent(TRAINER))
    (tmp_path / "job.py").write_text(textwrap.dedent(SCRIPT))
    names = ("loader", "autocast", "fused", "tf32")
    rung = Rung(tuple(Lever(name, name, "", values={"workers": 1}) for name in names))
    trying._run(rung, [sys.executable, str(tmp_path / "job.py")], LOOK, tmp_path, 600)
    assert not rung.why_not
    assert [line.partition("(")[2].rstrip(")") for line in rung.to_write] == [
        "dataloader_num_workers=1, dataloader_persistent_workers=True, dataloader_prefetch_factor=4",
        "bf16=True",
        'optim="adamw_torch_fused"',
        "tf32=True",
    ]
    assert all(line.startswith("TrainingArguments(") for line in rung.to_write)
