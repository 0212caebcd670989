"""Whether what is stored of a run is what the run asks for now: of the same images, with the same metrics."""

from collections.abc import Callable, Iterator
from pathlib import Path

from harness import plan
from harness.data import contents, listing
from harness.execution.account import Account
from harness.spec import Result, UserError


def check(account: Account, say: Callable[[str], None]) -> None:
    """A UserError if stored results are of other images, or lack the metric that selects; a line for other metrics that
    they lack. Imports nothing heavy."""
    results = [] if account.rerun else account.stored(account.known)
    check_images(account, [] if account.rerun else [*results, *started_from(account)], say)
    check_metrics(account, results, say)
    without = [result for result in results if account.draws_curves(result.trial) and not result.has_curves]
    if without:
        runs = "1 stored final run has" if len(without) == 1 else f"{len(without)} stored final runs have"
        say(f"{runs} no curves: trained again, because --curves asks for them")


def started_from(account: Account) -> list[Result]:
    """The stored pre-trainings and teachers that missing trials begin with."""
    missing = account.pending([*account.known, *account.unnamed()])
    missing += account.needs(missing)
    needs = {need.id: need for trial in missing for need in plan.needs(account.experiment, trial)}
    return account.stored(needs.values())


def check_images(account: Account, results: list[Result], say: Callable[[str], None]) -> None:
    """Results from before this was recorded are taken as they are."""
    recorded = {result.provenance.get("data_sha256") for result in results} - {None, ""}
    if not recorded:
        return
    experiment = account.experiment
    dataset, found = experiment.dataset, experiment.dataset.sha256
    if not found:  # of a shipped dataset, on a machine that has not read it yet
        found = contents.sha256(contents.read(dataset.name, listing.read(dataset, Path(experiment.data_root)), say))
    if recorded != {found}:
        raise UserError(
            f"{dataset.name}: the stored results of this run are of other images; use another --results, or --rerun to "
            "replace them"
        )


def check_metrics(account: Account, results: list[Result], say: Callable[[str], None]) -> None:
    experiment, select = account.experiment, account.experiment.protocol.select
    if any(select not in result.metrics for result in results if not result.trial.on_test):
        raise UserError(
            f"{experiment.dataset.name}: trials are stored without {select}, which selects; "
            "use --rerun or another --protocol"
        )
    lacking = {k for result in results if result.trial.on_test for k in lacking_recalls(account, result)}
    if lacking:
        names = ", ".join(f"R@{k}" for k in sorted(lacking))
        say(f"{experiment.dataset.name}: results are stored without {names}; --rerun measures them")


def lacking_recalls(account: Account, result: Result) -> Iterator[int]:
    """The K of the dataset that a result on test classes could have and has not."""
    dataset = account.experiment.dataset
    gallery = dataset.test_images - (dataset.query_images or 1)  # without queries apart, an image is not its own
    gallery -= result.provenance.get("bad_images_skipped", 0)
    return (k for k in dataset.recall_at if k <= gallery and f"R@{k}" not in result.metrics)
