"""Writes the saved states that future versions must still read: one per method, with the answers to expect.

Run once for each schema version (`python tests/states/make_states.py`) and never again for that version.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zeroshift.method_file import STATE_SCHEMA
from zeroshift.methods import list_methods
from zeroshift.testing import make_problem


def main() -> None:
    folder = Path(__file__).parent / f"schema_{STATE_SCHEMA}"
    folder.mkdir()
    problem = make_problem(4, 8, 60, seed=21)
    support = (problem.features[50:54], np.array([0, 1, 1, 3]))
    for method in list_methods():
        parameters = {**method.cls.example_parameters, "logit_scale": 20.0}
        if "support" in method.cls.parameter_names():
            parameters |= {"support": support, "bank_size": 3}
        adapter = method.cls(problem.prototypes, **parameters)
        adapter.adapt(problem.features[:30])
        adapter.save(folder / f"{method.name}.safetensors")
        np.savez(
            folder / f"{method.name}.npz",
            features=problem.features[30:50],
            predicted=adapter.predict(problem.features[30:50]),
            adapted=adapter.adapt(problem.features[30:50]),
            n_seen=adapter.n_seen,
        )


if __name__ == "__main__":
    main()
