"""Archives of the user's, and that nothing leaves them."""

from __future__ import annotations

import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from pfl.core.errors import DataWarning, InvalidInput
from pfl.data.dataset import load
from tests.data.conftest import tarred, write_tar, zipped
from tests.refusal import refusal


@pytest.mark.parametrize(("ending", "compression"), [("tar", ""), ("tar.gz", "gz"), ("tgz", "gz")])
def test_a_tar_is_read_like_the_folder_in_it(ending, compression, image_folder):
    loaded = load(str(tarred(image_folder, ending, compression)), progress=False)
    assert loaded.name == "photos"
    assert loaded.checksum == load(str(image_folder), progress=False).checksum


@pytest.mark.parametrize("name", ["../escaped.png", "/escaped.png", "train/../../escaped.png"])
def test_a_tar_whose_paths_leave_it_is_refused(name, tmp_path):
    (tmp_path / "inner").mkdir()
    write_tar(tmp_path / "inner" / "evil.tar.gz", {name: b"x"})
    with pytest.raises(InvalidInput, match="stay inside"):
        load(str(tmp_path / "inner" / "evil.tar.gz"), progress=False)
    assert not list(tmp_path.rglob("escaped.png"))


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "0.png"),
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "photos/train/cat/absent.png"),
        (tarfile.LNKTYPE, "../outside.png"),
        (tarfile.CHRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_a_link_or_a_device_in_a_tar_is_refused_by_name(kind, target, image_folder, tmp_path):
    with tarfile.open(tarred(image_folder), "a") as archive:
        link = tarfile.TarInfo("photos/train/cat/link.png")
        link.type, link.linkname = kind, target
        archive.addfile(link)
    with pytest.raises(InvalidInput, match=r"files and folders; 'photos/train/cat/link\.png' is a"):
        load(str(tmp_path / "photos.tar"), progress=False)


def test_a_hard_link_in_a_tar_is_another_image(image_folder):
    (image_folder / "train/cat/more.png").hardlink_to(image_folder / "train/cat/0.png")
    path = tarred(image_folder)
    with tarfile.open(path) as archive:
        assert any(member.islnk() for member in archive)
    assert load(str(path), progress=False).checksum == load(str(image_folder), progress=False).checksum


def test_a_link_in_a_zip_is_refused_by_name(image_folder, tmp_path):
    with zipfile.ZipFile(zipped(image_folder), "a") as archive:
        link = zipfile.ZipInfo("train/cow")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "cat")
    with pytest.raises(InvalidInput, match="'train/cow' is a symbolic link"):
        load(str(tmp_path / "photos.zip"), progress=False)


def test_a_zip_with_a_password_is_refused(image_folder):
    archive = zipped(image_folder)
    content = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + offset] |= 1
    archive.write_bytes(content)
    with pytest.raises(InvalidInput, match="without a password"):
        load(str(archive), progress=False)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_in_an_archive_is_refused(image_folder, tmp_path):
    with tarfile.open(tarred(image_folder), "a") as archive:
        archive.add(image_folder / "train/dog/0.png", "photos/train/cat/0.png")
    with zipfile.ZipFile(zipped(image_folder), "a") as archive:
        archive.writestr("train/cat/0.png", b"")
    for ending in ("tar", "zip"):
        with pytest.raises(InvalidInput, match=r"cat/0\.png' occurs twice"):
            load(str(tmp_path / f"photos.{ending}"), progress=False)


def test_names_in_a_tar_that_are_not_utf8_are_refused(image_folder, tmp_path):
    with tarfile.open(tmp_path / "photos.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.add(image_folder, "photos")
        archive.add(image_folder / "train/cat", "photos/train/Bär")
    with pytest.raises(InvalidInput, match=r"file names in UTF-8, not b'photos/train/B\\xe4r"):
        load(str(tmp_path / "photos.tar"), progress=False)


@pytest.mark.parametrize(("encoding", "place"), [("utf-8", "B12r"), ("cp437", "B1r")])
def test_names_in_a_zip_without_an_encoding_are_read_with_a_warning(encoding, place, image_folder, tmp_path):
    path = tmp_path / "named.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(3):
            archive.write(image_folder / f"train/cat/{i}.png", f"{place}/{i}.png")
    path.write_bytes(path.read_bytes().replace(place.encode(), "Bär".encode(encoding)))
    with pytest.warns(DataWarning, match=r"file names of unknown encoding .* 'Bär/0\.png'"):
        assert load(str(path), progress=False).classes == ("Bär",)


# ---- bombs ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_limits(monkeypatch):
    """Archives may unpack to 1 MB in any case, so that the bombs of the tests can be small."""
    monkeypatch.setattr("pfl.data.archive.HARMLESS", 1 << 20)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("ending", ["zip", "tar.gz", "npz"])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused_before_it_is(ending, tmp_path):
    path, zeros = tmp_path / f"bomb.{ending}", bytes(8 << 20)
    if ending == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/0.png", zeros)
    elif ending == "npz":
        np.savez_compressed(path, images=np.frombuffer(zeros, np.uint8).reshape(-1, 32, 32), labels=[0])
    else:
        write_tar(path, {"a/0.png": zeros})
    with pytest.raises(InvalidInput, match=r"at most 200 times its 0\.0 MB, not to 0\.0 GB"):
        load(str(path), progress=False)


@pytest.mark.usefixtures("small_limits")
def test_an_archive_of_usual_images_is_no_bomb(tmp_path):
    rng = np.random.default_rng(0)
    images = (rng.random((3000, 28, 28)) < 0.1).astype(np.uint8) * 255
    np.savez_compressed(tmp_path / "sparse.npz", images=images, labels=np.arange(3000) % 2)
    assert len(load(str(tmp_path / "sparse.npz"), progress=False).labels) == 3000


@pytest.mark.filterwarnings("error")
def test_an_image_of_too_many_pixels_is_refused_by_name(image_folder, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 15)  # the folder's have 20
    with pytest.raises(InvalidInput, match=r"train/cat/0\.png .*pixels"):
        load(str(image_folder), progress=False)


def test_images_that_do_not_fit_the_cache_are_refused_before_they_are_written(image_folder, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=400))
    with pytest.raises(InvalidInput, match=r"^PFL_CACHE: .* a folder with 0\.0 MB for the decoded images"):
        load(str(image_folder), progress=False)


@pytest.fixture
def plain_tar(image_folder):
    """A tar of eight images, with the position of the header of each of its members."""
    path = tarred(image_folder)
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
    with pytest.raises(InvalidInput, match=r"a complete zip or tar \((the archive ends|unexpected end)"):
        load(str(path), progress=False)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("at", [0, 50, -5])
def test_a_changed_byte_of_a_compressed_tar_is_one_line(at, suffix, image_folder):
    path = tarred(image_folder, f"tar.{suffix}", suffix)
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)
    assert "zip file" not in refusal(load, str(path), progress=False)


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b[:300] + bytes(50) + b[350:]])
def test_a_truncated_or_damaged_tar_is_one_line(damage, image_folder):
    path = tarred(image_folder, "tar.gz", "gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match="a complete zip or tar"):
        load(str(path), progress=False)
