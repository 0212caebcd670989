"""configs/*.toml and the losses' signatures, read into the nouns of spec. An unknown key or name is a UserError."""

import inspect
import math
import os
import re
import shlex
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import losses
from harness import protocols
from harness.data import readers
from harness.spec import (
    NEUTRAL,
    Dataset,
    Field,
    LossSpec,
    Protocol,
    UserError,
    check_keys,
    first_line,
    has_controls,
    recomposed,
    schema,
    shortened,
    unknown,
)
from harness.spec.field import WORDS
from losses import own

if TYPE_CHECKING:
    from losses.base import Loss

PML_LOSSES = "https://kevinmusgrave.github.io/pytorch-metric-learning/losses/"
# Beside the package in a wheel, beside the package's folder in a checkout.
_HERE = Path(__file__).parent
CONFIGS = _HERE / "configs" if (_HERE / "configs").is_dir() else _HERE.parent / "configs"

DEFAULTS: Mapping[str, Any] = {**NEUTRAL, "fold": "test", "seed": 0}
LONGEST_LOSS = 100  # bytes: results, logs and folders of Ray have longer names that begin with it
OWN_DATASET = {"cite": "", "version": 1, "recall_at": [1, 2, 4, 8], "protocol": "cpu"}


def names(kind: str) -> list[str]:
    """The datasets or protocols there are."""
    return sorted(file.stem for file in (CONFIGS / kind).glob("*.toml"))


def find_dataset(name: str) -> Dataset | None:  # None: a user's own
    return dataset(name) if name in names("datasets") else None


def find_protocol(name: str) -> Protocol | None:  # None: it is gone, and its results are still there
    return protocol(name) if name in names("protocols") else None


def dataset(name: str) -> Dataset:
    """A shipped dataset by its name, or a user's own by its path: a folder of class folders, a .csv list, or a .toml
    like the shipped ones."""
    if name in names("datasets") or not (os.sep in name or name.endswith((".csv", ".toml"))):
        if name not in names("datasets") and os.path.exists(name):
            raise UserError(f"no dataset named {name!r}; for your own data write ./{name}")
        return _dataset(name, f"datasets/{name}.toml", _read("datasets", name))
    path = Path(name).absolute()
    if not os.path.exists(path):  # unlike Path.exists it is never an error: a record may name anything
        raise UserError(f"--dataset {name}: no such file or folder; shipped datasets: {', '.join(names('datasets'))}")
    # the ending stays in the name, so that ./name is what made a stored result
    own = re.sub(r"[^\w.-]", "-", path.resolve().name)
    if not own:
        raise UserError(f"--dataset {name}: a dataset takes the name of its folder, and this folder has none")
    if own in names("datasets"):
        raise UserError(
            f"--dataset {name}: {own} is a shipped dataset; rename the folder, or use the shipped one: "
            f"--dataset {own} --data-root {path.parent}"
        )
    if not schema.is_text(str(path)):  # a record could not name it
        raise UserError(f"--dataset {str(path)!a}: its path is not UTF-8 text; rename the folder or the file")
    if path.suffix == ".toml":
        data = _parse(path)
        if "layout" not in data:
            layouts = ", ".join(name for name, layout in readers.LAYOUTS.items() if layout.reader)
            raise UserError(f"{path}: missing layout; must be one of {layouts}")
        check_keys(str(path), data, {"layout", "folder"}, _dataset_keys())
        if not isinstance(data["folder"], str) or data["layout"] == "embedded":
            raise UserError(
                f"{path}: layout={data['layout']}, folder={data['folder']}: must be a layout of files and the path of "
                "their folder"
            )
        data["folder"] = str(path.parent / data["folder"])
    else:
        data = {"layout": "csv" if path.suffix == ".csv" else "folder", "folder": str(path)}
    return replace(_dataset(own, name, {**OWN_DATASET, "title": own, **data}), path=str(path))


def _dataset_keys() -> set[str]:
    return {item.name for item in fields(Dataset)} - {"name", "path", "fingerprint"}


def _dataset(name: str, place: str, data: dict[str, Any]) -> Dataset:
    has_default = {item.name: (item.default, item.default_factory) != (MISSING, MISSING) for item in fields(Dataset)}
    needed = {name for name, given in has_default.items() if not given} - {"name"}
    check_keys(place, data, needed, _dataset_keys())
    hints = typing.get_type_hints(Dataset)
    for key in ("recall_at", "archives"):
        if not isinstance(data.get(key, []), list):
            raise UserError(f"{place}: {key}={data[key]}: must be a list")
        data[key] = tuple(data.get(key, ()))
    resized = data.get("resized", {})
    if not isinstance(resized, dict) or not all(type(side) is int and side > 0 for side in resized.values()):
        raise UserError(f"{place}: resized={resized}: must be a table of fingerprints and short sides in pixels")
    for key, value in data.items():
        kind = typing.get_origin(hints[key]) or hints[key]
        if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value < 0)):
            raise UserError(f"{place}: {key}={value}: must be {Field(key, kind).allowed}")
    if data["layout"] not in readers.LAYOUTS:
        raise UserError(f"{place}: {unknown('layout', data['layout'], readers.LAYOUTS)}")
    if 1 not in data["recall_at"] or not all(type(k) is int and k > 0 for k in data["recall_at"]):
        recall_at = list(data["recall_at"])
        raise UserError(f"{place}: recall_at={recall_at}: must be integers > 0 like [1, 2, 4, 8], with 1 among them")
    if not all(isinstance(archive, dict) and "url" in archive for archive in data["archives"]):
        raise UserError(f"{place}: an entry of archives has no url")
    return Dataset(name=name, **data)


def protocol(name: str) -> Protocol:
    return protocols.read(name, _read_protocol(name), names("datasets"))


def usual(protocol: Protocol, dataset: str, loss: str, images_per_class: float = math.inf) -> dict[str, Any]:
    """Every setting, and the knobs it gives, as a protocol has them for a loss on a dataset; by default on one of large
    classes. What it gives for a family counts for the losses of this package: to know another's family, its code has to
    run."""
    shared = {**DEFAULTS, **protocol.shared(dataset, images_per_class)}
    family = losses.facts(loss).family if loss in losses.shipped() else ""
    own = {**protocol.of_family(family), **protocol.values(dataset, loss)}
    batch = recomposed(shared, own["samples_per_class"]) if "samples_per_class" in own else {}
    return {**shared, **own, **batch}


def _read_protocol(name: str, readers: tuple[str, ...] = ()) -> dict[str, Any]:
    """A protocol's file, over the one that it is `like`: its tables are merged, key by key."""
    if name in readers:
        raise UserError(f"protocols/{name}.toml: like={readers[-1]}: protocols refer to each other in a circle")
    data = _read("protocols", name)
    if "like" not in data:
        return data
    like = data.pop("like")
    if like not in names("protocols"):
        raise UserError(f"protocols/{name}.toml: like={like}: {unknown('protocol', str(like), names('protocols'))}")
    return _merged(_read_protocol(like, (*readers, name)), data)


def _merged(base: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """`data` over `base`; tables are merged, everything else is replaced."""
    result = dict(base)
    for key, value in data.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = _merged(base[key], value) if both else value
    return result


def loss(name: str) -> LossSpec:
    """The description of a loss: a registered one (`-` stands for `_`), ./mine.py:MyLoss, or pml:CircleLoss. Imports
    torch."""
    if ".py:" in name:
        return _own_loss(name)
    if name.startswith("pml:"):
        check_loss_name(name)
        try:
            return _describe(name, losses.get(name))
        except losses.LossError as error:
            raise UserError(f"{name}: {_in_short(error)}") from None
    check_loss_name(name)
    name = name if name in losses.names() else name.replace("-", "_")
    try:
        return _describe(name, losses.get(name))
    except losses.LossError as error:
        raise UserError(str(error)) from None
    except Exception as error:
        if name not in losses.plugins():  # a shipped loss must not fail; a plug-in may raise anything
            raise
        raise UserError(f"the loss {name} of an installed package: {first_line(error)}") from None


def check_loss_name(name: str) -> None:
    """A UserError if there is no such loss, or no such file of one, as far as can be seen without importing it."""
    file, colon, _ = name.rpartition(":")
    if colon and file.endswith(".py"):
        if not Path(file).exists():
            raise UserError(f"{name}: no such file; to write one: harness init-loss {shlex.quote(file)}")
    elif name.endswith(".py"):
        classes = losses.classes_in(Path(name))
        raise UserError(f"{name}: name the class too: {name}:{classes[0] if classes else 'MyLoss'}")
    elif name.startswith("pml:"):
        theirs, wanted = losses.bridged(), name.removeprefix("pml:")
        if theirs and wanted not in theirs:
            known = [loss for loss in theirs if loss.endswith("Loss")]
            raise UserError(f"{name}: {unknown('loss in pytorch-metric-learning', wanted, known, see=PML_LOSSES)}")
    elif name.replace("-", "_") not in losses.names():
        module, _, class_name = name.rpartition(".")
        if Path(f"{module}.py").is_file():
            raise UserError(f"{name}: a loss of your own is named by its file: ./{module}.py:{class_name}")
        raise unknown("loss", name, losses.names(), see="harness ls losses")


def _in_short(error: Exception) -> str:
    """What is wrong with a loss; of many known names, the nearest."""
    if isinstance(error, losses.UnknownLossError):
        return str(unknown(f"loss{error.where}", error.name, error.known))
    return str(error)


def _own_loss(text: str) -> LossSpec:
    """A loss from a user's own file. Its version is the hash of the file and of the modules beside it that it imports:
    an edited one is another trial."""
    path, _, wanted = text.rpartition(":")
    file = Path(path)
    name = f"{file.stem}.{wanted}"
    if not re.fullmatch(r"[\w.-]+", name) or len(name.encode()) > LONGEST_LOSS:
        raise UserError(
            f"{text}: its results would be named {name!r}: rename the file; a name has letters, digits, ., _ "
            f"and -, at most {LONGEST_LOSS} bytes with its class"
        )
    try:
        sources = own.collect(file)
        described = _describe(name, losses.get(name, sources))
    except (losses.LossError, UserError) as error:
        raise UserError(f"{text}: {_in_short(error)}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's file raises
        raise UserError(f"{text}: {first_line(error)}") from None
    return replace(described, version=own.version(sources), sources=sources, option=text)


def _describe(name: str, loss: "type[Loss]") -> LossSpec:
    for attribute in ("title", "cite"):
        if not schema.is_text(getattr(loss, attribute, None)):
            raise UserError(f"{loss.__name__} has no {attribute}: write {attribute} = '...' in its class")
    if not schema.is_version(loss.version):
        raise UserError(f"{loss.__name__}: version={loss.version!r}: must be {schema.VERSION.words}")
    from losses.base import Loss as Base

    if loss.forward is Base.forward:
        raise UserError(f"{loss.__name__} has no forward: write def forward(self, embeddings, labels) in its class")
    if (loss.head is not Base.head) != (loss.head_dim > 0):
        raise UserError(
            f"{loss.__name__}: head_dim={loss.head_dim}: must be its published dimension if it has a head of its own, "
            "and 0 if it has none"
        )
    if loss.distance not in ("cosine", "euclidean"):
        raise UserError(f"{loss.__name__}: distance={loss.distance!r}: must be cosine or euclidean")
    _check_constructor(loss)
    families = typing.get_args(losses.Family)
    if loss.family not in families:
        raise UserError(f"{loss.__name__}: family={loss.family!r}: must be one of {', '.join(families)}")
    knobs = {}
    for knob in inspect.signature(loss.__init__, eval_str=True).parameters.values():
        if knob.kind is knob.KEYWORD_ONLY:
            if knob.annotation is knob.empty:
                raise UserError(f"knob {knob.name} of {loss.__name__} needs a type: {knob.name}: float = 1.0")
            default = None if knob.default is knob.empty else knob.default  # without one, a user has to give it
            knobs[knob.name] = _knob(Field.of(knob.name, knob.annotation, default, owner=name))
    return LossSpec(
        name,
        loss.title,
        loss.cite,
        loss.version,
        knobs,
        loss.space,
        loss.family,
        added=loss.added,
        shipped=name in losses.shipped(),
        dim_below_batch=loss.dim_below_batch,
        head_dim=loss.head_dim,
    )


def _knob(field: Field) -> Field:
    """A knob whose default a record can hold: without this, its trial would be trained and its result not stored."""
    default = field.proper(field.default)
    if default is not None and not (field.fits(default) and schema.is_plain(default)):
        allowed = field.allowed if field.kind in WORDS or field.choices else schema.PLAIN.words
        raise UserError(f"knob {field.name}: its default {shortened(repr(default))} must be {allowed}")
    return field


def _check_constructor(loss: "type[Loss]") -> None:
    """A UserError if the class cannot be made with the number of classes and the width of the embedding alone."""
    positional = [
        parameter.name
        for parameter in inspect.signature(loss.__init__).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) != 3:
        rest = ", ".join(f"{name}: float = 1.0" for name in positional if name not in ("self", "num_classes", "dim"))
        raise UserError(
            f"{loss.__name__}.__init__ takes ({', '.join(positional)}); write "
            f"def __init__(self, num_classes: int, dim: int{f', *, {rest}' if rest else ''})"
        )


def _read(kind: str, name: str) -> dict[str, Any]:
    if name not in names(kind):
        raise unknown(kind.removesuffix("s"), name, names(kind))
    return _parse(CONFIGS / kind / f"{name}.toml")


def _parse(file: Path) -> dict[str, Any]:
    text = readers.text(file)
    try:
        data = tomllib.loads(text)
        _check_values(data)
    except RecursionError:
        raise UserError(f"{file}: its values are nested too deeply") from None
    except ValueError as error:  # a TOMLDecodeError is one
        raise UserError(f"{file}: {error}") from None
    return data


def _check_values(value: Any) -> None:
    """A ValueError for what TOML does not allow but Python's reader does, and for what must not reach a terminal."""
    if isinstance(value, dict):
        _check_values([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            _check_values(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("it has an integer of more than 64 bits")
    elif isinstance(value, str) and has_controls(value):
        raise ValueError(f"{value[:40]!a}: must be one line without control characters")
