"""Table 4: transductive ADAPT gains on Fashion-MNIST, and sets of other tasks are not run."""

from experiments.paper_sets import first_rows
from experiments.reading import column, found, remarks
from zeroshift.experiments.fine_grained import EXPERIMENT


def test_transductive_adapt_gains_on_fashion(investigated):
    chapter = investigated(EXPERIMENT, first_rows(("cifar10", "fmnist"), 200), orders=1)
    cells = column(found(chapter, "accuracy"), "Fashion-MNIST")
    assert cells["ADAPT (transductive)"].value > cells["zero-shot"].value
    assert {job.features for job in chapter.jobs} == {"fmnist"}
    assert len(chapter.jobs) == len({job.key for job in chapter.jobs}) == len(cells)
    assert any("Fashion-MNIST" in text for text in remarks(chapter, "data"))
