"""Samples that are no images: features, series and tokens, and natural clients."""

from __future__ import annotations

import pickle
import re
from decimal import Decimal

import numpy as np
import pytest
import torch

import pfl
from pfl.core.errors import DataWarning, InvalidInput
from pfl.data.arrays import from_arrays
from pfl.data.dataset import load
from pfl.data.federation import Federation
from pfl.data.partition import make_partition
from pfl.data.shape import TokenShape
from pfl.testing import check_dataset
from tests.refusal import refusal

RNG = np.random.default_rng(0)
LABELS = np.arange(24) % 3
SUBJECT = np.repeat([30, 4, 5], 8)
KINDS = {
    "features": RNG.normal(5, 3, (24, 7)),
    "series": RNG.normal(-2, 9, (24, 6, 20)).astype(np.float32),
    "half precision": RNG.normal(0, 1, (24, 4)).astype(np.float16),
    "tokens": RNG.integers(0, 50, (24, 9)),
    "bytes": RNG.integers(0, 256, (24, 9), np.uint8),
}


def federation(data, **options):
    partition = make_partition("by:subject", data)
    return Federation(data, partition, torch.device("cpu"), torch.float32, **options)


@pytest.fixture(params=KINDS)
def samples(request):
    return KINDS[request.param]


def test_an_npz_keeps_samples_of_any_shape_and_dtype(samples, tmp_path):
    np.savez(tmp_path / "own.npz", samples=samples, labels=LABELS, subject=SUBJECT, n_train=20)
    data = load(str(tmp_path / "own.npz"), progress=False)
    np.testing.assert_array_equal(data.images, samples)
    assert isinstance(data.images, np.memmap)
    assert (data.images.dtype, data.shape, data.n_train) == (samples.dtype, samples.shape[1:], 20)
    assert data.columns["subject"].tolist() == SUBJECT.tolist()
    check_dataset(data)


def test_arrays_in_memory_and_their_file_are_the_same_data(samples, tmp_path):
    names = np.array(["x", "y", "z"])[LABELS]
    data = from_arrays(samples, names, columns={"subject": SUBJECT, "file": names}, n_train=20)
    data.save(tmp_path / "own.npz")
    again = load(str(tmp_path / "own.npz"), progress=False)
    assert (again.checksum, again.content, again.classes) == (data.checksum, data.content, ("x", "y", "z"))
    assert (again.mean, again.std, again.tokens) == (data.mean, data.std, data.tokens)
    assert again.columns["file"].tolist() == names.tolist()


def test_images_are_saved_with_their_writers(tmp_path):
    images = RNG.integers(0, 256, (24, 3, 5, 4), np.uint8)
    np.savez(tmp_path / "first.npz", images=images, labels=LABELS, writer=SUBJECT)
    data = load(str(tmp_path / "first.npz"), progress=False)
    data.save(tmp_path / "second.npz")
    again = load(str(tmp_path / "second.npz"), progress=False)
    assert again.checksum == data.checksum
    assert again.columns["writer"].tolist() == SUBJECT.tolist()


def test_the_dtype_is_a_part_of_both_checksums():
    as_float = from_arrays(np.ones((4, 2), np.float32), [0, 1, 0, 1])
    as_tokens = from_arrays(np.ones((4, 2), np.float32).view(np.int32), [0, 1, 0, 1])
    assert as_float.checksum != as_tokens.checksum
    assert as_float.content != as_tokens.content


def test_tensors_of_a_precision_that_numpy_lacks_become_float32():
    features = torch.tensor([[1.5], [2.0]], dtype=torch.bfloat16, requires_grad=True)
    images = from_arrays(features, [0, 1]).images
    assert images.dtype == np.float32
    assert images.tolist() == [[1.5], [2.0]]


def test_features_and_channels_are_standardised_by_the_training_samples():
    for name in ("features", "series"):
        data = from_arrays(KINDS[name], LABELS, columns={"subject": SUBJECT}, n_train=16)
        x, y = federation(data).batch(torch.arange(16))
        axes = (0, *range(2, x.dim()))
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.mean(axes), torch.zeros(x.shape[1]), atol=1e-6, rtol=0)
        torch.testing.assert_close(x.std(axes, correction=0), torch.ones(x.shape[1]))
        assert y.tolist() == LABELS[:16].tolist()


def test_a_constant_feature_is_zero():
    data = from_arrays(np.full((24, 2), 7.5), LABELS, columns={"subject": SUBJECT})
    assert federation(data).batch(torch.arange(24))[0].abs().max() == 0


def test_a_batch_leaves_floats_of_the_networks_dtype_as_they_are_stored():
    data = from_arrays(KINDS["series"], LABELS, columns={"subject": SUBJECT})
    before = data.images.copy()
    clients = federation(data)
    clients.scaled(clients.images)
    np.testing.assert_array_equal(data.images, before)


def test_tokens_are_not_scaled_and_their_shape_has_the_vocabulary():
    data = from_arrays(KINDS["bytes"], LABELS, columns={"subject": SUBJECT})
    x, _ = federation(data).batch(torch.tensor([3, 1]))
    assert x.dtype == torch.int64
    assert x.tolist() == KINDS["bytes"][[3, 1]].tolist()
    assert pickle.loads(pickle.dumps(data.shape)).tokens == data.tokens == int(KINDS["bytes"].max()) + 1
    assert isinstance(data.shape, TokenShape)


def test_samples_mapped_from_a_file_give_the_same_batches(samples, tmp_path):
    data = from_arrays(samples, LABELS, columns={"subject": SUBJECT}, name="own")
    data.save(tmp_path / "own.npz")
    mapped = load(str(tmp_path / "own.npz"), progress=False)
    index = torch.tensor([5, 0, 23])
    assert torch.equal(federation(mapped).batch(index)[0], federation(data).batch(index)[0])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"samples": np.zeros(24)}, r"samples \(N, ...\) of .*, not samples float64 \(24,\)"),
        ({"samples": np.zeros((24, 2), bool)}, "not samples bool"),
        ({"samples": np.zeros((24, 2), complex)}, "not samples complex128"),
        ({"samples": np.full((24, 2), np.nan)}, r"finite floats .*, not nan \(sample 0\)"),
        ({"samples": np.full((24, 2), -1)}, r"non-negative integers.*, not -1 \(sample 0\)"),
        ({"samples": np.zeros((24, 0))}, "at least one value"),
        (
            {"samples": np.zeros((24, 8, 8, 3), np.uint8)},
            r"\(N, C, H, W\), not samples uint8 \(24, 8",
        ),
        ({"samples": np.zeros((24, 8, 8), np.uint8)}, r"\(N, C, H, W\), .*, or tokens .*, not samples uint8"),
        ({"samples": np.zeros((20, 2))}, "one per sample"),
        ({"images": np.zeros((24, 4, 4), np.uint8)}, "an array images or samples, labels"),
        ({"subject": SUBJECT / 2}, "a column subject of 64-bit integers or strings"),
        ({"subject": SUBJECT[:3]}, r"a column subject .* one per sample \(24\)"),
    ],
)
def test_arrays_of_another_form_are_one_clear_line(change, complaint, tmp_path):
    arrays = {"samples": KINDS["features"], "labels": LABELS, "subject": SUBJECT} | change
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InvalidInput, match=f"^dataset: .*own.npz is not accepted; expected .*{complaint}"):
        load(str(tmp_path / "own.npz"), progress=False)


# ---- clients by a column -------------------------------------------------------------------------------


def test_every_value_of_a_column_is_a_client():
    data = from_arrays(KINDS["features"], LABELS, columns={"subject": SUBJECT})
    partition = make_partition("by:subject,test=0.5", data, None)
    own = [set(SUBJECT[index].tolist()) for index in partition.train]
    assert own == [{4}, {5}, {30}]
    assert partition.notes == ("clients: '4', '5', '30'",)
    assert partition.spec == "by:subject,min=2,test=0.5,seed=0"


def test_a_column_of_names_whose_small_clients_are_left_out_and_of_which_some_are_drawn():
    names = np.array(["b"] * 10 + ["a, the first"] * 13 + ["c"])
    data = from_arrays(KINDS["features"], LABELS, columns={"the school, in full": names})
    partition = make_partition("by:the school, in full,min=10", data, None)
    assert partition.notes == ("clients: 'a, the first', 'b'",)
    drawn = {make_partition(f"by:the school, in full,seed={seed}", data, 1).notes for seed in range(9)}
    assert drawn == {("clients: 'a, the first'",), ("clients: 'b'",)}
    with pytest.raises(InvalidInput, match=r"^clients: 3 is not accepted; expected at most 2, the values"):
        make_partition("by:the school, in full", data, 3)
    with pytest.raises(InvalidInput, match=r"^min: 20 is not accepted; expected at most 13"):
        make_partition("by:the school, in full,min=20", data, None)


@pytest.mark.parametrize("kind", ["file", "arrays", "samples"])
def test_writers_and_domains_are_columns_of_any_data(kind, tmp_path):
    images = np.zeros((24, 1, 8, 8), np.uint8)
    columns = {"writer": np.array(["x", "b", "a"])[LABELS], "domain": SUBJECT}
    if kind == "samples":
        rows = zip(images, LABELS, *columns.values(), strict=True)
        data = pfl.from_samples([dict(zip(("image", "label", *columns), row, strict=True)) for row in rows])
    else:
        data = from_arrays(images, LABELS, columns=columns)
    if kind == "file":
        data.save(tmp_path / "own.npz")
        data = load(str(tmp_path / "own.npz"), progress=False)
    assert make_partition("by:writer", data, None).notes == ("clients: 'a', 'b', 'x'",)
    domain = make_partition("domain,min=2", data, 6)
    assert [set(SUBJECT[index].tolist()) for index in domain.train] == [{4}, {4}, {5}, {5}, {30}, {30}]


def test_names_of_domains_replace_their_numbers(tmp_path):
    images = np.zeros((24, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=LABELS, domain=LABELS, domains=["x", "b", "a"])
    data = load(str(tmp_path / "own.npz"), progress=False)
    assert make_partition("by:domain", data, None).notes == ("clients: 'a', 'b', 'x'",)


@pytest.mark.parametrize(("columns", "known"), [({"subject": SUBJECT}, "one of 'subject'"), ({}, "columns")])
def test_an_unknown_column_is_one_clear_line(columns, known):
    data = from_arrays(KINDS["features"], LABELS, columns=columns)
    for spec in ("by", "by:school"):
        with pytest.raises(InvalidInput, match=rf"^partition: by:\w* of samples .*{known}"):
            make_partition(spec, data, None)


# ---- torch, Hugging Face, tables -----------------------------------------------------------------------


def test_a_torch_data_set_of_feature_vectors_is_taken_as_it_is():
    x, y = torch.randn(12, 5), torch.arange(12) % 2
    data = pfl.from_samples(torch.utils.data.TensorDataset(x, y))
    np.testing.assert_array_equal(data.images, x.numpy())
    assert data.classes == ("0", "1")


def test_items_with_further_keys_have_columns():
    items = [
        {"sample": np.full((2, 4), i / 12), "label": i % 2, "subject": f"s{i // 4}", "age": i, "note": [1]}
        for i in range(12)
    ]
    data = pfl.from_samples(items)
    assert (data.shape, data.images.dtype) == ((2, 4), np.float64)
    assert data.columns["subject"].tolist() == ["s0"] * 4 + ["s1"] * 4 + ["s2"] * 4
    assert list(data.columns) == ["subject", "age"]


@pytest.mark.parametrize("kind", ["sample", "image"])
def test_a_column_that_some_items_lack_is_left_out_with_a_warning(kind):
    value = np.zeros((1, 8, 8), np.uint8) if kind == "image" else np.ones(3)
    items = [{kind: value, "label": i % 2, "ward": None if i == 2 else i, "side": i} for i in range(4)]
    with pytest.warns(DataWarning, match="samples: column ward left out: sample 2 does not have it"):
        data = pfl.from_samples(items)
    assert list(data.columns) == ["side"]
    assert "column ward left out: sample 2 does not have it" in data.notes


def test_images_beside_other_samples_are_one_clear_line():
    image, vector = np.zeros((8, 8), np.uint8), np.zeros(3)
    with pytest.raises(InvalidInput, match=r"^dataset: sample 1 .*images only, or no image"):
        pfl.from_samples([(image, 0), (vector, 1)])
    with pytest.raises(InvalidInput, match=r"^size: .*sample 0 is not an image"):
        pfl.from_samples([(vector, 0), (vector, 1)], size=(4, 4))


@pytest.fixture
def frame():
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(
        {
            "school": ["north"] * 4 + ["south"] * 4,
            "hours": [1.5, 3, 2, 8, 1, 9, 7, 2],
            "club": ["chess", "art", "art", "chess"] * 2,
            "repeats": [True, False] * 4,
            "passed": ["no", "yes"] * 4,
            "id": range(8),
        }
    )


def test_a_table_gives_features_one_hot_texts_and_columns(frame, tmp_path):
    options = {"label": "passed", "columns": ["school"], "drop": ["id"]}
    data = pfl.from_table(frame, **options)
    assert data.images[:2].tolist() == [[1.5, 0, 1, 1], [3, 1, 0, 0]]
    assert (data.images.dtype, data.classes) == (np.float32, ("no", "yes"))
    assert make_partition("by:school", data, None).clients == 2
    frame.to_csv(tmp_path / "students.csv", index=False)
    from_file = pfl.from_table(tmp_path / "students.csv", **options)
    assert (from_file.name, from_file.checksum) == ("students", data.checksum)


def test_a_parquet_file_is_read(frame, tmp_path):
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "students.parquet")
    data = pfl.from_table(tmp_path / "students.parquet", label="passed", columns=["school"])
    assert data.shape == (5,)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"label": "pass"}, "label: pass is .*did you mean 'passed'"),
        ({"label": "passed", "columns": "school"}, "columns: school .*list"),
        ({"label": "passed", "columns": None}, "columns: None .*list"),
        ({"label": "passed", "columns": ["hours"]}, "columns: hours with real numbers .*integers or names"),
        ({"label": "passed", "drop": ["passed"]}, "drop: passed .*neither the label nor in columns"),
        ({"label": "passed", "columns": ["id"], "drop": ["id"]}, "drop: id .*neither the label"),
        ({"label": "passed", "drop": ["age"]}, "drop: age is .*one of club, hours"),
        ({"label": "passed", "drop": ["school", "hours", "club", "repeats", "id"]}, "table: .*features"),
    ],
)
def test_a_wrong_column_of_a_table_is_one_clear_line(frame, options, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        pfl.from_table(frame, **options)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(8).astype("datetime64[D]"), "Timestamp"),
        ([Decimal("0.5")] * 8, "Decimal"),
        ([[1, 2]] * 8, "list"),
        ([1j] * 8, "complex"),
    ],
)
def test_a_feature_that_is_neither_a_number_nor_a_text_is_one_clear_line(frame, values, kind):
    with pytest.raises(InvalidInput, match=rf"^table: when of row 0, {kind}, .*numbers, .*convert it first"):
        pfl.from_table(frame.assign(when=values), label="passed")


def test_numbers_in_a_frame_of_objects_are_numbers(frame):
    options = {"label": "passed", "columns": ["school"], "drop": ["id"]}
    assert (
        pfl.from_table(frame.astype(object), **options).checksum == pfl.from_table(frame, **options).checksum
    )


def test_a_table_without_rows_and_one_without_a_frame_are_one_clear_line(frame):
    for table, complaint in (
        (frame[:0], "no rows"),
        (frame["hours"], "Series"),
        (frame.to_numpy(), "ndarray"),
    ):
        assert refusal(pfl.from_table, table, label="passed").startswith(
            f"table: {complaint} is not accepted"
        )


def test_a_row_with_more_values_than_names_is_one_clear_line(tmp_path):
    (tmp_path / "VISITS.CSV").write_text("age,ill\n30,0,7\n40,1,8\n")
    with pytest.raises(InvalidInput, match=r"^table: .*VISITS.CSV .*names does not match length of data"):
        pfl.from_table(tmp_path / "VISITS.CSV", label="ill")
    (tmp_path / "VISITS.CSV").write_text("age,ill\n30,0,\n40,1,\n")  # a comma at the end of each row
    assert pfl.from_table(tmp_path / "VISITS.CSV", label="ill").images.tolist() == [[30], [40]]


def test_columns_without_names_are_known_by_their_numbers(frame):
    named = pfl.from_table(frame, label="passed", columns=["school"], drop=["id"])
    frame.columns = range(6)
    numbered = pfl.from_table(frame, label=4, columns=[0], drop=[5])
    assert numbered.checksum == named.checksum
    assert list(numbered.columns) == ["0"]
    with pytest.raises(InvalidInput, match="drop: 6 is not accepted; expected one of 0, 1"):
        pfl.from_table(frame, label=4, drop=[6])


def test_real_numbers_are_no_classes(frame):
    with pytest.raises(InvalidInput, match=r"^label: hours with real numbers .*integers or names"):
        pfl.from_table(frame, label="hours")
    assert pfl.from_table(frame.assign(passed=[0.0, 1.0] * 4), label="passed").classes == ("0.0", "1.0")


@pytest.mark.parametrize("labels", [["1,5", "2,5"], ["1,000", "2"], ["20%", "1"], ["\N{MINUS SIGN}1", "1"]])
def test_numbers_that_pandas_reads_as_texts_are_no_classes(labels, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"dose": range(4), "grade": labels * 2})
    frame.to_csv(tmp_path / "grades.csv", index=False)
    row = next(row for row, text in enumerate(labels) if not text.isdecimal())
    line = rf"^label: grade of row {row}, {re.escape(repr(labels[row]))}, is .* integers or names; .*category"
    for table in (frame, tmp_path / "grades.csv"):
        with pytest.raises(InvalidInput, match=line):
            pfl.from_table(table, label="grade")
    names = pfl.from_table(frame.astype({"grade": "category"}), label="grade")
    assert names.classes == tuple(sorted(labels))


@pytest.mark.parametrize(
    "labels", [["1", "?"], ["3+", "2"], ["0-9", "10-19"], ["1,5", "a", "b"], ["01", "1"]]
)
def test_other_texts_with_digits_are_classes(labels):
    pd = pytest.importorskip("pandas")
    data = pfl.from_table(pd.DataFrame({"dose": range(2 * len(labels)), "grade": labels * 2}), label="grade")
    assert data.classes == tuple(sorted(labels))


def test_a_feature_whose_differences_float32_rounds_away_is_one_clear_line(frame):
    offset = np.array([0, 1] * 4)
    for time in (1e9 + offset, 1_000_000_000 + offset):
        with pytest.raises(InvalidInput, match=r"^table: time, with mean 1000000000 and .*subtract the mean"):
            pfl.from_table(frame.assign(time=time), label="passed")
    constant = pfl.from_table(frame.assign(time=1e9), label="passed")
    assert constant.shape == pfl.from_table(frame.assign(time=offset), label="passed").shape


def test_features_and_channels_whose_differences_float32_rounds_away_are_named_in_a_warning(tmp_path):
    samples = KINDS["features"].copy()
    samples[:, 3] += 1e9
    with pytest.warns(
        DataWarning, match="own: 1 feature of 7 .*subtract the mean first: feature 3 has mean 1000000005"
    ):
        data = from_arrays(samples, LABELS, name="own")
    data.save(tmp_path / "own.npz")
    with pytest.warns(DataWarning, match="feature 3 has mean 1000000005"):
        load(str(tmp_path / "own.npz"), progress=False)
    with pytest.warns(DataWarning, match="6 channels of 6 .*: channel 0 has mean 999999"):
        from_arrays(KINDS["series"].astype(float) + 1e9, LABELS)


def test_a_number_that_float32_lacks_is_named_by_its_column(frame):
    for value in (np.inf, -1e39):
        frame.loc[2, "hours"] = value
        with pytest.raises(
            InvalidInput, match=r"^table: hours of row 2, .* is .*a number that is finite in float32"
        ):
            pfl.from_table(frame, label="passed")


@pytest.mark.parametrize(
    ("numbers", "culprit"),
    [
        (["1,5", "2,25", "-0,5", "3"], "row 0, '1,5',"),
        (["1", "1,200", "1,300", "900"], "row 1, '1,200',"),
        (["1.5", "2.5", "3.5", "?"], "row 3, '?',"),
        (["1", "2", "3", "unknown"], "row 3, 'unknown',"),
        (["7", "20%", "30 %", "1e-3"], "row 1, '20%',"),
        (["1 234,5", "1.234,5", "\N{MINUS SIGN}1", ",5"], "row 0, '1 234,5',"),
    ],
)
def test_numbers_that_pandas_reads_as_texts_are_named(numbers, culprit, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"dose": numbers * 2, "ill": [0, 1] * 4})
    frame.to_csv(tmp_path / "doses.csv", index=False)
    for table in (frame, tmp_path / "doses.csv"):
        with pytest.raises(InvalidInput, match=rf"^table: dose of {re.escape(culprit)} .*decimal, thousands"):
            pfl.from_table(table, label="ill")
    texts = pfl.from_table(frame.astype({"dose": "category"}), label="ill")
    assert texts.shape == (4,)


@pytest.mark.parametrize("texts", [["0-9", "10-19"], ["2020.01.03", "2021-01-03"], ["3", "b"], ["01", "2"]])
def test_texts_with_digits_are_texts(texts):
    pd = pytest.importorskip("pandas")
    data = pfl.from_table(pd.DataFrame({"age": texts * 2, "ill": [0, 1] * 2}), label="ill")
    assert data.images.tolist() == [[1, 0], [0, 1]] * 2


def test_a_text_with_digits_among_numbers_is_a_text():
    pd = pytest.importorskip("pandas")
    data = pfl.from_table(pd.DataFrame({"children": ["0", "1", "2", "3+"], "ill": [0, 1] * 2}), label="ill")
    assert data.images.tolist() == np.eye(4).tolist()


def test_the_index_that_pandas_writes_is_no_feature(frame, tmp_path):
    frame.to_csv(tmp_path / "students.csv")
    with pytest.raises(InvalidInput, match=r"^table: Unnamed: 0 is .*a name in the first line .* drop"):
        pfl.from_table(tmp_path / "students.csv", label="passed")
    data = pfl.from_table(tmp_path / "students.csv", label="passed", drop=["Unnamed: 0", "id"])
    assert data.checksum == pfl.from_table(frame, label="passed", drop=["id"]).checksum


def test_texts_of_a_csv_file_that_are_one_integer_stay_different(tmp_path):
    file = tmp_path / "visits.csv"
    file.write_text("ward,kind,age\n01,1,30\n1,01,40\n2,1,50\n02,01,60\n")
    data = pfl.from_table(file, label="kind", columns=["ward"])
    assert data.columns["ward"].tolist() == ["01", "1", "2", "02"]
    assert (data.classes, data.labels.tolist()) == (("01", "1"), [1, 0, 1, 0])
    file.write_text("ward,kind,age\n1,1,30\n1,0,40\n2,1,50\n2,0,60\n")
    data = pfl.from_table(file, label="kind", columns=["ward"])
    assert data.columns["ward"].tolist() == [1, 1, 2, 2]
    assert data.labels.tolist() == [1, 0, 1, 0]


def test_a_table_as_a_data_set_of_the_command_line_names_the_function_that_reads_it(frame, tmp_path):
    frame.to_csv(tmp_path / "students.csv")
    with pytest.raises(InvalidInput, match=r"^dataset: .*students.csv .*\.npz file; pfl.from_table reads"):
        pfl.load(str(tmp_path / "students.csv"))


def test_a_missing_value_and_a_missing_table_are_one_clear_line(frame, tmp_path):
    frame.loc[3, "hours"] = None
    with pytest.raises(InvalidInput, match=r"^table: hours of row 3 .*fill or drop missing values"):
        pfl.from_table(frame, label="passed")
    for absent in ("absent.csv", "absent.parquet"):
        with pytest.raises(InvalidInput, match=rf"^table: .*{absent} .*an existing file"):
            pfl.from_table(tmp_path / absent, label="passed")
    with pytest.raises(InvalidInput, match=r"^table: students.xlsx .*ends in .csv or .parquet"):
        pfl.from_table("students.xlsx", label="passed")


def test_a_column_that_occurs_twice_is_one_clear_line(frame, tmp_path):
    twice = frame.rename(columns={"hours": "club"})
    twice.to_csv(tmp_path / "students.csv", index=False)
    for table in (twice, tmp_path / "students.csv"):
        with pytest.raises(InvalidInput, match=r"^table: club is .*distinct names"):
            pfl.from_table(table, label="passed")


def test_a_column_without_a_text_for_its_name_is_named_by_it(frame):
    data = pfl.from_table(frame.rename(columns={"passed": 0}), label=0)
    assert data.classes == ("no", "yes")


@pytest.mark.parametrize("name", ["labels", "columns"])
def test_a_missing_text_among_arrays_is_one_clear_line(name):
    texts = np.array([None, *["a", "b"] * 20], object)[: len(LABELS)]
    given = {"labels": texts} if name == "labels" else {"labels": LABELS, "columns": {"ward": texts}}
    line = refusal(from_arrays, KINDS["features"], **given)
    assert re.match(r"dataset: (labels|ward) of sample 0, None is not accepted; expected an integer", line)


def test_integers_as_objects_are_integers_and_a_number_can_name_a_column():
    data = from_arrays(KINDS["features"], LABELS, columns={3: SUBJECT.astype(object)})
    assert (list(data.columns), data.columns["3"].dtype.kind) == (["3"], "i")


def test_masked_values_are_one_clear_line():
    masked = np.ma.masked_less(KINDS["features"], 0)
    assert refusal(from_arrays, masked, LABELS).endswith("(values are masked)")


def test_columns_without_names_are_refused():
    with pytest.raises(InvalidInput, match=r"^columns: list is not accepted; expected a mapping from names"):
        from_arrays(KINDS["features"], LABELS, columns=["subject"])
