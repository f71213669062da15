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


@pytest.fixture
def plain_tar(image_folder, tmp_path):
    """A tar of eight images, with the position of the header of each of its members."""
    path = tmp_path / "plain.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(image_folder, "photos")
    with tarfile.open(path) as archive:
        return path, [member.offset for member in archive]


@pytest.mark.parametrize("broken", [1, 5, -1])
@pytest.mark.parametrize(
    "damage",
    [
        lambda b, at: b[:at] + b"?" * 512 + b[at + 512 :],
        lambda b, at: b[:at] + bytes(512) + b[at + 512 :],
        lambda b, at: b[: at + 100],
        lambda b, at: b[:at],
    ],
    ids=["overwritten", "erased", "cut inside", "cut before"],
)
def test_a_tar_with_a_broken_header_loses_no_image_silently(damage, broken, plain_tar):
    path, headers = plain_tar
    path.write_bytes(damage(path.read_bytes(), headers[broken]))
    with pytest.raises(InvalidInput, match=r"a complete zip or tar \((the list of its|unexpected end)"):
        load(str(path), progress=False)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("at", [0, 50, -5])
def test_a_changed_byte_of_a_compressed_tar_is_one_line(at, suffix, image_folder, tmp_path):
    path = tmp_path / f"photos.tar.{suffix}"
    with tarfile.open(path, f"w:{suffix}") as archive:
        archive.add(image_folder, "photos")
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as error:
        load(str(path), progress=False)
    assert "\n" not in str(error.value)
    assert "zip file" not in str(error.value)


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b[:300] + bytes(50) + b[350:]])
def test_a_truncated_or_damaged_tar_is_one_line(damage, image_folder, tmp_path):
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as archive:
        archive.add(image_folder, "photos")
    path = tmp_path / "photos.tar.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match="a complete zip or tar"):
        load(str(path), progress=False)
