"""Write the saved states that later versions must be able to read: one per method, with the expected answers.

`python tests/states/make_states.py` writes the missing ones; a released state is never written again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zeroshift.methods import list_methods
from zeroshift.serialization import STATE_SCHEMA
from zeroshift.testing import Case, make_problem

FASTER_PARAMETERS = {"frolic": {"proxy_iterations": 60}}


def main() -> None:
    folder = Path(__file__).parent / f"schema_{STATE_SCHEMA}"
    folder.mkdir(exist_ok=True)
    problem = make_problem(4, 8, 60, seed=21)
    support = (problem.features[50:54], np.array([0, 1, 1, 3]))
    for method in list_methods():
        path = folder / f"{method.name}.safetensors"
        if path.exists():
            continue
        parameters = dict(FASTER_PARAMETERS.get(method.name, {}))
        if "support" in method.cls.parameter_names():
            parameters["support"] = support
        adapter = Case(method.cls, parameters).create(problem.prototypes)
        adapter.adapt(problem.features[:30])
        adapter.save(path)
        np.savez(
            folder / f"{method.name}.npz",
            features=problem.features[30:50],
            predicted=adapter.predict(problem.features[30:50]),
            adapted=adapter.adapt(problem.features[30:50]),
            n_seen=adapter.n_seen,
        )


if __name__ == "__main__":
    main()
