"""Getting a model that is named as on a hub, before anything is started with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.models.files import shown
from chairlift.models.hub_name import HubName, with_revision
from chairlift.models.resolve import ModelFiles, hub_module, hub_name_of, resolve

Show = Callable[[str], Callable[[int, int], None]]
"""Given what is being got, shows how many bytes of how many are there."""


def fetched(name: str, revision: str | None, show: Show) -> str:
    """A name that `resolve` finds, and finds the same files under until the end of the program.

    A hub is asked only for what its cache lacks: a model that is there is taken as it is, without a network. Names of
    packages and paths are left alone.

    Raises:
        InvalidOption: a revision of what has none.
        InvalidModel: it cannot be got.
    """
    hub_name = named_on_hub(name, revision)
    if hub_name is None:
        return name
    cache = hub_module("cache")
    try:
        resolve(str(hub_name))
    except InvalidModel:
        try:
            return str(pull(hub_name, show))
        except InvalidModel as error:
            if not Path(hub_name.repo).parent.is_dir():
                raise
            # A path that was misspelled is a hub's name too.
            raise InvalidModel(f"{error}; as a path, {hub_name.repo} is not there") from error
    return str(replace(hub_name, revision=cache.commit_of(cache.cache_folder(), hub_name)))


def fetched_text(name: str, show: Show) -> ModelFiles:
    """Files whose text can be read, got from a hub unless the model is there: the tokenizer without the weights.

    Raises:
        InvalidModel: there is nothing of that name, or it cannot be got.
    """
    hub_name = hub_name_of(name)
    try:
        return resolve(name)
    except InvalidModel:
        if hub_name is None:
            raise
    pinned, path = hub_module("download").pull(hub_name, show, text_only=True)
    return ModelFiles(pinned.model_name, path, "folder" if path.is_dir() else "gguf")


def named_on_hub(name: str, revision: str | None) -> HubName | None:
    """What a name means on a hub; None if it is none of a hub.

    Raises:
        InvalidOption: a revision of what has none, or that cannot be one.
    """
    hub_name = hub_name_of(name)
    if revision is None:
        return hub_name
    if hub_name is None:
        raise InvalidOption(f"a revision goes with a model on a hub, as in org/name, not with {shown(name)}")
    revised = with_revision(hub_name, revision)
    if revised is None:
        raise InvalidOption(f"{shown(revision)} cannot be a branch, a tag or a commit")
    return revised


def pull(name: HubName, show: Show) -> HubName:
    """Ask the hub, and get what is not there yet; the name of exactly this commit.

    Raises:
        InvalidModel: it cannot be got.
    """
    pinned: HubName = hub_module("download").pull(name, show)[0]
    return pinned
