"""Every kind of array that a caller may pass: accepted, or refused by us with the argument's name and the fix."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

from zeroshift import FeatureSet, OnlineADAPT, TransductiveAnchoredMixture, ZeroShot, normalize
from zeroshift.arrays import check_labels
from zeroshift.evaluate.metrics.functions import accuracy, brier_score
from zeroshift.evaluate.stream_loop import run_stream
from zeroshift.methods import TDA, TipAdapter
from zeroshift.reject import class_distances
from zeroshift.testing import make_problem
from zeroshift.views import average_views

FEATURES, PROTOTYPES, LABELS = make_problem(classes=4, dimension=8, samples=30)
NAMES = ["cat", "dog", "owl", "fox"]
EXPECTED = OnlineADAPT(PROTOTYPES, logit_scale=20.0).adapt(FEATURES)


class Frame:
    """What zeroshift uses of a pandas data frame or series, with pandas' refusal of everything NumPy-like."""

    def __init__(self, values, index=None, columns=None):
        self._values, self.index, self.columns = np.asarray(values), index, columns

    @property
    def shape(self):
        return self._values.shape

    iloc = None

    def __getitem__(self, key):
        raise KeyError(key)

    def to_numpy(self):
        return self._values

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype)

    def tolist(self):
        return self._values.tolist()


def _frames():
    kinds = [pytest.param(Frame, Frame, id="stand-in")]
    try:
        import pandas
    except ImportError:
        return kinds

    def frame(values):
        values = np.asarray(values)
        return pandas.DataFrame(values, index=range(len(values), 0, -1), columns=list("hgfedcba")[: values.shape[1]])

    def series(values):
        return pandas.Series(values, index=range(len(values), 0, -1))

    return [*kinds, pytest.param(frame, series, id="pandas")]


both_frames = pytest.mark.parametrize(("frame", "series"), _frames())


@both_frames
class TestFrames:
    def test_methods_take_the_values_and_return_numpy(self, frame, series):
        method = OnlineADAPT(frame(PROTOTYPES), logit_scale=20.0)
        answer = method.adapt(frame(FEATURES))
        assert type(answer) is np.ndarray
        np.testing.assert_allclose(answer, EXPECTED, atol=1e-12)  # a frame is column-major: other rounding
        assert method.predict(series(FEATURES[0])).shape == (4,)

    def test_torch_prototypes(self, frame, series):
        method = OnlineADAPT(torch.tensor(PROTOTYPES), logit_scale=20.0)
        np.testing.assert_allclose(method.adapt(frame(FEATURES)), EXPECTED, atol=1e-9)

    def test_feature_set(self, frame, series):
        made = FeatureSet(
            frame(FEATURES),
            prototypes={"a": frame(PROTOTYPES)},
            labels=series(LABELS),
            class_names=series(NAMES),
            sample_names=series([f"{i}.png" for i in range(30)]),
        )
        np.testing.assert_array_equal(made.features, FEATURES)
        np.testing.assert_array_equal(made.labels, LABELS)
        assert made.class_names == tuple(NAMES)
        assert made.sample_names[29] == "29.png"
        assert made.subset(series([2, 1])).sample_names == ("2.png", "1.png")
        assert all(type(name) is str for name in made.class_names)

    def test_support_normalize_metrics_and_streams(self, frame, series):
        support = (frame(FEATURES[:8]), series(LABELS[:8]))
        plain = TipAdapter(PROTOTYPES, support=(FEATURES[:8], LABELS[:8])).predict(FEATURES)
        np.testing.assert_allclose(TipAdapter(PROTOTYPES, support=support).predict(frame(FEATURES)), plain)
        np.testing.assert_allclose(normalize(frame(FEATURES * 2)), normalize(FEATURES * 2))
        assert accuracy(frame(EXPECTED), series(LABELS)) == accuracy(EXPECTED, LABELS)
        assert brier_score(frame(EXPECTED), series(LABELS)) == pytest.approx(brier_score(EXPECTED, LABELS))
        run = run_stream(OnlineADAPT(PROTOTYPES, logit_scale=20.0), frame(FEATURES))
        np.testing.assert_allclose(run.probabilities, EXPECTED, atol=1e-12)

    def test_calls_of_the_mixture(self, frame, series):
        method = TransductiveAnchoredMixture(PROTOTYPES, logit_scale=20.0)
        expected = method.adapt(FEATURES)
        assert method.survey(frame(FEATURES)).n_seen == 30
        answers = method.adapt_shards([frame(FEATURES[:10]), frame(FEATURES[10:])])
        np.testing.assert_allclose(np.concatenate(answers), expected, atol=1e-9)
        np.testing.assert_array_equal(
            class_distances(frame(FEATURES), frame(PROTOTYPES)), class_distances(FEATURES, PROTOTYPES)
        )
        assert class_distances(series(FEATURES[0]), PROTOTYPES).shape == (2,)

    def test_a_table_with_text_or_integers_is_refused(self, frame, series):
        method = ZeroShot(PROTOTYPES)
        with pytest.raises(TypeError, match=r"features must hold floating-point numbers .*; got object"):
            method.adapt(frame(np.array([["a", 1.0]], dtype=object)))
        with pytest.raises(TypeError, match=r"features must hold floating-point numbers .*; got int64"):
            method.adapt(frame(np.eye(8, dtype=int)))

    def test_a_series_of_rows_names_the_fix(self, frame, series):
        rows = np.empty(2, object)
        rows[:] = [FEATURES[0], FEATURES[1]]
        with pytest.raises(TypeError, match=r"got object. Fix: numpy\.stack\(features\)"):
            ZeroShot(PROTOTYPES).adapt(series(rows))

    def test_labels_of_one_column_name_the_fix(self, frame, series):
        with pytest.raises(ValueError, match=r"labels must have one entry per row, shape \(30,\).*iloc\[:, 0\]"):
            FeatureSet(FEATURES, prototypes=PROTOTYPES, labels=frame(LABELS[:, None]))


def test_shards_may_be_any_iterable_of_matrices():
    method = TransductiveAnchoredMixture(PROTOTYPES, logit_scale=20.0)
    expected = method.adapt(FEATURES)
    for shards in (FEATURES.reshape(3, 10, 8), iter([FEATURES[:10], FEATURES[10:]])):
        np.testing.assert_allclose(np.concatenate(method.adapt_shards(shards)), expected, atol=1e-9)
    with pytest.raises(TypeError, match=r"shards must be a list of arrays of features; got int"):
        method.adapt_shards(3)
    with pytest.raises(ValueError, match=r"shards\[0\] must have two dimensions"):
        method.adapt_shards(FEATURES)


def test_a_frame_whose_conversion_fails_is_refused():
    class Broken(Frame):
        def to_numpy(self):
            raise LookupError("lost")

    with pytest.raises(TypeError, match=r"features must be .*Broken\.to_numpy\(\) raised LookupError: lost"):
        ZeroShot(PROTOTYPES).adapt(Broken(FEATURES))


def _to(library, values):
    return torch.tensor(values) if library == "torch" else values


ODD_BUT_FINE = {
    "big-endian": FEATURES.astype(">f8"),
    "big-endian float32": FEATURES.astype(">f4"),
    "longdouble": FEATURES.astype(np.longdouble),
    "float16": FEATURES.astype(np.float16),
    "column-major": np.asfortranarray(FEATURES),
    "reversed twice": FEATURES[::-1][::-1],
    "every other": np.repeat(FEATURES, 2, axis=0)[::2],
    "negative strides": np.ascontiguousarray(FEATURES[::-1, ::-1])[::-1, ::-1],
    "recarray of plain numbers": FEATURES.view(np.recarray),
    "requires grad": torch.tensor(FEATURES, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.tensor(FEATURES)),
    "expanded": torch.tensor(FEATURES)[:, None, :].expand(30, 2, 8)[:, 0],
    "transposed": torch.tensor(FEATURES.T.copy()).T,
    "negative bit": torch.view_as_complex(torch.stack([torch.zeros(30, 8), -torch.tensor(FEATURES).float()], -1))
    .conj()
    .imag,
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ODD_BUT_FINE)
def test_odd_arrays_give_the_answers_of_plain_ones(kind, library):
    given = ODD_BUT_FINE[kind]
    method = OnlineADAPT(_to(library, PROTOTYPES), logit_scale=20.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = method.adapt(given)
    assert isinstance(answer, torch.Tensor) == isinstance(given, torch.Tensor)
    exact = getattr(given.dtype, "itemsize", 8) >= 8
    np.testing.assert_allclose(np.asarray(answer.detach() if hasattr(answer, "detach") else answer), EXPECTED,
                               atol=1e-6 if exact else 0.05)  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in ODD_BUT_FINE if kind != "longdouble"])
def test_odd_arrays_in_a_feature_set_survive_a_file(kind, tmp_path):
    given = ODD_BUT_FINE[kind]
    made = FeatureSet(given, prototypes=given[:4], labels=LABELS)
    made.save(tmp_path / "set.safetensors")
    loaded = FeatureSet.load(tmp_path / "set.safetensors", check=False)
    np.testing.assert_array_equal(loaded.features, made.features)
    np.testing.assert_array_equal(loaded.prototypes_for(), made.prototypes_for())


@pytest.mark.parametrize("kind", ["big-endian", "longdouble", "reversed twice", "requires grad"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_odd_prototypes_and_support(kind, library):
    given = ODD_BUT_FINE[kind]
    method = TipAdapter(given[:4], support=(given[:8], LABELS[:8]))
    plain = TipAdapter(FEATURES[:4], support=(FEATURES[:8], LABELS[:8])).predict(FEATURES)
    np.testing.assert_allclose(np.asarray(method.predict(_to(library, FEATURES))), plain, atol=1e-6)


def _record():
    rows = np.zeros(30, dtype=[("x", "f8"), ("y", "f8")])
    return rows.view(np.recarray)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns that nested and quantized tensors are prototypes
    REFUSED = {
        "sparse coo": (torch.tensor(FEATURES).to_sparse(), r"torch.sparse_coo.*Fix: {}\.to_dense\(\)"),
        "sparse csr": (torch.tensor(FEATURES).to_sparse_csr(), r"torch.sparse_csr.*Fix: {}\.to_dense\(\)"),
        "nested": (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), r"a nested tensor.*Fix: "),
        "jagged": (
            torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(3, 8)], layout=torch.jagged),
            r"a nested tensor.*Fix: ",
        ),
        "quantized": (
            torch.quantize_per_tensor(torch.tensor(FEATURES).float(), 0.1, 0, torch.qint8),
            r"a quantized tensor.*Fix: {}\.dequantize\(\)",
        ),
        "meta": (torch.empty((30, 8), device="meta"), "meta device, which has no values.*Fix: "),
        "float8": (torch.tensor(FEATURES).to(torch.float8_e4m3fn), r"float8_e4m3fn.*Fix: {}\.float\(\)"),
        "complex tensor": (torch.tensor(FEATURES).to(torch.complex64), r"complex64.*Fix: {}\.real"),
        "bool tensor": (torch.ones((30, 8), dtype=torch.bool), r"bool.*Fix: {}\.float\(\)"),
        "complex": (FEATURES.astype(complex), r"complex128.*Fix: {}\.real"),
        "integers": (np.eye(8, dtype=int), r"int64.*Fix: {}\.astype\('float32'\)"),
        "bool": (np.ones((30, 8), bool), r"bool.*Fix: "),
        "record": (_record(), r"a structured array with the fields 'x', 'y'.*Fix: numpy.*unstructured\({}\)"),
        "structured": (np.asarray(_record()), r"a structured array with the fields 'x', 'y'.*Fix: "),
        "objects": (FEATURES.astype(object), r"object.*Fix: numpy\.asarray\({}, dtype='float32'\)"),
        "strings": (FEATURES.astype(str), r"<U.*Fix: numpy\.asarray\({}, dtype='float32'\)"),
        "dates": (np.zeros((30, 8), "M8[s]"), r"datetime64\[s\].*Fix: "),
        "durations": (np.zeros((30, 8), "m8[s]"), r"timedelta64\[s\].*Fix: "),
        "void": (np.zeros((30, 8), "V4"), r"\|V4.*Fix: "),
        "masked": (np.ma.masked_array(FEATURES), "MaskedArray.*Fix: "),
        "matrix": (np.asmatrix(FEATURES), "matrix.*Fix: "),
        "scipy sparse": (scipy.sparse.csr_array(FEATURES), r"csr_array. Fix: {}\.toarray\(\)"),
        "list": (FEATURES.tolist(), r"list. Fix: numpy\.asarray\({}, dtype='float32'\)"),
        "none": (None, "NoneType. Fix: "),
        "string": ("features.npy", "str. Fix: "),
        "mapping": ({"features": FEATURES}, "dict. Fix: "),
        "generator": ((row for row in FEATURES), "generator. Fix: "),
    }  # fmt: skip


def _calls():
    for library in ("numpy", "torch"):
        prototypes = _to(library, PROTOTYPES)
        method = OnlineADAPT(prototypes, logit_scale=20.0)
        yield f"adapt {library}", "features", method.adapt
        yield f"predict {library}", "features", method.predict
        yield f"views {library}", "views", TDA(prototypes).adapt_views
        yield f"support {library}", "features", lambda x, t=prototypes: TipAdapter(t, support=(x, LABELS))
    yield "prototypes", "prototypes", ZeroShot
    yield "normalize", "features", normalize
    yield "average_views", "views", lambda x: average_views(x, PROTOTYPES, 20.0)
    yield "set", "features", lambda x: FeatureSet(x, prototypes=PROTOTYPES)
    yield "set prototypes", "prototypes", lambda x: FeatureSet(FEATURES, prototypes=x)
    yield "set prompts", r"prototypes\['a'\]", lambda x: FeatureSet(FEATURES, prototypes={"a": x})
    yield "set views", "views", lambda x: FeatureSet(prototypes=PROTOTYPES, views=x)


CALLS = {name: (argument, call) for name, argument, call in _calls()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", REFUSED)
def test_other_kinds_are_refused_with_the_argument_and_the_fix(kind, call):
    given, message = REFUSED[kind]
    argument, function = CALLS[call]
    if kind == "none" and call in ("set", "set views"):
        pytest.skip("None means that this part is not given")
    if kind == "mapping" and call == "set prototypes":
        pytest.skip("a mapping is one matrix per prompt mode")
    with pytest.raises(TypeError, match=f"{argument} .*got .*{message.replace('{}', argument)}"):
        function(given)


BAD_LABELS = {
    "ragged": ([[0], [1, 2]], "labels must be a flat list of class indices"),
    "ragged deeper": ([0, [1]], "labels must be a flat list of class indices"),
    "sparse": (torch.zeros(2, dtype=torch.int64).to_sparse(), "labels must be a dense tensor with values.*to_dense"),
    "meta": (torch.zeros(2, dtype=torch.int64, device="meta"), "labels must be a dense tensor with values.*meta"),
    "float8": (torch.zeros(2).to(torch.float8_e5m2), r"labels must hold integers.*Fix: numpy.asarray\(labels\).astype"),
    "bool": (np.array([True, False]), r"labels must hold integers.*bool.*astype\(int\)"),
    "NaN": (np.array([0.0, np.nan]), "labels must hold integers.*float64.*drop the rows whose label is NaN"),
    "object integers": (np.array([0, 1], object), r"labels must hold integers.*object.*astype\(int\)"),
    "names": (["cat", "dog"], r"labels must hold integers.*class_names\.index"),
    "object names": (np.array(["cat", None], object), r"labels must hold integers.*class_names\.index"),
    "dates": (np.zeros(2, "M8[s]"), "labels must hold integers.*datetime64"),
    "record": (np.zeros(2, [("x", "i4")]), "labels must hold integers.*structured array with the fields 'x'"),
    "huge": ([0, 2**70], "labels must hold integers"),
    "negative": ([0, -1], "labels row 1 is -1"),
    "matrix": (np.zeros((2, 2), int), r"labels must have one entry per row, shape \(2,\); got shape \(2, 2\)"),
    "column": (np.zeros((2, 1), int), r"labels must have one entry per row.*Fix: labels\[:, 0\]"),
    "a set": ({0, 1}, "labels must be a vector of class indices; got set"),
    "a mapping": ({0: 1}, "labels must be a vector of class indices; got dict"),
    "a number": (3, "labels must be a vector of class indices; got int"),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
def test_labels_are_refused_with_the_argument_and_the_fix(kind):
    labels, message = BAD_LABELS[kind]
    with pytest.raises((TypeError, ValueError), match=message):
        check_labels("labels", labels, rows=2, classes=4)
    with pytest.raises((TypeError, ValueError), match=message):
        FeatureSet(FEATURES[:2], prototypes=PROTOTYPES, labels=labels)
    with pytest.raises((TypeError, ValueError), match=f"support {message}"):
        TipAdapter(PROTOTYPES, support=(FEATURES[:2], labels))


@pytest.mark.parametrize("dtype", ["i1", "u1", ">i4", "<i8", "u8"])
def test_labels_of_every_integer_type(dtype):
    assert check_labels("labels", LABELS.astype(dtype), rows=30, classes=4).tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (np.array([["cat", "dog"], ["owl", "fox"]]), "class_names must be a sequence of names.*got ndarray"),
        (np.arange(4), "class_names must be a sequence of names.*got ndarray of int64"),
        (torch.arange(4), "class_names must be a sequence of names.*got Tensor"),
        (Frame(["cat", None, "owl", "fox"]), r"class_names\[1\] must be a string; got None"),
        (
            np.ma.masked_array(["cat", "dog", "owl", "fox"], [0, 1, 0, 0]),
            r"class_names\[1\] must be a string; got None",
        ),
        (np.str_("cat"), "class_names must be a sequence of names; got the single string"),
        ({"cat", "dog", "owl", "fox"}, "class_names must be a sequence of names, in the order"),
        ((name for name in NAMES), "class_names must be a sequence of names, in the order"),
    ],
)
def test_class_names_that_are_no_list_of_strings_are_refused(names, message):
    with pytest.raises(TypeError, match=message):
        FeatureSet(FEATURES, prototypes=PROTOTYPES, class_names=names)


@pytest.mark.parametrize("indices", [[[0], [1, 2]], torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"), "ab"])
def test_indices_of_a_subset_are_refused_by_name(indices):
    with pytest.raises((TypeError, ValueError), match="indices must be a vector of integers, a mask or a slice"):
        FeatureSet(FEATURES, prototypes=PROTOTYPES).subset(indices)
