"""`harness run` with a loss from a user's own file."""

from pathlib import Path

from tests.conftest import Harness


def test_a_users_own_loss_is_named_by_its_file_and_class_and_its_text(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    text = (
        "from losses.base import Loss\n\n\nclass Mine(Loss):\n    title, cite = 'Mine', 'me'\n\n"
        "    def __init__(self, num_classes, dim, *, factor: float = 1.0):\n"
        "        super().__init__(num_classes, dim)\n        self.factor = factor\n\n"
        "    def forward(self, embeddings, labels):\n        return self.factor * embeddings.square().mean()\n"
    )
    file.write_text(text)
    words = ("run", "--losses", f"{file}:Mine", "--dataset", "blobs", "--set", "mine.Mine.factor=2")
    assert "| Mine" in harness(*words).out
    assert harness(*words).err == ""
    file.write_text(text + "# edited\n")
    assert "[1/1] mine.Mine-" in harness(*words).err
    for losses, complaint in (
        (f"{file}:Other", "no loss in mine.py named 'Other'; known: Mine"),
        (f"{tmp_path}/no.py:Mine", "no such file"),
    ):
        said = harness("run", "--losses", losses, "--dataset", "blobs")
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1
    file.write_text(text.replace("self.factor * embeddings", "float('nan') * embeddings"))
    assert f"this may tell more: harness check-loss {file}:Mine\n" in harness(*words).err
    file.write_text("def :")
    said = harness(*words)
    assert said.code == 2
    assert "SyntaxError" in said.err


def test_a_users_file_may_be_called_like_anything_and_has_to_say_what_it_is(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    head = "from losses.base import Loss\nclass A(Loss):\n"
    tail = "    def forward(self, embeddings, labels):\n        return embeddings.square().mean()\n"
    (tmp_path / "losses.py").write_text(head + "    title, cite = 'A', 'me'\n" + tail)
    said = harness("run", "--losses", f"{tmp_path}/losses.py:A,softmax", "--dataset", "blobs", "--dry-run")
    assert said.code == 0, said.err
    assert "losses.A-blobs-test-" in said.out
    (tmp_path / "untitled.py").write_text(head + tail)
    titled = head + "    title, cite = 'A', 'me'\n"
    (tmp_path / "forwardless.py").write_text(titled)
    positional = "    def __init__(self, num_classes, dim, margin=0.2):\n        super().__init__(num_classes, dim)\n"
    (tmp_path / "positional.py").write_text(titled + positional + tail)
    (tmp_path / "alone.py").write_text(titled + "    def __init__(self, margin=0.2):\n        pass\n" + tail)
    (tmp_path / "other.py").write_text("class A:\n    pass\n")
    knob = "    def __init__(self, num_classes, dim, *, knob=1):\n        super().__init__(num_classes, dim)\n"
    (tmp_path / "untyped.py").write_text(head + "    title, cite = 'A', 'me'\n" + knob + tail)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "losses.py").write_text(head + "    title, cite = 'B', 'me'\n" + tail)
    for losses, complaint in (
        (f"{tmp_path}/untitled.py:A", "A has no title"),
        (f"{tmp_path}/untitled.py", "untitled.py: name the class too: "),
        (f"{tmp_path}/untitled.A", "a loss of your own is named by its file: "),
        (f"{tmp_path}/forwardless.py:A", "A has no forward: write def forward(self, embeddings, labels)"),
        (f"{tmp_path}/positional.py:A", "write def __init__(self, num_classes: int, dim: int, *, margin: float = 1.0)"),
        (f"{tmp_path}/alone.py:A", "A.__init__ takes (self, margin); write def __init__(self, num_classes: int, dim"),
        (f"{tmp_path}/other.py:A", "A is not a loss: write class A(Loss), with Loss of losses.base"),
        (f"{tmp_path}/untyped.py:A", "knob knob of A needs a type: knob: float = 1.0"),
        (f"{tmp_path}/losses.py:A,{tmp_path}/other/losses.py:A", "two different files give a loss named losses.A"),
    ):
        said = harness("run", "--losses", losses, "--dataset", "blobs")
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1
