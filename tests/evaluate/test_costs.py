"""Costs of methods that use an encoder, per image and for the set-up; and which encoders are accepted."""

import copy
import gc
import pickle
import weakref
from dataclasses import replace

import numpy as np
import pytest

from evaluate import fake_methods, view_fixtures
from zeroshift import FeatureSet, methods, normalize
from zeroshift.evaluate import (
    DatasetRef,
    EncoderRef,
    JobOutcome,
    Ledger,
    MethodSpec,
    Trial,
    accuracy,
    plan_comparison,
    run_plan,
    summarize,
)
from zeroshift.evaluate.costs import COSTS, EncoderCounts, costs_per_image, count_calls
from zeroshift.evaluate.encoder_ref import check_fit
from zeroshift.evaluate.results import differing_fields, flatten, job_identity
from zeroshift.evaluate.trial import run_trial
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.towers import PromptedVision, Tower, VisionOutput
from zeroshift.testing import examples
from zeroshift.testing.examples import ExampleText

K = 4
NAMES = tuple(f"kind {letter}" for letter in "abcd")


@pytest.fixture
def seen(clusters) -> FeatureSet:
    return view_fixtures.with_views(clusters).subset(slice(0, 12))


@pytest.fixture
def behind(seen, monkeypatch) -> EncoderRef:
    view_fixtures.stand_in_encoder(monkeypatch, seen.prototypes_for())
    return EncoderRef.named("no-encoder")


def tpt(behind: EncoderRef | None, **parameters) -> Trial:
    names = () if behind is None else NAMES
    return Trial(
        "seen", "digest", "default", MethodSpec("tpt", parameters), None, None, encoder=behind, class_names=names
    )


class ExampleVision(PromptedVision):
    """Images that are their own features."""

    input_shape, width, dimension, more = (3,), 3, 3, "of its own kind"
    identity = {"example": "vision"}  # noqa: RUF012 (stands in for a property)

    def check(self, name, images):
        pass

    def encode(self, images, prompt):
        return VisionOutput(images, images)

    def pull_back(self, images, prompt, upstream):
        return np.zeros_like(prompt)


class OtherTower(Tower):
    identity = {}  # noqa: RUF012 (stands in for a property)


def test_counting_text_passes_changes_nothing():
    plain, counts = ExampleText(normalize(np.random.default_rng(0).normal(size=(K, 6)))), EncoderCounts()
    text = count_calls(plain, counts)
    np.testing.assert_array_equal(text.features(text.context), plain.features(plain.context))
    assert counts == EncoderCounts(prompts=K)
    upstream = np.ones((K, 6))
    np.testing.assert_array_equal(text.pull_back(text.context, upstream), plain.pull_back(plain.context, upstream))
    assert counts == EncoderCounts(prompts=K, gradients=K, steps=1)
    assert (text.identity, text.n_classes, text.dimension) == (plain.identity, K, 6)
    assert text._mixing is plain._mixing  # what the one has beyond its kind, the other has
    assert repr(text) == repr(plain)
    assert copy.deepcopy(text) is text
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        text.nonsense  # noqa: B018 (the error is the point)


def test_counting_vision_passes_counts_images():
    counts = EncoderCounts()
    vision = count_calls(ExampleVision(), counts)
    images = np.eye(3)
    assert vision.encode(images, None).features is images
    vision.pull_back(images[:2], np.zeros((1, 3)), np.zeros((2, 3)))
    vision.check("images", images)
    assert counts == EncoderCounts(images=5, steps=1)
    assert (vision.more, vision.identity, vision.width) == ("of its own kind", {"example": "vision"}, 3)


def test_counting_passes_with_other_layer_norms_and_noise():
    """They are counted as others are, and give the same."""
    prototypes = normalize(np.random.default_rng(0).normal(size=(K, 6)))
    text, vision = ExampleText(prototypes), examples.ExampleVision(prototypes)
    counts, norms, noise = EncoderCounts(), np.full(3, 0.1), np.full(3, 0.2)
    counted_text, counted_vision = count_calls(text, counts), count_calls(vision, counts)
    for name, arguments in (("features_with_norms", (norms,)), ("pull_back_norms", (norms, prototypes))):
        np.testing.assert_array_equal(getattr(counted_text, name)(*arguments), getattr(text, name)(*arguments))
    assert counts == EncoderCounts(prompts=K, gradients=K, steps=1)
    calls = [
        ("encode_with_norms", (prototypes, norms)), ("pull_back_norms", (prototypes, norms, prototypes)),
        ("encode_with_noise", (prototypes, noise)), ("pull_back_noise", (prototypes, noise, prototypes)),
    ]  # fmt: skip
    for name, arguments in calls:
        np.testing.assert_array_equal(getattr(counted_vision, name)(*arguments), getattr(vision, name)(*arguments))
    assert counts == EncoderCounts(prompts=K, gradients=K, images=4 * K, steps=3)
    assert (counted_text.norms is text.norms, counted_vision.norms is vision.norms) == (True, True)
    assert counted_vision.noise_shape == vision.noise_shape


def test_an_object_of_another_kind_is_not_changed():
    tower = OtherTower()
    assert count_calls(tower, EncoderCounts()) is tower


def test_costs_per_image():
    found = costs_per_image(EncoderCounts(prompts=40, gradients=20, images=6, steps=10), images=2, views=64, steps=3)
    assert found == {"image_passes": 67, "prompt_passes": 20, "prompt_gradients": 10, "gradient_steps": 8}
    assert costs_per_image(EncoderCounts(), images=7, views=1, steps=0) == COSTS


@pytest.mark.parametrize("steps", [1, 3])
def test_prompts_and_gradients_of_a_run(seen, behind, steps):
    """Each step takes one gradient through K prompts, and the changed words are encoded once after each."""
    record = run_trial(tpt(behind, steps=steps), seen)
    found = {name: record[name] for name in COSTS}
    assert found == {
        "image_passes": view_fixtures.N_VIEWS,
        "prompt_passes": steps * K,
        "prompt_gradients": steps * K,
        "gradient_steps": steps,
    }
    assert record["setup_prompts"] >= K  # encoded once for all images, and so no cost of any


@pytest.mark.parametrize("name", ["coop", "cocoop"])
def test_learned_prompts_are_compared_with_an_encoder_and_labelled_samples(seen, behind, tmp_path, name):
    """Training is a part of the set-up. CoCoOp encodes K prompts for each image, CoOp none."""
    spec = MethodSpec(name, parameters={"epochs": 2, "batch_size": 4})
    planned = plan_comparison([DatasetRef.of("seen", seen)], [spec], encoder=behind)
    outcomes = list(run_plan(planned, Ledger(tmp_path)))
    assert outcomes
    assert not [outcome.error for outcome in outcomes if outcome.error]
    for record in (outcome.record for outcome in outcomes):
        assert record["setup_prompts"] > K
        assert record["prompt_passes"] == (K if name == "cocoop" else 0)
        assert record["prompt_gradients"] == 0


def test_a_run_with_an_encoder_starts_from_the_encoder_s_own_words(seen, behind, monkeypatch):
    moved = normalize(seen.prototypes_for() + 0.05)
    asked = view_fixtures.stand_in_encoder(monkeypatch, moved)
    record = run_trial(tpt(behind), seen)
    assert set(asked) == {(seen.class_names, PromptTuned.context_words)}
    method = methods.create("tpt", moved, text=ExampleText(moved), logit_scale=20.0)
    assert record["accuracy"] == accuracy(method.adapt_views(np.array(seen.views)), seen.labels)
    own = FeatureSet(seen.features, prototypes=moved, labels=seen.labels)
    assert record["zero_shot_accuracy"] == own.zero_shot_accuracy()
    assert "text" not in record["settings"]


def test_the_encoder_is_a_part_of_the_key_and_of_the_record(seen, behind):
    base = tpt(behind)
    for other in ({"revision": "5678"}, {"device": "cuda"}):
        assert replace(base, encoder=replace(behind, identity={**behind.identity, **other})).key != base.key
    assert replace(base, encoder=replace(behind, source="renamed")).key == base.key
    assert base.describe()["encoder"] == {
        "family": "none",
        "revision": "1234",
        "dtype": "float32",
        "device": "cpu",
        "source": "no-encoder",
    }
    assert pickle.loads(pickle.dumps(base)).key == base.key


def test_sets_with_other_class_names_are_other_jobs(seen, behind, monkeypatch, tmp_path):
    """Prompts contain the class names, which are not part of the digest of a set."""
    renamed = changed(seen, class_names=["w", "x", "y", "z"], logit_scale=seen.logit_scale)
    datasets = [DatasetRef.of("seen", seen), DatasetRef.of("renamed", renamed)]
    assert datasets[0].digest == datasets[1].digest
    planned = plan_comparison(datasets, [MethodSpec("tpt"), MethodSpec("mta")], encoder=behind)
    one, other = (trial for trial in planned.trials if trial.slug == "tpt")
    assert one.key != other.key
    assert job_identity(flatten(one.describe())) != job_identity(flatten(other.describe()))
    plain = [trial for trial in planned.trials if trial.slug == "mta"]
    assert plain[0].key == plain[1].key  # nothing it does depends on names
    asked = view_fixtures.stand_in_encoder(monkeypatch, seen.prototypes_for())
    assert not [outcome.error for outcome in run_plan(planned, Ledger(tmp_path)) if outcome.error]
    assert {names for names, _ in asked} == {seen.class_names, renamed.class_names}


def test_class_names_must_be_those_of_the_set(seen, behind):
    with pytest.raises(ValueError, match=r"class_names must be those of seen, 4; got 3\. Fix: class_names=features"):
        run_trial(replace(tpt(behind), class_names=("a", "b", "c")), seen)
    with pytest.raises(ValueError, match=r"tpt needs class_names; got \(\)\. Fix: class_names=features\.class_names"):
        replace(tpt(behind), class_names=())
    with pytest.raises(ValueError, match=r"zero_shot takes no class_names; got \('a',\)\. Fix: class_names=\(\)"):
        Trial("seen", "digest", "default", MethodSpec("zero_shot"), 0, None, class_names=("a",))


def test_names_that_make_no_prompts_are_rejected_before_anything_is_run(seen, behind, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("class_names[0] is blank")

    monkeypatch.setattr("zeroshift.encode.prompted_text", refuse)
    with pytest.raises(ValueError, match=r"seen: class_names\[0\] is blank"):
        plan_comparison([DatasetRef.of("seen", seen)], [MethodSpec("tpt")], encoder=behind)


def test_another_encoder_replaces_the_first(behind):
    first = weakref.ref(behind.load())
    assert first() is behind.load()
    EncoderRef.named("another")
    gc.collect()
    assert first() is None


def test_memory_of_another_device_is_not_measured(seen, behind):
    elsewhere = replace(behind, identity={**behind.identity, "device": "cuda"})
    assert run_trial(tpt(elsewhere), seen)["peak_bytes"] is None


def test_only_methods_that_need_an_encoder_get_one(behind):
    with pytest.raises(ValueError, match=r"tpt needs encoder; got None. Fix: encoder=EncoderRef.named"):
        tpt(None)
    with pytest.raises(ValueError, match="zero_shot takes no encoder; got EncoderRef"):
        Trial("seen", "digest", "default", MethodSpec("zero_shot"), 0, None, encoder=behind)


def test_methods_skipped_without_an_encoder_and_without_images(seen, behind, monkeypatch):
    dataset = DatasetRef.of("seen", seen)
    left = plan_comparison([dataset], [MethodSpec("tpt")]).skipped
    wanted = "tpt: needs the encoder the features come from, to tune its prompts. Fix: --encoder SOURCE"
    assert [str(one) for one in left] == [wanted]
    assert len(plan_comparison([dataset], [MethodSpec("tpt")], encoder=behind).trials) == 1

    class Looking(fake_methods.Stream):
        """Needs images."""

        name, needs, model_parameters = "looking", ("prototypes", "vision"), ("vision",)

        def __init__(self, prototypes, *, vision, logit_scale=100.0):
            fake_methods.StandIn.__init__(self, prototypes, vision=vision, logit_scale=logit_scale)

    fake_methods.register(monkeypatch, Looking)
    (one,) = plan_comparison([dataset], [MethodSpec("looking")], encoder=behind).skipped
    assert one.reason.startswith("needs the images themselves, not their features. Fix: leave it out; in Python, ")


def changed(seen: FeatureSet, **changes) -> FeatureSet:
    given = {"prototypes": seen.prototypes, "labels": seen.labels, "class_names": seen.class_names, **changes}
    return FeatureSet(views=np.array(seen.views), **given)


def test_an_encoder_must_be_the_one_the_features_come_from(seen, behind, monkeypatch):
    words = [PromptTuned.context_words]
    check_fit("seen", seen, behind, words)
    same = changed(seen, provenance={"encoder": {"revision": "1234"}}, prototypes=-seen.prototypes_for())
    check_fit("seen", same, behind, words)  # what the set says of itself counts more than a guess
    other = changed(seen, provenance={"encoder": {"revision": "5678"}})
    with pytest.raises(ValueError, match=r"seen was made with revision 5678 .* is 1234\. Fix: --encoder the one"):
        check_fit("seen", other, behind, words)
    turned = changed(seen, prototypes=np.roll(seen.prototypes_for(), 1, axis=1))
    with pytest.raises(ValueError, match=r"its prototypes are not those of no-encoder: their mean cosine .*Fix: --enc"):
        check_fit("seen", turned, behind, words)
    both = changed(seen, prototypes={"a": turned.prototypes_for(), "b": seen.prototypes_for()})
    check_fit("seen", both, behind, words)  # one of the modes is enough
    with pytest.raises(ValueError, match=r"seen has no class names, .*Fix: give class_names"):
        check_fit("seen", changed(seen, class_names=None), behind, words)
    view_fixtures.stand_in_encoder(monkeypatch, np.eye(K, 7))
    with pytest.raises(ValueError, match=r"seen has features of d = 12, the encoder no-encoder has d = 7\. Fix: --en"):
        check_fit("seen", seen, behind, words)


def test_a_wrong_encoder_is_rejected_before_anything_runs(seen, behind):
    other = changed(seen, provenance={"encoder": {"revision": "5678"}})
    with pytest.raises(ValueError, match="other was made with revision 5678"):
        plan_comparison(
            [DatasetRef.of("seen", seen), DatasetRef.of("other", other)], [MethodSpec("tpt")], encoder=behind
        )
    planned = plan_comparison(
        [DatasetRef.of("other", other)], [MethodSpec("zero_shot")], encoder=behind
    )  # nobody uses it there
    assert {trial.encoder for trial in planned.trials} == {None}
    without = FeatureSet(
        other.features, prototypes=other.prototypes, labels=other.labels, provenance=dict(other.provenance)
    )
    planned = plan_comparison(
        [DatasetRef.of("seen", seen), DatasetRef.of("plain", without)], [MethodSpec("tpt")], encoder=behind
    )
    assert [str(left) for left in planned.skipped] == [
        "tpt on plain: needs several views of each image. Fix: zeroshift extract --views 64"
    ]
    assert {trial.features for trial in planned.trials} == {"seen"}


def test_a_comparison_with_an_encoder_resumes_from_records(seen, behind, tmp_path):
    planned = plan_comparison(
        [DatasetRef.of("seen", seen)], [MethodSpec("zero_shot"), MethodSpec("tpt")], orders=1, encoder=behind
    )
    first = summarize(planned, list(run_plan(planned, Ledger(tmp_path))))
    assert not first.failed
    assert first.overall[1].costs == {
        "image_passes": view_fixtures.N_VIEWS,
        "prompt_passes": K,
        "prompt_gradients": K,
        "gradient_steps": 1,
    }
    assert first.overall[0].costs == COSTS
    assert first.overall[0].setup_prompts == 0
    assert first.overall[1].setup_prompts >= K
    again = list(run_plan(planned, Ledger(tmp_path)))
    assert all(outcome.recorded for outcome in again)
    assert summarize(planned, again).overall == first.overall


def test_records_from_before_costs_were_counted(seen):
    planned = plan_comparison([DatasetRef.of("seen", seen)], [MethodSpec("zero_shot")], orders=1)
    (run,) = planned.trials
    record = run_trial(run, seen)
    old = {name: value for name, value in record.items() if name not in (*COSTS, "setup_prompts")}
    assert run.is_valid(old)
    assert not run.is_valid({**record, "prompt_passes": "many"})
    (standing,) = summarize(planned, [JobOutcome(run, old, None, recorded=True)]).overall
    assert standing.costs == COSTS
    assert standing.setup_prompts == 0


def test_runs_with_another_encoder_are_other_jobs_but_not_with_another_name():
    one = {"digest": "d", "contestant": "tpt", "encoder": {"revision": "1234", "source": "here"}}
    renamed = {**one, "encoder": {"revision": "1234", "source": "there"}}
    other = {**one, "encoder": {"revision": "5678", "source": "here"}}
    without = {"digest": "d", "contestant": "tpt"}
    one, renamed, other, without = map(flatten, (one, renamed, other, without))
    assert job_identity(one) == job_identity(renamed)
    assert len({job_identity(one), job_identity(other), job_identity(without)}) == 3
    assert differing_fields([one, other]) == ["encoder.revision"]


def test_only_prompt_tuning_methods_ignore_the_sets_prototypes(seen, monkeypatch):
    """B2TPT searches around the set's own classifier, which its eight meaningless words are not."""
    view_fixtures.stand_in_encoder(monkeypatch, np.roll(seen.prototypes_for(), 1, axis=0))
    behind = EncoderRef.named("no-encoder")
    small = {"text_latent": 3, "population": 4, "generations": 2, "batch_size": 6}
    found = {}
    for spec in (MethodSpec("tpt"), MethodSpec("b2tpt", small)):
        trial = Trial("seen", "digest", "default", spec, 0, None, encoder=behind, class_names=NAMES)
        found[spec.method] = run_trial(trial, seen)["zero_shot_accuracy"]
    assert found["b2tpt"] == seen.zero_shot_accuracy()
    assert found["tpt"] != seen.zero_shot_accuracy()
