"""The plain implementations return the same arrays as the authors' own code."""

import json

import numpy as np
import pytest
import torch

from goldens import golden
from plain import (
    ape,
    bca,
    boostadapter,
    clip_adapter,
    cosmic,
    dmn,
    dota,
    ecalp,
    frolic,
    gda_clip,
    histo_transclip,
    oga,
    stata,
    t3a,
    taskres,
    tda,
    timo,
    tip_adapter,
    tip_adapter_f,
    tip_x,
    transclip,
    zlap,
)


def assert_agrees(answer, expected, tolerance, *, predictions=True):
    np.testing.assert_allclose(answer.numpy(), expected, rtol=0, atol=tolerance)
    if predictions:
        np.testing.assert_array_equal(answer.numpy().argmax(-1), expected.argmax(-1))


def test_tda(given):
    want = golden("tda")
    logits = tda.scores(given.x, given.t, released=True)
    assert_agrees(logits, want["logits"], 2e-4)
    assert_agrees(torch.softmax(logits, 1), want["probs"], 2e-5)
    assert_agrees(tda.scores(given.x, given.t, negative=False), want["pos_only_logits"], 2e-4)
    assert_agrees(tda.scores(given.x, given.t, positive=False, released=True), want["neg_only_logits"], 2e-4)
    other = tda.scores(given.x, given.t, positive_alpha=4.0, positive_beta=8.0, released=True)
    assert_agrees(other, want["alt_logits"], 2e-4)


def test_tda_views(given):
    want, found = golden("tda_views"), {}
    assert_agrees(tda.scores(given.views, given.views_t, released=True, details=found), want["logits"], 1e-4)
    np.testing.assert_array_equal(found["selected_views"].numpy(), want["selected_views"])


def test_dmn(given):
    want, found = golden("dmn"), {}
    fused = dmn.scores(given.x, given.t, details=found)
    assert_agrees(fused / 2, want["fused1_probs"], 2e-5)
    assert_agrees(found["text_probs"], want["text_probs"], 2e-5)
    assert_agrees(found["memory_probs"], want["memory_probs"], 2e-5)
    np.testing.assert_array_equal(found["memory_count"].numpy(), want["memory_count"])
    dmn.scores(given.x, given.t, capacity=8, details=found)
    assert_agrees(found["memory_probs"], want["mem8_memory_probs"], 2e-5)


def test_dmn_views(given):
    want, found = golden("dmn_views"), {}
    assert_agrees(dmn.scores(given.views[:, :32], given.views_t, details=found) / 2, want["fused1_probs"], 2e-5)
    assert_agrees(found["text_probs"], want["text_probs"], 2e-5)
    assert_agrees(found["memory_probs"], want["memory_probs"], 2e-5)


def test_dota(given):
    want, found = golden("dota"), {}
    assert_agrees(dota.scores(given.x, given.t, details=found), want["logits"], 2e-4)
    assert_agrees(found["dota_logits"], want["dota_logits"], 6e-4)
    assert_agrees(found["final_mu"], want["final_mu"], 2e-6, predictions=False)
    assert_agrees(found["final_c"], want["final_c"], 3e-4, predictions=False)
    assert_agrees(found["final_overall_sigma"], want["final_overall_sigma"], 2e-8, predictions=False)
    assert_agrees(found["final_precision"], want["final_precision"], 2e-3, predictions=False)
    assert_agrees(dota.scores(given.x, given.t, eta=0.2, rho=0.005), want["alt_logits"], 2e-4)
    assert_agrees(dota.scores(given.x, given.t, initial_means=given.t, details=found), want["clipinit_logits"], 2e-3)
    assert_agrees(found["dota_logits"], want["clipinit_dota_logits"], 5e-3)


def test_dota_views(given):
    want, found = golden("dota_views"), {}
    assert_agrees(dota.scores(given.views, given.views_t, eta=0.5, details=found), want["logits"], 1e-4)
    assert_agrees(found["final_mu"], want["final_mu"], 2e-6, predictions=False)
    assert_agrees(found["final_c"], want["final_c"], 3e-4, predictions=False)


def test_bca(given):
    want, found = golden("bca"), {}
    assert_agrees(bca.scores(given.x, given.t, details=found), want["probs"], 2e-5)
    assert_agrees(found["final_mu"], want["final_mu"], 2e-6, predictions=False)
    assert_agrees(found["final_prior"], want["final_prior"], 1e-5, predictions=False)
    assert_agrees(bca.scores(given.x, given.t, likelihood_count=10.0), want["alt10_probs"], 2e-5)
    port = {"likelihood_count": 1.0, "likelihood_threshold": 0.5, "prior_threshold": 0.9}
    assert_agrees(bca.scores(given.x, given.t, **port), want["alt1_probs"], 2e-5)


@pytest.mark.parametrize(
    ("key", "parameters", "tolerance"),
    [
        ("bs32_probs", {"batch": 32}, 4e-5),
        ("fp16mem_probs", {"memory_dtype": torch.float16}, 5e-4),
        ("ridge_probs", {"covariance": "ridge"}, 4e-5),
        ("normmu_probs", {"normalise_means": True}, 4e-5),
        ("cap32_bs32_probs", {"capacity": 32, "batch": 32}, 4e-5),
    ],
)
def test_oga_variants(given, key, parameters, tolerance):
    assert_agrees(oga.scores(given.x, given.t, released=True, **parameters), golden("oga")[key], tolerance)


def test_oga(given):
    want, found = golden("oga"), {}
    assert_agrees(oga.scores(given.x, given.t, released=True, details=found), want["probs"], 4e-5)
    assert_agrees(found["final_mus"], want["final_mus"], 1e-6, predictions=False)
    assert_agrees(found["final_sigma"], want["final_sigma"], 1e-8, predictions=False)
    assert_agrees(found["final_inv_sigma"], want["final_inv_sigma"], 1e-3, predictions=False)


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("per_class", [1, 20, None, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 100))])
def test_t3a(given, per_class, batch):
    key = f"K{'neg1' if per_class is None else per_class}_bs{batch}_logits"
    parameters = {"per_class": per_class, "batch": batch, "released": True}
    assert_agrees(t3a.scores(given.x, given.t, **parameters), golden("t3a")[f"s100_{key}"], 2e-6)
    if (per_class, batch) == (20, 1):
        np.testing.assert_array_equal(golden("t3a")["logits"], golden("t3a")[f"s100_{key}"])
    # Entropies of bare cosines are equal up to rounding, which decides who stays: only most predictions can agree.
    bare = t3a.scores(given.x, given.t, logit_scale=1.0, **parameters).argmax(1)
    assert np.mean(bare.numpy() == golden("t3a")[f"s1_{key}"].argmax(1)) >= 0.985


@pytest.mark.parametrize("shots", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_ecalp(given, shots):
    # The authors' lists lose neighbours of the first ten samples, ours are exact: a few rows differ for good.
    want, found = golden("ecalp"), {}
    key = f"fewshot{shots}_" if shots else ""
    support = given.rows(want["fewshot_support_index"]) if shots else None
    answer = ecalp.scores(given.x, given.t, support=support, details=found)
    np.testing.assert_array_equal(answer.argmax(1).numpy(), want[f"{key}scores"].argmax(1))
    assert np.mean(np.abs(answer.numpy() - want[f"{key}scores"]).max(1) < 2e-6) >= 0.96
    assert np.mean(np.abs(found["probs"].numpy() - want[f"{key}probs"]).max(1) < 1e-3) >= 0.98


def test_ecalp_prefers_the_copy_of_two_equally_near_samples(given):
    # The authors' topk does; with the other choice, the specification's, half of the rows are a little off.
    want = golden("ecalp")["scores"][:150]
    share = {}
    for copy_first in (True, False):
        answer = ecalp.scores(given.x[:150], given.t, copy_first=copy_first).numpy()
        share[copy_first] = np.mean(np.abs(answer - want).max(1) < 2e-6)
    assert share[True] >= 0.95
    assert share[False] <= 0.7


def test_zlap(given):
    want = golden("zlap")
    assert_agrees(zlap.scores(given.x, given.t), want["scores"], 2e-7)
    assert_agrees(zlap.scores(given.x, given.t, exact=True), want["exact_solve_scores"], 2e-7)
    assert_agrees(zlap.scores(given.x, given.t, neighbours=10, gamma=3.0), want["k10_g3_scores"], 2e-7)
    assert_agrees(zlap.scores(given.x, given.t, scale_similarities=True), want["scaled_scores"], 4e-7)
    for exact in (False, True):
        arguments = {"unlabelled": given.unlabelled, "exact": exact}
        assert_agrees(zlap.inductive_scores(given.x, given.t, **arguments), want["inductive_scores"], 2e-6)
        assert_agrees(
            zlap.sparse_inductive_scores(given.x, given.t, **arguments), want["sparse_inductive_scores"], 2e-6
        )


def test_transclip(given):
    want, found = golden("transclip"), {}
    assert_agrees(transclip.scores(given.x, given.t, details=found), want["probs"], 4e-5)
    assert_agrees(found["init_mu"], want["init_mu"], 1e-6, predictions=False)
    rows, columns = found["affinity"].indices().numpy()
    np.testing.assert_array_equal(rows, want["affinity_rows"])
    np.testing.assert_array_equal(columns, want["affinity_cols"])
    assert_agrees(found["affinity"].values(), want["affinity_vals"], 2e-6, predictions=False)


def test_transclip_few_shot(given):
    want, found = golden("transclip"), {}
    arguments = {"support": given.rows(want["fewshot_support_index"]), "validation": given.validation, "details": found}
    assert_agrees(transclip.few_shot_scores(given.x, given.t, released=True, **arguments), want["fewshot_probs"], 2e-5)
    assert_agrees(found["all_gamma"], want["fewshot_all_gamma"], 2e-5)
    # What the specification says of the corrected order: 80.50 % right, up to 0.35 away from the released one.
    corrected = transclip.few_shot_scores(given.x, given.t, **arguments)
    assert (corrected.argmax(1) == given.labels).double().mean().item() == pytest.approx(0.805)
    assert np.abs(found["all_gamma"].numpy() - want["fewshot_all_gamma"]).max() == pytest.approx(0.35, abs=0.005)


def test_histo_transclip(given):
    want = golden("histo_transclip")
    assert_agrees(histo_transclip.scores(given.x, prompts=given.prompts), want["probs"], 4e-5)
    assert_agrees(transclip.scores(given.x, given.prompts[:, 0]), want["transclip_first_template_probs"], 6e-5)
    assert_agrees(100 * given.x @ given.prompts.mean(1).T, want["zs_logits"], 2e-4)
    assert_agrees(100 * given.x @ given.prompts[:, 0].T, want["zs_first_template_logits"], 2e-4)


def test_stata(given):
    want = golden("stata")
    assert_agrees(stata.scores(given.x, given.t), want["probs"], 4e-5)
    assert_agrees(stata.scores(given.x, given.t, released=True), want["probs"], 4e-5)
    assert_agrees(stata.scores(given.x, given.t, soft_counts=True), want["softbeta_probs"], 4e-5)
    assert_agrees(stata.scores(given.x, given.t, neighbour_weight=0.0), want["nolap_probs"], 4e-5)
    assert_agrees(stata.scores(given.x, given.t, batch_size=100), want["batch100_probs"], 4e-5)
    copied = transclip.scores(given.x, given.t, start_at_prototypes=True)
    assert_agrees(copied, want["transclip_stata_repo_probs"], 4e-5)


def test_frolic(given):
    want, found = golden("frolic"), {}
    assert_agrees(frolic.scores(given.x, given.t, prompts=given.prompts, details=found), want["logits"], 2e-3)
    logits = {"clip_logits": 2e-4, "llm_ave_logits": 2e-4, "fused_logits": 2e-3, "debias0_logits": 2e-3}
    small = {"llm_prob_logits": 4e-5, "lda_logits": 4e-6, "inmap_logits": 2e-5, "inmap_v1_logits": 2e-5}
    small |= {"inmap_v2_logits": 2e-5, "inmap_v3_logits": 2e-5, "inmap_v4_logits": 5e-4}
    for key, tolerance in (logits | small).items():
        assert_agrees(found[key], want[key], tolerance)


def test_gda_clip(given):
    want, found = golden("gda_clip"), {}
    for shots, alpha in ((16, 1.0), (4, 0.1), (1, 1e-4)):
        arguments = {"support": given.shots(shots), "validation": given.validation, "details": found}
        assert_agrees(gda_clip.scores(given.x, given.t, **arguments), want[f"shots{shots}_logits"], 6e-4)
        assert found["alpha"] == alpha
    assert_agrees(
        gda_clip.scores(given.x, given.t, support=given.shots(16), alpha=1.0, details=found),
        want["alpha1_16_logits"],
        6e-4,
    )
    assert_agrees(found["gda_only_scores"], want["gda_only16_scores"], 6e-4)
    assert_agrees(found["precision"], want["precision16"], 6e-4, predictions=False)
    assert_agrees(found["means"], want["means16"], 1e-6, predictions=False)


def test_tip_adapter(given):
    want = golden("tip_adapter")
    for shots, beta in ((16, 1.7905), (4, 0.7555)):
        found = {}
        arguments = {"support": given.shots(shots), "validation": given.validation, "details": found}
        assert_agrees(tip_adapter.scores(given.x, given.t, **arguments), want[f"shots{shots}_logits"], 2e-4)
        assert found == pytest.approx({"alpha": 2.855, "beta": beta})
        assert_agrees(
            tip_adapter.scores(given.x, given.t, support=given.shots(shots)), want[f"init{shots}_logits"], 2e-4
        )


def runs(name):
    return json.loads(str(golden(name)["hyperparameters_json"]))["runs"]


def order(name, run):
    found = golden(name).get(f"{run}_order")
    return None if found is None else torch.from_numpy(found.astype(np.int64))


@pytest.mark.parametrize("run", runs("tip_adapter_f"))
def test_tip_adapter_f(given, run):
    want, hyper, found = golden("tip_adapter_f"), runs("tip_adapter_f")[run], {}
    arguments = {
        "support": given.shots(hyper["shots"]),
        "epochs": hyper["epochs"],
        "batch": hyper["batch"],
        "order": order("tip_adapter_f", run),
        "details": found,
    }
    assert_agrees(tip_adapter_f.scores(given.x, given.t, **arguments), want[f"{run}_logits"], 3e-4)
    np.testing.assert_allclose(found["losses"], want[f"{run}_loss"], rtol=0, atol=2e-5)
    assert_agrees(found["keys"], want[f"{run}_keys"], 1e-5, predictions=False)
    arguments["validation"] = given.validation
    assert_agrees(tip_adapter_f.scores(given.x, given.t, **arguments), want[f"{run}_searched_last_logits"], 3e-4)
    arguments["selection"] = given.x, given.labels
    assert_agrees(tip_adapter_f.scores(given.x, given.t, **arguments), want[f"{run}_official_logits"], 3e-4)
    beta, alpha = hyper["official_beta_alpha"]
    assert (found["beta"], found["alpha"]) == pytest.approx((beta, alpha))
    assert_agrees(found["keys"], want[f"{run}_best_keys"], 1e-5, predictions=False)


@pytest.mark.parametrize("run", runs("taskres"))
def test_taskres(given, run):
    want, hyper, found = golden("taskres"), runs("taskres")[run], {}
    logits = taskres.scores(
        given.x,
        given.t,
        support=given.shots(hyper["shots"]),
        alpha=hyper["alpha"],
        base_norm=hyper["base_multiplier"],
        rate=hyper["lr"],
        epochs=hyper["epochs"],
        batch=hyper["batch"],
        order=order("taskres", run),
        details=found,
    )
    assert_agrees(logits, want[f"{run}_logits"], 5e-4)
    np.testing.assert_allclose(found["losses"], want[f"{run}_loss"], rtol=0, atol=2e-5)
    assert_agrees(found["residual"], want[f"{run}_residual"], 2e-5, predictions=False)


@pytest.mark.parametrize("run", runs("clip_adapter"))
def test_clip_adapter(given, run):
    want, hyper, found = golden("clip_adapter"), runs("clip_adapter")[run], {}
    adam = hyper["optimiser"] == "adam"
    logits = clip_adapter.scores(
        given.x,
        given.t,
        support=given.shots(hyper["shots"]),
        adam=adam,
        rate=hyper["lr"],
        epochs=hyper["epochs"],
        batch=hyper["batch"],
        initial=tuple(torch.from_numpy(want[name]).to(given.x.dtype) for name in ("init_w1", "init_w2")),
        order=order("clip_adapter", run),
        details=found,
    )
    tolerance = 5e-3 if adam else 5e-4
    assert_agrees(logits, want[f"{run}_logits"], tolerance)
    np.testing.assert_allclose(found["losses"], want[f"{run}_loss"], rtol=0, atol=5e-5)
    for layer, name in zip(found["layers"], ("w1", "w2"), strict=True):
        assert_agrees(layer, want[f"{run}_{name}"], tolerance / 10, predictions=False)


@pytest.mark.parametrize(("shots", "alpha", "alpha_s"), [(16, 10.0, 100.0), (4, 100.0, 100.0)])
def test_timo(given, shots, alpha, alpha_s):
    want, found = golden("timo"), {}
    arguments = {
        "prompts": given.prompts,
        "support": given.shots(shots),
        "validation": given.validation,
        "details": found,
    }
    assert_agrees(timo.scores(given.x, given.t, **arguments), want[f"shots{shots}_logits"], 1e-3)
    assert found["alpha"] == alpha
    if shots == 16:
        assert_agrees(found["igt_weights"], want["igt_weights16"], 2e-6, predictions=False)
    assert_agrees(timo.searched_scores(given.x, given.t, **arguments), want[f"timo_s_shots{shots}_logits"], 1e-3)
    assert (found["alpha"], found["copies"]) == (alpha_s, 1)
    if shots == 16:
        assert_agrees(found["igt_weights"], want["igt_weights16_search"], 2e-6, predictions=False)


@pytest.mark.parametrize(("run", "shots"), [("16", 16), ("alt4", 4)])
def test_ape(given, run, shots):
    want, found = golden("ape"), {}
    parameters = {} if run == "16" else {"channel_share": 0.75, "criterion_weights": (0.5, 0.5)}
    search = {} if run == "16" else {"gamma_scale": 1.0, "gamma_steps": 20}
    arguments = {"support": given.shots(shots), "validation": given.validation, "details": found}
    name = "shots16_logits" if run == "16" else "alt4_logits"
    assert_agrees(ape.scores(given.x, given.t, **parameters, **search, **arguments), want[name], 2e-4)
    best = "best16_alpha_beta_gamma" if run == "16" else "alt4_best_alpha_beta_gamma"
    assert [found[name] for name in ("alpha", "beta", "gamma")] == pytest.approx(want[best])
    np.testing.assert_array_equal(found["channels"], want["indices16" if run == "16" else "alt4_indices"])
    divergence = want["cache_div16" if run == "16" else "alt4_cache_div"]
    assert_agrees(found["divergence"], divergence, 1e-6, predictions=False)
    if run == "16":
        assert_agrees(found["similarity"], want["sim16"], 1e-6, predictions=False)
    initial = ape.scores(given.x, given.t, **parameters, support=given.shots(shots), alpha=2.0 if run == "16" else 3.0)
    assert_agrees(initial, want["init16_logits" if run == "16" else "alt4_init_logits"], 2e-4)


def test_tip_x(given):
    want, found = golden("tip_x"), {}
    validation = given.unlabelled, torch.from_numpy(golden("problem")["unlabeled_labels"])
    fixed = {"support": given.shots(16), "released": True, "details": found}
    assert_agrees(tip_x.scores(given.x, given.t, **fixed), want["fixed16_testrange_logits"], 2e-3)
    assert_agrees(found["divergences"][:50], want["test_kl16_first50"], 3e-6, predictions=False)
    one = {"search_alpha": (1, 1), "search_beta": (5.5, 5.5), "search_gamma": (1, 1), "search_steps": (1, 1)}
    answer = tip_x.scores(given.x, given.t, validation=validation, gamma_steps=1, **one, **fixed)
    assert_agrees(answer, want["fixed16_logits"], 2e-3)
    assert_agrees(found["term"], want["kl_logits16"], 2e-3, predictions=False)
    # The authors' choices; their whole searches are repeated in tests/methods/test_tip_x.py.
    alpha, beta, gamma = want["best16_alpha_beta_gamma"].tolist()
    one = {"search_alpha": (alpha,) * 2, "search_beta": (beta,) * 2, "search_gamma": (gamma,) * 2, "gamma_steps": 1}
    answer = tip_x.scores(given.x, given.t, validation=validation, search_steps=(1, 1), **one, **fixed)
    assert_agrees(answer, want["shots16_logits"], 8e-3)
    alpha, beta, gamma = want["alt4_best_alpha_beta_gamma"].tolist()
    one = {"search_alpha": (alpha,) * 2, "search_beta": (beta,) * 2, "search_gamma": (gamma,) * 2, "gamma_steps": 1}
    four = {**fixed, "support": given.shots(4), "temperature": 0.01, "search_steps": (1, 1)}
    answer = tip_x.scores(given.x, given.t, validation=validation, **one, **four)
    assert_agrees(answer, want["alt4_logits"], 6e-4)
    assert_agrees(found["term"], want["alt4_kl_logits"], 6e-4)
    assert_agrees(found["divergences"][:100], want["alt4_test_kl"], 2e-4, predictions=False)


def test_boostadapter(given):
    want = golden("boostadapter")
    assert_agrees(boostadapter.scores(given.x, given.t, released=True), want["logits"], 2e-4)
    assert_agrees(boostadapter.scores(given.x, given.t, negative=False), want["pos_only_logits"], 2e-4)
    answer = boostadapter.scores(given.x, given.t, positive=False, released=True)
    assert_agrees(answer, want["neg_only_logits"], 2e-4)


@pytest.mark.parametrize(
    ("key", "parameters"),
    [
        ("logits", {}),
        ("delta0_logits", {"delta": 0}),
        ("noboost_logits", {"delta": None}),
        ("pos_only_logits", {"negative": False}),
        ("ori_logits", {"view_feature": "image"}),
        ("ori_noboost_logits", {"view_feature": "image", "delta": None}),
        ("eurosat_logits", {"view_feature": "image", "delta": 0, "positive_alpha": 4.0, "positive_beta": 8.0}),
    ],
)
def test_boostadapter_views(given, key, parameters):
    want, found = golden("boostadapter_views"), {}
    answer = boostadapter.scores(given.views, given.views_t, released=True, details=found, **parameters)
    assert_agrees(answer, want[key], 1e-4)
    if key == "logits":
        np.testing.assert_array_equal(torch.stack(found["boost_views"]).numpy(), want["boost_views"])


@pytest.mark.parametrize(
    ("prefix", "parameters"), [("", {}), ("alt_", {"memory_size": 4, "alpha": 4.0, "beta": 8.0, "degree": 2.5})]
)
def test_cosmic(given, prefix, parameters):
    want, found = golden("cosmic"), {}
    second = torch.from_numpy(want["aux_features"]).to(given.x.dtype)
    answer = cosmic.scores(given.x, given.t, second=second, details=found, **parameters)
    first, other = (torch.from_numpy(want[f"{prefix}well_posed_rows_{space}"]) for space in ("clip", "aux"))
    rows = {"clip_clique": first, "aux_clique": other}
    for name, values in found.items():
        if prefix + name in want:
            chosen = rows.get(name, torch.ones_like(first))
            assert_agrees(values[chosen], want[prefix + name][chosen.numpy()], 2e-5, predictions=False)
    both = first & other
    assert_agrees(answer[both], want[f"{prefix}scores"][both.numpy()], 2e-5)


def test_cosmic_views(given):
    want = golden("cosmic_views")
    second = torch.from_numpy(want["aux_features"]).to(given.x.dtype)
    answer = cosmic.scores(given.views[:, :8], given.views_t, second=second)
    both = want["well_posed_rows_clip"] & want["well_posed_rows_aux"]
    assert_agrees(answer[torch.from_numpy(both)], want["scores"][both], 2e-5)
