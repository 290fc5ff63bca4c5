import dataclasses

from zeroshift.report.comparisons import class_losses, losses, verdict


def test_a_loss_is_named_with_its_size(comparisons):
    lost = losses(comparisons)
    other = comparisons[1]
    gain = other.gain(other.result("adapt_online"))
    assert ("Online ADAPT", "Set B-2", f"{gain:+.1f}") in lost
    assert f"Online ADAPT on Set B-2 ({gain:+.1f})" in verdict(comparisons)


def test_without_a_loss_it_says_so_and_still_counts_classes(comparisons):
    first = comparisons[0]
    winner = dataclasses.replace(first, results=(first.baseline, first.results[1]))
    assert first.gain(first.results[1]) > 0
    assert verdict([winner]).startswith("No method lost to zero-shot on any set.")
    gains = winner.class_gain(winner.results[1])
    assert class_losses([winner]) == (int((gains < 0).sum()), 4)
