"""Archives are unpacked whole or not at all, whatever they try."""

import hashlib
import io
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.data.download import unpack
from harness.spec import UserError

TAR = (".tar", ".tar.gz", ".tgz")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


FILES = {
    "birds/images.txt": b"1 a.jpg\n",
    "birds/images/a.jpg": bytes(range(256)) * 300,
    "attributes.txt": b"has_bill\n",
}


def tar_of(file: Path, files: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    with tarfile.open(file, "w:gz" if file.name.endswith("gz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return file


def zip_of(file: Path, files: dict[str, bytes], *extra: zipfile.ZipInfo) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for member in extra:
            archive.writestr(member, "/etc")
    return file


def pack(file: Path, files: dict[str, bytes]) -> Path:
    return zip_of(file, files) if file.suffix.lower() == ".zip" else tar_of(file, files)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def refused(file: Path, folder: Path) -> str:
    """The error, and nothing is left of the attempt."""
    with pytest.raises(UserError) as error:
        unpack(file, folder)
    assert names(folder) == []
    assert names(folder.parent) == sorted([file.name, folder.name])
    return one_line(error)


@pytest.mark.parametrize("suffix", [*TAR, ".zip", ".ZIP"])
def test_an_archive_is_unpacked_whole(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "data" / "cub"
    unpack(pack(tmp_path / f"birds{suffix}", FILES), folder)
    assert names(folder) == ["attributes.txt", "birds"]
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
def test_names_that_start_with_a_dot_and_slash_are_plain(tmp_path: Path, suffix: str) -> None:
    unpack(pack(tmp_path / f"birds{suffix}", {"./birds/a.txt": b"a"}), tmp_path / "data")
    assert (tmp_path / "data" / "birds" / "a.txt").read_bytes() == b"a"


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
@pytest.mark.parametrize("name", ["../evil.txt", "birds/../../evil.txt", "/evil.txt"])
def test_a_path_out_of_the_folder_unpacks_nothing(tmp_path: Path, suffix: str, name: str) -> None:
    file = pack(tmp_path / f"birds{suffix}", {**FILES, name: b"evil"})
    assert repr(name) in refused(file, tmp_path / "data")


@pytest.mark.parametrize("target", ["/etc", "../..", "images.txt"])
def test_a_symbolic_link_unpacks_nothing(tmp_path: Path, target: str) -> None:
    file = tar_of(tmp_path / "birds.tgz", FILES, link("birds/way", target))
    assert "'birds/way'" in refused(file, tmp_path / "data")


def test_a_hard_link_out_of_the_folder_unpacks_nothing(tmp_path: Path) -> None:
    file = tar_of(tmp_path / "birds.tgz", FILES, link("birds/way", "../../etc/passwd", tarfile.LNKTYPE))
    refused(file, tmp_path / "data")


def test_a_device_unpacks_nothing(tmp_path: Path) -> None:
    refused(tar_of(tmp_path / "birds.tar", FILES, link("birds/way", "", tarfile.CHRTYPE)), tmp_path / "data")


def test_a_symbolic_link_in_a_zip_unpacks_nothing(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("birds/way")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "'birds/way'" in refused(zip_of(tmp_path / "birds.zip", FILES, member), tmp_path / "data")


@pytest.mark.parametrize("suffix", [*TAR, ".zip"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_truncated_archive_unpacks_nothing(tmp_path: Path, suffix: str, share: float) -> None:
    file = pack(tmp_path / f"birds{suffix}", FILES)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    assert f"cannot unpack {file}" in refused(file, tmp_path / "data")


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
def test_a_damaged_archive_unpacks_nothing(tmp_path: Path, suffix: str) -> None:
    file = pack(tmp_path / f"birds{suffix}", {"birds/noise": hashlib.shake_256(b"").digest(50_000)})
    content = bytearray(file.read_bytes())
    content[1000:1100] = bytes(100)
    file.write_bytes(content)
    refused(file, tmp_path / "data")


def test_a_page_in_place_of_an_archive_is_told(tmp_path: Path) -> None:
    for name in ("birds.zip", "birds.tgz", "birds.html"):
        file = tmp_path / name
        file.write_text("<html>sorry</html>")
        assert f"cannot unpack {file}" in refused(file, tmp_path / "data")
        file.unlink()


def test_an_archive_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        unpack(tmp_path / "birds.tgz", tmp_path / "data")


def test_an_encrypted_zip_asks_for_its_password(tmp_path: Path) -> None:
    file = zip_of(tmp_path / "img.zip", {"img/a.jpg": b"a"})
    content = bytearray(file.read_bytes())
    content[6] |= 1  # the flags in the file's own header, and in the directory at the end
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(content)
    assert "encrypted" in refused(file, tmp_path / "data")


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
def test_what_is_there_is_never_replaced(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "data" / "birds").mkdir(parents=True)
    (tmp_path / "data" / "birds" / "images.txt").write_bytes(b"mine")
    with pytest.raises(UserError, match="birds: exists already; remove it to unpack"):
        unpack(pack(tmp_path / f"birds{suffix}", FILES), tmp_path / "data")
    assert names(tmp_path / "data") == ["birds"]
    assert (tmp_path / "data" / "birds" / "images.txt").read_bytes() == b"mine"


def test_a_killed_unpacking_leaves_nothing_that_looks_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = tar_of(tmp_path / "birds.tgz", FILES), tmp_path / "data"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)  # as a kill leaves it

        def killed(self: tarfile.TarFile, path: Path, filter: object) -> None:
            (path / "birds").mkdir()
            raise KeyboardInterrupt

        patch.setattr(tarfile.TarFile, "extractall", killed)
        with pytest.raises(KeyboardInterrupt):
            unpack(file, folder)
    assert all(name.startswith(".") for name in names(folder))
    unpack(file, folder)
    assert names(folder) == ["attributes.txt", "birds"]
    assert (folder / "birds" / "images.txt").read_bytes() == FILES["birds/images.txt"]
