"""The authors' parameters for each data set: every table in full, copied a second time from their configurations."""

from __future__ import annotations

import pytest

from zeroshift.adapt import ReleasedOnlineADAPT, ReleasedTransductiveADAPT
from zeroshift.method import registered_methods
from zeroshift.methods import (
    APE,
    COSMIC,
    CTPT,
    DOTA,
    DPE,
    PTA,
    RATTA,
    TCA,
    TDA,
    TIMO,
    BoostAdapter,
    CoOp,
    PromptAlign,
    TaskRes,
    TipAdapter,
    TipAdapterF,
)

METHODS = list(registered_methods().values())

SCALES = {
    "imagenet": (20,),
    "imagenet_sketch": (20,),
    "imagenetv2": (30,),
    "imagenet_a": (40,),
    "imagenet_r": (100,),
    "imagenet_c": (10,),
    "oxford_pets": (100,),
    "eurosat": (100,),
    "fgvc_aircraft": (100,),
    "food101": (100,),
    "caltech101": (100,),
    "oxford_flowers": (60,),
    "stanford_cars": (60,),
    "dtd": (60,),
    "sun397": (60,),
    "ucf101": (70,),
}

IMAGENETS = ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")

BOOSTED = {
    "imagenet_a": (2, 5, 3, "average"),
    "imagenetv2": (1, 8, 1, "average"),
    "imagenet_r": (1, 8, 3, "average"),
    "imagenet_sketch": (2.363, 7.45, 1, "average"),
    "caltech101": (5, 5, 2, "image"),
    "dtd": (2, 3, 0, "image"),
    "ucf101": (3, 8, 0, "image"),
    "eurosat": (4, 8, 0, "image"),
    "fgvc_aircraft": (2, 2, 2, "image"),
    "food101": (1, 1, 3, "image"),
    "oxford_flowers": (1, 5, 0, "image"),
    "oxford_pets": (2, 7, 0, "image"),
    "stanford_cars": (1, 7, 3, "image"),
    "sun397": (2, 3, 1, "image"),
    "imagenet": (2, 5),
}
"""Without views, as on ImageNet, the last two have no effect."""

# One row per data set, in the order of the names above it.
TABLES = {
    APE: (
        ("channel_share", "criterion_weights", "alpha", "search_scale", "gamma_scale", "gamma_steps"),
        {
            "imagenet": (500 / 1024, (0.7, 0.3), 2, (7, 7), 0.5, 5),
            "caltech101": (800 / 1024, (0.5, 0.5), 1, (7, 7), 1, 20),
            "dtd": (400 / 1024, (0.5, 0.5), 3, (7, 7), 1, 20),
            "eurosat": (700 / 1024, (0.9, 0.1), 1, (30, 5), 1.5, 20),
            "fgvc_aircraft": (800 / 1024, (0.1, 0.9), 5, (20, 10), 1, 20),
            "food101": (700 / 1024, (0.3, 0.7), 0.8, (7, 7), 1, 20),
            "oxford_flowers": (700 / 1024, (0.4, 0.6), 3, (7, 7), 1, 20),
            "oxford_pets": (800 / 1024, (0.7, 0.3), 2, (7, 7), 1, 20),
            "stanford_cars": (500 / 1024, (0.6, 0.4), 1, (10, 7), 1, 20),
            "sun397": (800 / 1024, (0.7, 0.3), 1, (10, 7), 1, 20),
            "ucf101": (700 / 1024, (0.3, 0.7), 2, (10, 7), 1.5, 20),
        },
    ),
    BoostAdapter: (("positive_alpha", "positive_beta", "delta", "view_feature"), BOOSTED),
    COSMIC: (
        ("alpha", "beta", "memory_size"),
        {name: (*row[:2], 16 if name.startswith("imagenet") else 8) for name, row in BOOSTED.items()},
    ),
    CTPT: (("dispersion_weight",), dict.fromkeys(IMAGENETS[1:], (20,))),
    PromptAlign: (("rate",), {name: (5e-4,) for name in SCALES if not name.startswith("imagenet")}),
    PTA: (("temperature",), {"caltech101": (50,)}),
    RATTA: (("quantile",), dict.fromkeys(IMAGENETS, (0.9,))),
    DPE: (
        ("alpha", "beta", "rate", "align", "final"),
        {
            "imagenet": (6, 5, 6e-4, 0.5, "image"),
            "imagenet_a": (6, 5, 3e-4, 2.5, "views"),
            "imagenet_r": (3, 8, 6e-4, 0, "image"),
            "imagenet_sketch": (7, 7.45, 6e-4, 0.2, "image"),
            "imagenetv2": (3, 8, 5e-4, 0.5, "image"),
            "caltech101": (15, 5, 6e-4, 0.2, "image"),
            "dtd": (6, 3, 6e-4, 0.2, "image"),
            "eurosat": (3, 8, 5e-5, 0.2, "image"),
            "fgvc_aircraft": (6, 2, 6e-4, 0.2, "image"),
            "food101": (3, 1, 2e-4, 0.2, "image"),
            "oxford_flowers": (2.5, 5, 1e-4, 0.2, "image"),
            "oxford_pets": (4, 7, 5e-5, 0.2, "image"),
            "stanford_cars": (3, 7, 1e-4, 1.5, "image"),
            "sun397": (6, 3, 2e-4, 0.2, "image"),
            "ucf101": (9, 8, 4e-4, 0.2, "image"),
        },
    ),
    ReleasedOnlineADAPT: (("scale",), SCALES),
    ReleasedTransductiveADAPT: (("scale",), SCALES),
    TDA: (
        ("positive_alpha", "positive_beta"),
        {
            "imagenet": (2, 5),
            "imagenet_a": (2, 5),
            "imagenetv2": (1, 8),
            "imagenet_r": (1, 8),
            "imagenet_sketch": (2.363, 7.45),
            "caltech101": (5, 5),
            "dtd": (2, 3),
            "ucf101": (3, 8),
            "eurosat": (4, 8),
            "fgvc_aircraft": (2, 2),
            "food101": (1, 1),
            "oxford_flowers": (1, 5),
            "oxford_pets": (2, 7),
            "stanford_cars": (1, 7),
            "sun397": (2, 3),
        },
    ),
    DOTA: (
        ("epsilon", "eta", "rho"),
        {
            "imagenet": (1e-4, 0.2, 0.005),
            "imagenet_a": (1e-4, 0.5, 0.02),
            "imagenetv2": (1e-4, 0.1, 0.01),
            "imagenet_r": (1e-4, 0.3, 0.0025),
            "imagenet_sketch": (1e-4, 0.8, 0.03),
            "caltech101": (2e-3, 0.3, 0.02),
            "dtd": (1e-4, 0.3, 0.02),
            "ucf101": (1e-4, 0.4, 0.02),
            "eurosat": (1e-4, 3, 0.05),
            "fgvc_aircraft": (1e-4, 0.2, 0.01),
            "food101": (4e-5, 0.1, 0.01),
            "oxford_flowers": (1e-4, 0.2, 0.02),
            "oxford_pets": (1e-4, 0.3, 0.02),
            "stanford_cars": (1e-4, 0.3, 0.01),
            "sun397": (1e-4, 0.2, 0.01),
        },
    ),
    CoOp: (("epochs",), {"imagenet": (50,)}),
    TCA: (
        ("reservoir_size", "layer_scale", "weight", "beta"),
        {
            "imagenet": (3, 0.1, 3, 5),
            "imagenet_a": (3, 0.01, 3, 5),
            "imagenetv2": (3, 0.1, 4, 9),
            "imagenet_r": (3, 0.1, 3, 8),
            "imagenet_sketch": (3, 0.1, 4, 8),
            "caltech101": (3, 1, 7, 6),
            "dtd": (3, 1, 2, 6),
            "ucf101": (3, 0.01, 6, 8),
            "eurosat": (2, 5, 8, 7),
            "fgvc_aircraft": (3, 0.02, 2, 2),
            "food101": (3, 0.01, 2, 5),
            "oxford_flowers": (3, 0.01, 7, 7),
            "oxford_pets": (3, 5.5, 2, 6),
            "stanford_cars": (3, 0.1, 1.5, 8),
            "sun397": (3, 0.01, 4, 3),
        },
    ),
    TipAdapter: (
        ("beta", "alpha", "search_scale"),
        {
            "imagenet": (1, 1.17, (7, 3)),
            "caltech101": (1, 3, (12, 5)),
            "dtd": (1, 2, (13, 13)),
            "ucf101": (1, 3, (7, 3)),
            "eurosat": (1, 2, (12, 10)),
            "fgvc_aircraft": (1, 5, (30, 30)),
            "food101": (1, 1.17, (10, 10)),
            "oxford_flowers": (1, 10, (50, 50)),
            "oxford_pets": (1, 1.17, (7, 3)),
            "stanford_cars": (1, 3, (20, 10)),
            "sun397": (1, 1.17, (12, 10)),
        },
    ),
    TIMO: (("gamma",), {"imagenet": (1,), "oxford_flowers": (100,)}),
    TaskRes: (("alpha", "rate"), {"imagenet": (0.5, 2e-4), "oxford_flowers": (1, 2e-3)}),
}
TABLES[TipAdapterF] = (
    ("beta", "alpha", "search_scale", "epochs"),
    {name: (*row, 100 if name == "eurosat" else 20) for name, row in TABLES[TipAdapter][1].items()},
)

by_name = {"ids": lambda cls: cls.name}


@pytest.mark.parametrize("cls", TABLES, **by_name)
def test_the_whole_table(cls):
    names, rows = TABLES[cls]
    expected = {dataset: dict(zip(names, row, strict=False)) for dataset, row in rows.items()}
    assert dict(cls.presets) == expected
    assert {dataset: cls.preset(dataset) for dataset in rows} == expected


@pytest.mark.parametrize("cls", TABLES, **by_name)
def test_presets_are_allowed_parameters_and_copies(cls):
    for dataset in cls.presets:
        given = cls.preset(dataset)
        for name, value in given.items():
            assert cls.constraints[name].check(name, value) == value
            given[name] = None
        assert None not in cls.preset(dataset).values()


def test_no_other_method_has_presets():
    assert {cls for cls in METHODS if cls.presets} == set(TABLES)


@pytest.mark.parametrize("cls", [cls for cls in METHODS if not cls.presets], **by_name)
def test_a_method_without_presets_raises(cls):
    with pytest.raises(ValueError, match=f"^{cls.__name__} has no presets: its authors use one setting"):
        cls.preset("imagenet")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("flowers", "oxford_flowers"),
        ("imagenet-a", "imagenet_a"),
        ("imagenet_v2", "imagenetv2"),
        ("cars", "stanford_cars"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(given, meant):
    with pytest.raises(ValueError, match=rf"dataset must be one of caltech101, dtd, .*got '{given}'.*mean '{meant}'"):
        TDA.preset(given)


@pytest.mark.parametrize("cls", TABLES, **by_name)
def test_a_name_without_similar_ones_gets_the_list_only(cls):
    with pytest.raises(ValueError, match=r"dataset must be one of .*; got 'qqq'\.$") as refused:
        cls.preset("qqq")
    assert all(dataset in str(refused.value) for dataset in cls.presets)
