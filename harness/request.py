"""Options -> the complete, located, checked Experiment; used by `harness run` and by harness.run()."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import losses
from harness import commands, config, plan, protocols
from harness.assignments import check_names, check_settings, grid_values, settings_and_knobs
from harness.spec import (
    BASELINE,
    Dataset,
    Experiment,
    KeepWeights,
    LossSpec,
    Protocol,
    Scheduler,
    UserError,
    check_rules,
    has_controls,
    recall_k,
    schema,
    shortened,
)

if TYPE_CHECKING:
    from harness.storage import Storage

ADDRESS = re.compile(r"auto|[^/\s]+:\d{1,5}")
SIZE = re.compile(r"[0-9]{1,9}")  # of an ensemble; not \d, which has more than int() reads
LONGEST_NAME = 80  # characters of an experiment's name
CORE = "group,triplet,proxy_nca,normalized_softmax"
ExecutorName = Literal["ray", "local"]
Assignments = Mapping[str, Any] | Sequence[str]  # {"epochs": 8, "group.anchors": 1} or ["epochs=8", "group.anchors=1"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a run, as `harness run` has them."""

    losses: str | Sequence[str] = CORE  # names, ./mine.py:MyLoss, pml:CircleLoss; "all"; "none": the baselines alone
    dataset: str = "emoji"  # a name, or the path of a folder, a .csv or a .toml
    protocol: str | None = None  # None: the dataset's own
    weights: str | None = None  # hub, package, none or a file; None: the protocol's
    data_root: str | Path = "data"
    skip_bad_images: bool = False
    trials: int = 0  # random-search trials per loss; 0: the protocol's values
    seeds: int = 1  # final runs per loss; runs per cell of a grid
    ensemble: str | int | Sequence[int] = ()  # sizes
    set: Assignments = ()
    grid: Assignments = ()  # {"epochs": [4, 8]} or ["epochs=4,8"]
    scheduler: Scheduler = "none"
    keep_weights: KeepWeights = "best"
    curves: bool = False
    rerun: bool = False
    executor: ExecutorName = "ray"
    address: str | None = None  # of a Ray cluster; None: Ray is started on this machine
    cpus_per_trial: float = 1.0
    gpus_per_trial: float | None = None  # None: 1 if there are any
    max_concurrent: int | None = None  # trials at once at most; None: as many as fit
    max_failures: int = 3  # restarts of a trial whose process died
    wait_for_nodes: bool = False  # also for nodes that no autoscaler brings
    storage: str | None = None  # None: artifacts/ in `results`
    results: str | Path = "results"
    name: str = ""  # of the experiment, to find its results again

    @property
    def threads(self) -> int:
        """Of torch, per trial: its whole CPUs."""
        return math.floor(self.cpus_per_trial)


def experiment(request: Request, say: Callable[[str], None] = lambda line: None) -> Experiment:
    """The experiment that a request describes: names resolved, values checked, images and weights identified. `say`
    gets a line if that takes a while.

    What is quick to check comes first: losses import torch, and weights may import timm.
    """
    check_choices(request)
    check_name(request)
    check_numbers(request)
    check_address(request)
    check_grid_alone(request)
    check_scheduler(request)
    sizes = ensemble_sizes(request)
    dataset = config.dataset(request.dataset)
    check_ray_job(request, dataset)
    protocol = config.protocol(request.protocol or dataset.protocol)
    check_select(protocol, dataset)
    names = loss_names(request.losses)
    given = check_settings(words_of(request.set))
    for option, values in (("--set", request.set), ("--grid", request.grid)):
        check_names(option, words_of(values), names)
    check_search(request, given)
    check_fold(request, given)
    settings = {**protocol.shared(dataset.name), **given}
    grid_settings = check_cells(request, settings)
    backbones = grid_settings.get("backbone", (settings["backbone"],))
    usual = protocol.shared(dataset.name)["backbone"]
    check_backbones(backbones, request.weights or settings["weights"], usual)
    data_root = Path(request.data_root).absolute()
    check_existence(request, dataset, request.weights or settings["weights"], settings["backbone"])
    say(first_word(request, names, dataset, protocol, settings))
    dataset = identify(request, dataset, say)
    losses = choose_losses(names)
    settings, knobs = settings_and_knobs(words_of(request.set), losses)
    grid = grid_values(words_of(request.grid), losses)
    check_grid(grid, settings, knobs, losses)
    weights, weights_file = resolve_weights(request, {**protocol.shared(dataset.name), **settings}, grid)
    planned = Experiment(
        dataset=dataset,
        protocol=protocol,
        losses=losses,
        name=request.name,
        trials=request.trials,
        seeds=request.seeds,
        ensembles=sizes,
        keep_weights=request.keep_weights,
        curves=request.curves,
        scheduler=request.scheduler,
        data_root=str(data_root),
        skip_bad_images=request.skip_bad_images,
        weights_file=weights_file,
        settings={**settings, "weights": weights},
        knobs=knobs,
        grid=grid,
    )
    check_size(planned)
    return planned


def first_word(
    request: Request, names: Sequence[str], dataset: Dataset, protocol: Protocol, settings: Mapping[str, Any]
) -> str:
    """4 losses on emoji, protocol quick: 6 trials. Said before anything takes its time."""
    losses = f"{len(names)} loss{'es' if len(names) > 1 else ''}" if names else "baselines"
    words = f"{losses} on {dataset.name}, protocol {protocol.name}"
    if not request.grid:  # whose values are read when the losses are known
        searched = request.trials * protocol.folds
        baselines = plan.baseline_count(settings["dim"], request.weights or settings["weights"], request.seeds)
        words += f": {len(names) * (searched + request.seeds) + baselines} trials"
    return f"{words}; loading torch ..."


def loss_names(names: str | Sequence[str]) -> list[str]:
    """The losses that a request names, each of which exists, as far as can be seen without importing it."""
    words = names.split(",") if isinstance(names, str) else names
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise UserError("--losses: name at least one, or none for the baselines alone")
    for word in words:
        if word in losses.RESERVED and len(words) > 1:
            raise UserError(f"--losses {','.join(words)}: {word} stands alone")
    if words == [BASELINE]:
        return []
    if words == ["all"]:
        return list(losses.names())
    for word in words:
        config.check_loss_name(word)
    return list(dict.fromkeys(words))


def choose_losses(names: Sequence[str]) -> tuple[LossSpec, ...]:
    """Each loss once, in the order given. Imports torch."""
    specs = [config.loss(name) for name in names]
    by_name = {spec.name: spec for spec in specs}
    for spec in specs:
        if spec.sources != by_name[spec.name].sources:
            raise UserError(f"two different files give a loss named {spec.name}: rename one")
    return tuple(by_name.values())


def words_of(values: Assignments) -> list[str]:
    """KEY=VALUE, as --set and --grid read them."""
    if isinstance(values, str):
        return [values]
    if not isinstance(values, Mapping):
        return list(values)
    try:
        return [f"{key}={commands.written(value)}" for key, value in values.items()]
    except ValueError:
        raise UserError(f"{', '.join(values)}: an integer must have at most 4,300 digits") from None


def ensemble_sizes(request: Request) -> tuple[int, ...]:
    sizes = request.ensemble
    words = sizes.split(",") if isinstance(sizes, str) else [sizes] if isinstance(sizes, int) else list(sizes)
    words = [word for word in (shortened(word).strip() for word in words) if word]
    if not all(SIZE.fullmatch(word) and 2 <= int(word) <= request.seeds for word in words):
        given = shortened(",".join(words))
        raise UserError(f"--ensemble {given}: must be integers from 2 to --seeds ({request.seeds})")
    return tuple(sorted({int(word) for word in words}))


def identify(request: Request, dataset: Dataset, say: Callable[[str], None]) -> Dataset:
    """The dataset with the fingerprint of its images, by which trials are named: of those on this machine, else of
    those in the storage."""
    from harness.data import cache_parts, listing

    data_root = Path(request.data_root).absolute()
    if dataset.layout != "embedded" and not listing.exists(dataset, data_root):
        stored = cache_parts.identify(dataset, storage_of(request))
        if stored is not None:
            return stored
    return listing.identify(dataset, data_root, say)


def storage_of(request: Request) -> "Storage":
    from harness.storage import open_storage
    from harness.store import Store

    return open_storage(request.storage, Store(Path(request.results).absolute()).artifacts)


def resolve_weights(
    request: Request, settings: Mapping[str, Any], grid: Mapping[str, tuple[Any, ...]]
) -> tuple[str, str]:
    """The weights as a trial names them, and their file."""
    weights = request.weights or settings["weights"]
    if weights in ("none", "package"):  # looked at where the network is
        return weights, ""
    if "backbone" in grid:
        raise UserError(f"--grid backbone=...: --weights {weights} fits a single backbone; must be none or package")
    from harness.backbones import network  # timm takes its time to import
    from harness.backbones import weights as sources

    network.check(settings["backbone"], weights)
    return sources.resolve(settings["backbone"], weights)


def check_cells(request: Request, settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The settings that a grid varies, checked before any loss is imported; those of every cell go together."""
    words = [word for word in words_of(request.grid) if "." not in word.partition("=")[0]]
    axes = grid_values(words, ())
    for values in islice(product(*axes.values()), plan.MOST_TRIALS):
        check_rules({**config.DEFAULTS, **settings, **dict(zip(axes, values, strict=True))})
    return axes


def check_backbones(backbones: Iterable[str], weights: str, usual: str) -> None:
    """A UserError for a typo in a network's name, or for weights that no package has, before timm is imported. `usual`:
    the protocol's network, whose name is right: the first word need not wait for timm's source."""
    from harness.backbones import names, packaged

    for backbone in backbones:
        if backbone != usual:
            names.check(backbone)
        if weights == "package":
            packaged.check(backbone)


def check_existence(request: Request, dataset: Dataset, weights: str, backbone: str) -> None:
    """A UserError if the images are neither on this machine nor in the storage, or the weights not on this machine: one
    for both, with the commands that get them."""
    from harness.backbones import downloads
    from harness.data import cache_parts, listing

    data_root = Path(request.data_root).absolute()
    if weights not in protocols.WEIGHTS and not Path(weights).is_file():
        raise UserError(
            f"--weights {weights}: no such file; must be hub, package, none, or a .pth or .safetensors file"
        )
    no_images = dataset.layout != "embedded" and not listing.exists(dataset, data_root)
    no_images = no_images and not cache_parts.manifests_of(dataset, storage_of(request))
    no_weights = weights == "hub" and backbone in downloads.URLS and not downloads.place(backbone).is_file()
    get_weights = f"harness weights download {backbone}"
    if no_images and no_weights and dataset.archives:
        raise UserError(
            f"{dataset.name}: neither its images (searched {data_root}; --data-root) nor the weights of {backbone} are "
            f"here; get both: harness data download {dataset.name} && {get_weights}"
        )
    if no_images:
        also = f"; and the weights of {backbone} with {get_weights}" if no_weights else ""
        raise UserError(f"{listing.absence(dataset, data_root)}{also}")
    if no_weights:
        raise UserError(
            f"the weights of {backbone} are not here; get them with: {get_weights}; or give --weights FILE, or none"
        )


# --- rules between options ---


def check_choices(request: Request) -> None:
    choices = {
        "scheduler": get_args(Scheduler),
        "keep-weights": get_args(KeepWeights),
        "executor": get_args(ExecutorName),
    }
    for option, allowed in choices.items():
        value = getattr(request, option.replace("-", "_"))
        if value not in allowed:
            raise UserError(f"--{option} {value}: must be one of {', '.join(allowed)}")


def check_name(request: Request) -> None:
    name = request.name
    if name and (has_controls(name) or not schema.is_text(name) or name != name.strip() or len(name) > LONGEST_NAME):
        raise UserError(f"--name {shortened(name)!a}: must be one line of text of at most {LONGEST_NAME} characters")


def check_numbers(request: Request) -> None:
    for option, least in (("trials", 0), ("seeds", 1), ("max-concurrent", 1), ("max-failures", 0)):
        value = getattr(request, option.replace("-", "_"))
        if value is None and option == "max-concurrent":
            continue
        if not isinstance(value, int) or not least <= value <= plan.MOST_TRIALS:
            raise UserError(
                f"--{option} {shortened(value)}: must be an integer >= {least} and at most {plan.MOST_TRIALS:,}"
            )
    for option, least in (("cpus-per-trial", 1), ("gpus-per-trial", 0)):
        value = getattr(request, option.replace("-", "_"))
        if value is not None and not least <= value < math.inf:
            raise UserError(f"--{option} {value:g}: must be a number >= {least}")
    existing = os.cpu_count() or 1
    if request.executor == "ray" and not request.address and request.cpus_per_trial > existing:
        raise UserError(f"--cpus-per-trial {request.cpus_per_trial:g}: this machine has {existing} CPUs")


def check_address(request: Request) -> None:
    """A UserError for what is no address. Whether Ray answers there is asked when it is joined."""
    if request.executor == "ray" and request.address and not ADDRESS.fullmatch(request.address):
        raise UserError(f"--address {shortened(request.address)}: must be auto or HOST:PORT, e.g. head:6379")
    environments = os.environ.get("RAY_ADDRESS")  # is for Ray, which --executor local does without
    if request.executor == "local" and request.address and request.address != environments:
        raise UserError("--address: --executor local runs trials in this process and joins no cluster")
    if request.wait_for_nodes and not (request.executor == "ray" and request.address):
        raise UserError("--wait-for-nodes: needs --address; no node joins the Ray that is started on this machine")


def check_size(experiment: Experiment) -> None:
    """Naming trials takes time and memory: a slip such as --trials 1000000 is refused before they are named."""
    trials = plan.count(experiment)
    if trials > plan.MOST_TRIALS:
        raise UserError(f"{trials:,} trials are too many: must be at most {plan.MOST_TRIALS:,} in a run")


def check_ray_job(request: Request, dataset: Dataset) -> None:
    """A Ray job's working directory is a temporary copy: what is written there is lost."""
    if not os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"):
        return
    folders = {"--results": str(request.results), "--storage": request.storage or "/"}
    if dataset.is_own:
        folders["--dataset"] = request.dataset
    elif dataset.layout != "embedded":
        folders["--data-root"] = str(request.data_root)
    for option, folder in folders.items():
        if "://" not in folder and not Path(folder).is_absolute():
            raise UserError(
                f"{option} {folder}: inside a Ray job the working directory is a temporary copy; give an absolute path"
            )


def check_select(protocol: Protocol, dataset: Dataset) -> None:
    k = recall_k(protocol.select)
    if k is not None and k not in dataset.recall_at:
        known = ", ".join(f"R@{k}" for k in dataset.recall_at)
        raise UserError(
            f"protocols/{protocol.name}.toml: select={protocol.select}: {dataset.name} is measured at {known}; "
            "choose another --protocol"
        )


def check_search(request: Request, settings: Mapping[str, Any]) -> None:
    if request.trials and "fold" in settings:
        raise UserError("--set fold=... and --trials exclude each other: search has its own fold")


def check_grid_alone(request: Request) -> None:
    """A grid runs in full and alone."""
    excluded = {
        "--trials": request.trials,
        "--ensemble": request.ensemble,
        "--curves": request.curves,
        "--scheduler asha": request.scheduler == "asha",
    }
    for option, value in excluded.items():
        if value and request.grid:
            raise UserError(
                f"--grid and {option} exclude each other: a grid runs in full, without search or final runs"
            )


def check_grid(
    grid: Iterable[str],
    settings: Mapping[str, Any],
    knobs: Mapping[str, Mapping[str, Any]],
    losses: Sequence[LossSpec],
) -> None:
    """None of the keys of a grid is also set to a single value."""
    if not grid:
        return
    if not losses:
        raise UserError("--grid: needs a loss; --losses none trains nothing")
    fixed = {*settings, *(f"{loss}.{knob}" for loss, values in knobs.items() for knob in values)}
    for key in grid:
        if key in fixed:
            raise UserError(f"--set {key}=... and --grid {key}=... exclude each other")


def check_fold(request: Request, settings: Mapping[str, Any]) -> None:
    if settings.get("fold", "test") == "test":
        return
    for option, value in (("--ensemble", request.ensemble), ("--curves", request.curves)):
        if value:
            raise UserError(f"{option}: needs final runs on test classes; not allowed with --set fold=...")


def check_scheduler(request: Request) -> None:
    if request.scheduler == "none":
        return
    if request.executor == "local":
        raise UserError("--scheduler asha: needs --executor ray; the local executor runs one trial at a time")
    if not request.trials:
        raise UserError("--scheduler asha: stops search trials, so it needs --trials N")
