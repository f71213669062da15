"""Archives of the user's, and that nothing leaves them."""

from __future__ import annotations

import io
import tarfile

import pytest

from pfl.data.dataset import load
from pfl.errors import InvalidInput


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tgz", "w:gz")])
def test_a_tar_is_read_like_the_folder_in_it(suffix, mode, image_folder, tmp_path):
    with tarfile.open(tmp_path / f"photos{suffix}", mode) as archive:
        archive.add(image_folder, "photos")
    loaded = load(str(tmp_path / f"photos{suffix}"), progress=False)
    assert loaded.name == "photos"
    assert loaded.checksum == load(str(image_folder), progress=False).checksum


@pytest.mark.parametrize("name", ["../escaped.png", "/escaped.png", "train/../../escaped.png"])
def test_a_tar_whose_paths_leave_it_is_refused(name, tmp_path):
    (tmp_path / "inner").mkdir()
    with tarfile.open(tmp_path / "inner" / "evil.tar", "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(InvalidInput, match="stay inside"):
        load(str(tmp_path / "inner" / "evil.tar"), progress=False)
    assert not list(tmp_path.rglob("escaped.png"))


def test_a_link_in_a_tar_is_not_followed(image_folder, tmp_path):
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(image_folder, "photos")
        link = tarfile.TarInfo("photos/train/cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(image_folder / "train/cat/0.png")
        archive.addfile(link)
    assert len(load(str(tmp_path / "photos.tar"), progress=False).labels) == 8


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b[:300] + bytes(50) + b[350:]])
def test_a_truncated_or_damaged_tar_is_one_line(damage, image_folder, tmp_path):
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as archive:
        archive.add(image_folder, "photos")
    path = tmp_path / "photos.tar.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match="a complete zip or tar"):
        load(str(path), progress=False)
