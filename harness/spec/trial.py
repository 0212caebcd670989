"""Trial: what one training run trains and measures, its identity, and the rules between its fields."""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, Self

from harness.spec import schema
from harness.spec.errors import UserError
from harness.spec.field import Field
from losses.space import Limit

VALIDATION_FOLDS = 4  # val0 .. val3, each a quarter of the training classes
BASELINE = "none"  # the loss of the two baselines
PRETRAINING = "pretraining"  # the loss of a pre-training that other trials share
PIXELS = "pixels"  # the backbone of the raw-pixel baseline

RUN_SETTINGS = ("fold", "seed")  # settings that a run decides, not a protocol
TUNABLE = ("lr", "weight_decay")  # settings that are each loss's own
BATCH = ("classes_per_batch", "samples_per_class")
PER_LOSS = (*TUNABLE, "samples_per_class")  # settings that a protocol may give for a single loss
SEARCHABLE = (*PER_LOSS, "warmup_epochs")  # settings that random search may draw


def _setting(meaning: str, **limits: Any) -> Any:
    """A field that a user may set."""
    return field(metadata={"meaning": meaning, "limit": Limit(**limits)})


def _added(meaning: str, neutral: Any, **limits: Any) -> Any:
    """A setting that is newer than stored records. `neutral` means "as before": with that value the field is left out
    of the canonical JSON, so the ids of older trials stay as they are."""
    return field(default=neutral, metadata={"meaning": meaning, "neutral": neutral, "limit": Limit(**limits)})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one training run trains and measures. Its hash is its name: threads, device and versions of libraries, which
    move numbers too, are not part of it.

    The fields below are part of every stored record: none may be renamed, removed or left out of the hash. A field that
    is added later is made with `_added`.
    """

    dataset: str
    dataset_version: int
    fingerprint: str
    protocol: str
    loss: str  # BASELINE for the baselines, PRETRAINING for a shared pre-training
    loss_version: int | str
    knobs: Mapping[str, Any]

    fold: Literal["val0", "val1", "val2", "val3", "test"] = _setting("classes it is evaluated on")
    seed: int = _setting("seed of weights, batches and augmentation", least=0)

    backbone: str = _setting("a timm name, bn_inception, or pixels for the raw-pixel baseline")
    weights: str = _setting("what the backbone starts from: none, package, hub:TAG or file:HASH")
    dim: int | None = _setting("width of the embedding layer; none: the backbone's own width", least=1)
    pooling: Literal["avg", "max", "avgmax"] = _setting("how the last feature map is pooled")
    layer_norm: bool = _setting("LayerNorm without affine parameters before the embedding layer")
    freeze_bn: bool = _setting("BatchNorm keeps its running statistics during training")

    resize: int = _setting("side of the images before cropping, in pixels", least=1)
    aspect: Literal["square", "kept"] = _setting("resize both sides, or the short side and keep the aspect ratio")
    crop: int = _setting("side of the crop the network sees, in pixels", least=1)
    augment: Literal["none", "crop", "resized-crop", "drawings"] = _setting("augmentation of training images")
    crop_scale: float = _setting("smallest share of the image's area in a resized crop", above=0)
    classes_per_batch: int = _setting("classes per batch", least=1)
    samples_per_class: int = _setting("images per class in a batch", least=1)

    pretrain_epochs: int = _setting("epochs of classification before the loss", least=0)
    pretrain_lr: float = _setting("learning rate of pre-training", above=0)
    pretrain_eps: float = _setting("the optimizer's epsilon in pre-training", above=0)
    pretrain_batch: int = _setting("images per batch in pre-training", least=2)

    epochs: int = _setting("epochs of training with the loss", least=0)
    optimizer: Literal["adam", "radam", "rmsprop"] = _setting(
        "radam decays weights apart from the gradient; rmsprop has momentum 0.9 where the schedule sets none"
    )
    lr: float = _setting("learning rate of the backbone", above=0)
    weight_decay: float = _setting("weight decay", least=0)
    head_lr_factor: float = _setting("factor of lr for the embedding layer and what the loss owns", above=0)
    schedule: Literal["drops", "one-cycle", "reloads"] = _setting(
        "drops: lr x 0.1 after each epoch of `drops`; one-cycle: torch's OneCycleLR, which also moves momentum (Adam's "
        "beta1) from 0.95 to 0.85 and back; reloads: at each drop back to the best epoch with lr / 10"
    )
    drops: tuple[int, ...] = _setting("epochs after which the learning rate drops")
    checkpoint: Literal["last", "best-test"] = _setting(
        "which epoch is reported; best-test chooses one on the held-out classes, as the released code does"
    )
    precision: Literal["fp32", "amp"] = _setting("amp has an effect on CUDA only")

    warmup_epochs: float = _added(
        "epochs, before the others, in which only the embedding layer and what the loss owns learn; 0.5 is half of one",
        neutral=0.0,
        least=0,
    )
    stop_after: int = _added(
        "the epoch after which training stops, with the schedule of all `epochs`; 0: it does not stop early",
        neutral=0,
        least=0,
    )
    teacher: str = field(default="", metadata={"neutral": ""})  # id of the trial whose network it learns from, if any

    @cached_property
    def id(self) -> str:
        """First 12 hex digits of the sha256 of its canonical JSON."""
        return self.id_without()

    def id_without(self, *fields: str) -> str:
        """The same for trials that differ in these fields only. A teacher has the seed and the fold of its student."""
        fields = (*fields, "teacher") if {"seed", "fold"} & set(fields) else fields
        data = {name: value for name, value in self.to_json().items() if name not in fields}
        return short_hash(json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False))

    @cached_property
    def configuration(self) -> str:
        """The same for trials that differ in their seed only."""
        return self.id_without("seed")

    @property
    def name(self) -> str:
        """What people see, and files are called: group-emoji-val0-1f2e3d4c5b6a."""
        return f"{self.backbone if self.is_baseline else self.loss_folder}-{self.dataset}-{self.fold}-{self.id}"

    @property
    def loss_folder(self) -> str:
        """The loss as part of a file name: pml-CircleLoss."""
        return self.loss.replace(":", "-")

    @property
    def is_baseline(self) -> bool:
        return self.loss == BASELINE

    @property
    def is_pretraining(self) -> bool:
        """A network for other trials to start from. It is not evaluated."""
        return self.loss == PRETRAINING

    @property
    def is_pixels(self) -> bool:
        return self.backbone == PIXELS

    @property
    def on_test(self) -> bool:
        """Evaluated on test classes."""
        return self.fold == "test" and not self.is_pretraining

    @property
    def is_final(self) -> bool:
        """A loss on test classes."""
        return self.on_test and not self.is_baseline

    @property
    def weights_kind(self) -> str:
        """none | package | hub | file."""
        return self.weights.partition(":")[0]

    @property
    def epoch_chosen_on(self) -> str:
        """The classes its epoch was chosen on; empty for the last epoch."""
        if self.checkpoint == "last":
            return ""
        return "test classes" if self.on_test else "validation classes"

    @property
    def last_epoch(self) -> int:
        """The epoch that training ends with."""
        return self.stop_after or self.epochs

    @property
    def searched(self) -> dict[str, Any]:
        """What search may choose: knobs and searchable settings."""
        return {**self.knobs, **{name: getattr(self, name) for name in SEARCHABLE}}

    def to_json(self) -> dict[str, Any]:
        """The canonical form, which is hashed and stored; added fields are left out while they are neutral."""
        # not dataclasses.asdict: it copies deeply, and thousands of trials are named in a run
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for item in dataclasses.fields(self):
            if "neutral" in item.metadata and data[item.name] == item.metadata["neutral"]:
                del data[item.name]
        return {**data, "knobs": dict(self.knobs), "drops": list(self.drops)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A stored trial; ValueError says why it is none. Added fields that it lacks are neutral. Values are held to
        their types alone: what a user may set today does not bind what was stored."""
        names = {item.name for item in dataclasses.fields(cls)}
        needed = {item.name for item in dataclasses.fields(cls) if "neutral" not in item.metadata}
        wrong = (needed - set(data)) | (set(data) - names)
        if wrong:
            raise ValueError(f"trial: the fields {', '.join(sorted(wrong))} are missing or unknown")
        schema.check(data, schema.TRIAL, "trial")
        for name, setting in settings_of(cls).items():  # type: ignore[arg-type]
            if name in data and not setting.fits(data[name]):
                raise ValueError(f"trial.{name}={schema.shown(data[name])} must be {setting.allowed}")
        return cls(**{**data, "drops": tuple(data["drops"])})


@cache
def settings_of(kind: type[Trial]) -> dict[str, Field]:
    """The fields of a trial that a user may set."""
    hints = typing.get_type_hints(kind)
    settings = {}
    for item in dataclasses.fields(kind):
        if "meaning" in item.metadata:
            about = dict(item.metadata)
            default = about.pop("neutral", None)
            settings[item.name] = Field.of(item.name, hints[item.name], default, **about)
    return settings


SETTINGS: Mapping[str, Field] = settings_of(Trial)
NEUTRAL: Mapping[str, Any] = {
    item.name: item.metadata["neutral"] for item in dataclasses.fields(Trial) if "neutral" in item.metadata
}
SHARED = tuple(name for name in SETTINGS if name not in (*RUN_SETTINGS, *TUNABLE, "stop_after"))


def short_hash(text: str) -> str:
    """12 hex digits: what trials, ensembles and files are called by."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def recomposed(settings: Mapping[str, Any], samples: int) -> dict[str, int]:
    """The batch of these settings with so many images per class: as many images, of more or fewer classes."""
    classes, usual = (settings[name] for name in BATCH)
    if samples < 1 or classes * usual % samples:
        raise UserError(f"samples_per_class={samples}: must divide the {classes} x {usual} images of a batch")
    return {"classes_per_batch": classes * usual // samples, "samples_per_class": samples}


def check_rules(values: Mapping[str, Any]) -> None:
    """A UserError where settings that are allowed by themselves do not go together."""
    if values["crop"] > values["resize"]:
        raise UserError(f"crop={values['crop']}: must be at most resize={values['resize']}; set both")
    if values["crop_scale"] > 1:
        raise UserError(f"crop_scale={values['crop_scale']:g}: must be a share of the image's area, at most 1")
    if values["augment"] == "drawings" and values["aspect"] == "kept":
        raise UserError("augment=drawings: needs square images, aspect=square")
    if values["stop_after"] and values["stop_after"] >= values["epochs"]:
        raise UserError(
            f"stop_after={values['stop_after']}: must be below epochs={values['epochs']}, or 0 for all of them"
        )
    if values["schedule"] == "reloads" and values["checkpoint"] == "last":
        raise UserError("schedule=reloads: goes back to the best epoch, so it needs checkpoint=best-test")
