"""`cortex atlas`, as far as it speaks with the plane: publishing, looking, comparing, retiring."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cortex_plane.cli.files import text_of
from cortex_plane.cli.output import AsJson, Limit, harmless, said, short, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.client import Client
from cortex_plane.gates.model.atlases import (
    AtlasChange,
    AtlasDiff,
    AtlasFile,
    AtlasVersionDetails,
    Published,
    Retired,
)

File = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, allow_dash=True, help="YAML or JSON; - reads stdin.")
]
Atlas = Annotated[str, typer.Argument(help="The id of an atlas, such as com.acme.support.")]
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)
    app.command("list")(list_atlases)
    app.command("get")(get)
    app.command("diff")(diff)
    app.command("retire")(retire)


def publish(file: File, as_json: AsJson = False) -> None:
    """Make a file a version, which new sessions are bound to. The same file again changes nothing."""
    draft = AtlasFile(manifest=text_of(file), name="stdin" if str(file) == "-" else file.name[:200])
    published = run(lambda plane: plane.atlases.publish(draft))
    if as_json:
        show_one(published, True)
    else:
        _tell_published(published)


def list_atlases(
    atlas: Annotated[str | None, typer.Argument(help="An atlas: its versions, newest first.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """The atlases of the org; with an id the versions of one."""
    if atlas is None:
        found = run(lambda plane: collect(plane.atlases.list(limit)))
        show_many(found, ["atlas_id", "name", "holds", "newest", "versions", "published_at"], as_json)
        return
    versions = run(lambda plane: collect(plane.atlases.versions(atlas, limit)))
    columns = ["version", "holds", "gates", "published_by", "published_at", "retired_at", "digest"]
    show_many(versions, columns, as_json)


def get(
    atlas: Atlas,
    version: Annotated[str | None, typer.Option(help="The one that holds if left out.")] = None,
    source: Annotated[bool, typer.Option("--source", help="Print the file as it was published.")] = False,
    as_json: AsJson = False,
) -> None:
    """One version of an atlas."""

    async def look(plane: Client) -> AtlasVersionDetails:
        named = version or await _held(plane, atlas)
        return await plane.atlases.get_version(atlas, named, source=source)

    found = run(look)
    if source and not as_json:
        text = found.source or ""
        # Into a file it goes as it was published; a terminal would obey what is hidden in it.
        sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    else:
        show_one(found, as_json)


def diff(
    atlas: Atlas,
    before: Annotated[str, typer.Argument(help="A version.")],
    after: Annotated[str | None, typer.Argument(help="Another one; the one that holds if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a version has otherwise than another: which gates, questions, contexts, capabilities, policies and actions."""

    async def compare(plane: Client) -> AtlasDiff:
        return await plane.atlases.diff(atlas, before, after or await _held(plane, atlas))

    found = run(compare)
    if as_json:
        show_one(found, True)
    else:
        _tell_diff(found)


def retire(atlas: Atlas, version: str, as_json: AsJson = False) -> None:
    """Bind no new session to a version. Those that are bound to it go on."""
    retired = run(lambda plane: plane.atlases.retire(atlas, version))
    if as_json:
        show_one(retired, True)
    else:
        _tell_retired(retired)


async def _held(plane: Client, atlas: str) -> str:
    """The version that new sessions are bound to; where none is, the newest."""
    found = await plane.atlases.get(atlas)
    return found.holds or found.newest


def _tell_published(published: Published) -> None:
    for warning in published.warnings:
        tell(f"warning: {harmless(warning)}")
    version = published.version
    name = f"{version.atlas_id} {version.version}"
    if published.created:
        said(
            f"published {name} with {version.gates} gates, digest {version.digest[:12]}; new sessions are bound to it"
        )
    elif version.holds:
        said(f"nothing changes: {name} was published before, and holds")
    else:
        said(f"nothing changes: {name} was published before, and does not hold any more")


def _tell_retired(retired: Retired) -> None:
    version = retired.version
    name = f"{version.atlas_id} {version.version}"
    said(f"retired {name}" if retired.changed else f"nothing changes: {name} was retired before")
    if retired.holds is not None:
        said(f"new sessions are bound to {retired.holds}")
        return
    said("no version holds: agents that name the atlas take no new work until one is published")
    for slug in retired.agents:
        tell(f"  {harmless(slug)}")


def _tell_diff(found: AtlasDiff) -> None:
    for change in found.changes:
        for line in _change_lines(change):
            tell(line)
    hidden = found.added + found.removed + found.changed - len(found.changes)
    if hidden > 0:
        tell(f"… and {hidden} more changes")
    said(
        f"{found.before} → {found.after}: {found.added} added, {found.removed} removed, {found.changed} changed"
    )


def _change_lines(change: AtlasChange) -> list[str]:
    lines = [f"{_MARKS[change.change]} {change.kind} {harmless(change.id)}"]
    lines += [
        f"    {harmless(field.field)}: {short(_shown(field.before), 80)} → {short(_shown(field.after), 80)}"
        for field in change.fields
    ]
    return lines


def _shown(value: Any) -> Any:
    return "–" if value is None else value
