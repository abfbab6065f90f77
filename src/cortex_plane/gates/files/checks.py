"""Checks of an atlas file across its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.model.atlases import MAX_GATES, Audience, MatchMode, Mode, ResponseType, TriggerType
from cortex_plane.gates.model.gates import FOR_ONE_CALL
from cortex_plane.gates.rules.answers import GOES_ON, MAX_MATCHED
from cortex_plane.gates.rules.effects import SESSION_END, seconds_of
from cortex_plane.gates.rules.index import MAX_EXPRESSIONS, MAX_KEYWORD_BYTES, MAX_PROGRAM, expression
from cortex_plane.gates.rules.prompts import MAX_CARD, card_of
from cortex_plane.kernel.addresses import url_fault
from cortex_plane.kernel.documents import Faults, ListNode, MappingNode, Node
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.globs import STAR
from cortex_plane.kernel.schemas import Unusable, check_strangers
from cortex_plane.kernel.shapes import nearest
from cortex_plane.kernel.text import normal, normal_word

Plain = dict[str, Any]
Path = tuple[str | int, ...]
IDS = {
    "checkpoints": "checkpoint_id", "capabilities": "capability_id", "context_blocks": "context_id",
    "policies": "policy_id", "actions": "action_id",
}  # fmt: skip
EFFECTS = (
    "guidance", "inject_contexts", "unlock_capabilities", "lock_capabilities", "allow_actions", "deny_actions",
)  # fmt: skip
PLANE = "plane."
"""With it begin the names of the plane's own tools."""
MAX_GLOBS = 10_000
"""Patterns of actions with a star in one atlas."""
_FOR_PEOPLE = (ResponseType.BOOLEAN, ResponseType.ACKNOWLEDGMENT)
_NOT_FOR_PEOPLE = {
    "validation": "what a person answers is not checked by code.",
    "on_invalid": "a person approves or denies: nothing else follows from it, so `on_invalid` does nothing.",
    "required": "whoever approves confirms all of it, so a question to a person cannot be optional.",
}
"""Keys of a question, and why a person is not asked with them; `required: true` says what holds anyway."""


def line_at(root: Node, path: Iterable[str | int]) -> int:
    """Where it stands. Looked for only when something is to be said about it."""
    node: Node = root
    line = root.line
    for step in path:
        if isinstance(node, MappingNode) and isinstance(step, str) and step in node.items:
            line = node.lines[step]
            node = node.items[step]
        elif isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            line = node.line
        else:
            break
    return line


def entries(atlas: Plain, section: str) -> Iterator[tuple[Path, Plain]]:
    for number, each in enumerate(atlas.get(section, ())):
        yield (section, number), each


def named_actions(atlas: Plain) -> Iterator[tuple[Path, str]]:
    """Wherever a capability, a policy or a checkpoint names an action or a pattern of actions."""
    for section in ("capabilities", "policies"):
        for path, entry in entries(atlas, section):
            for number, action in enumerate(entry["actions"]):
                yield (*path, "actions", number), action
    for path, checkpoint in entries(atlas, "checkpoints"):
        if checkpoint["trigger"]["type"] in (TriggerType.ACTION_PRE, TriggerType.ACTION_POST):
            for number, action in enumerate(checkpoint["trigger"]["patterns"]):
                yield (*path, "trigger", "patterns", number), action
        for key in ("allow_actions", "deny_actions"):
            for number, action in enumerate(checkpoint.get(key, ())):
                yield (*path, key, number), action


class Checks:
    """One atlas, whose keys are right."""

    def __init__(self, atlas: Plain, root: Node, faults: Faults) -> None:
        self._atlas, self._root, self._faults = atlas, root, faults
        self._ids: dict[str, dict[str, int]] = {}
        """By section: each id, and its number."""
        self._expressions: dict[tuple[str, bool], int] = {}
        """Each, by whether its case counts: its instructions."""
        self._program = 0
        """Instructions of all of them so far."""
        self._keyword_bytes = 0

    def run(self) -> None:
        for section, key in IDS.items():
            self._ids[section] = self._unique((section,), self._atlas.get(section, ()), key)
        self._count()
        self._plane_tools()
        self._cards()
        self._steward(self._atlas["steward"])
        for path, checkpoint in entries(self._atlas, "checkpoints"):
            self._checkpoint(path, checkpoint)
        for path, context in entries(self._atlas, "context_blocks"):
            if context.get("inject_mode") == atlas_model.InjectMode.ON_MATCH:
                self._words((*path, "keywords"), context["keywords"], context)
        for path, action in entries(self._atlas, "actions"):
            if "parameters_schema" in action:
                schema, place = action["parameters_schema"], (*path, "parameters_schema")
                if schema.get("type", "object") != "object":
                    self._fault(place, "the arguments of an action are always an object: write `type: object`.")
                self._schema(place, schema)
        self._config(self._atlas.get("checkpoint_config", {}))

    def _fault(self, path: Path, message: str) -> None:
        self._faults.add(line_at(self._root, path), message)

    def _unique(self, path: Path, items: Sequence[Plain], key: str) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for number, item in enumerate(items):
            first = numbers.setdefault(item[key], number)
            if first != number:
                line = line_at(self._root, (*path, first, key))
                self._fault((*path, number, key), f"the {key} `{item[key]}` is taken by line {line}.")
        return numbers

    def _known(self, path: Path, ids: Iterable[str], section: str, what: str) -> None:
        numbers = self._ids[section]
        for number, id in enumerate(ids):
            if id not in numbers:
                near = nearest(id, numbers, self._faults)
                self._fault((*path, number), f"there is no {what} `{id}`{near or f' in `{section}`.'}")

    def _count(self) -> None:
        config = self._atlas.get("checkpoint_config", {})
        total = len(self._ids["checkpoints"]) + len(self._ids["context_blocks"])
        for section in ("keyword_match", "action_pre"):
            total += len(config.get(section, {}).get("mappings", ()))
        if total > MAX_GATES:
            self._fault(("checkpoints",), f"the atlas has {total} gates; the limit is {MAX_GATES}.")
        globs = sum(STAR in pattern for pattern in _action_patterns(self._atlas))
        if globs > MAX_GLOBS:
            self._fault((), f"the atlas has {globs} patterns of actions with a star; the limit is {MAX_GLOBS}.")

    def _plane_tools(self) -> None:
        """The plane's own tools answer gates and ask people: gates do not stand before them."""
        declared = (((*path, "action_id"), action["action_id"]) for path, action in entries(self._atlas, "actions"))
        mappings = self._atlas.get("checkpoint_config", {}).get("action_pre", {}).get("mappings", ())
        short = (
            (("checkpoint_config", "action_pre", "mappings", key), name) for key in mappings for name in dotted(key)
        )
        for path, action in (*named_actions(self._atlas), *declared, *short):
            if action.startswith(PLANE):
                self._fault(path, f"`{action}` names tools of the plane itself, which no atlas governs: remove it.")

    def _cards(self) -> None:
        """What people read before they approve must fit on their card: of one checkpoint, and of all that fire always."""
        total = 0
        for path, checkpoint in entries(self._atlas, "checkpoints"):
            if checkpoint["mode"] != Mode.BLOCKING or checkpoint.get("audience") != Audience.HUMAN:
                continue
            id = checkpoint["checkpoint_id"]
            questions = ((question["question"], question.get("hint")) for question in checkpoint.get("questions", ()))
            size = len(card_of(id, checkpoint.get("name") or id, questions))
            if size > MAX_CARD:
                self._fault(
                    (*path, "questions"),
                    f"a person would read {size} characters before they approve, and {MAX_CARD} fit: ask less, or more briefly.",
                )
            if not _fires_always(checkpoint["trigger"]):
                continue
            before, total = total, total + size + 1  # between two cards is a line break
            if before <= MAX_CARD < total and size <= MAX_CARD:
                self._fault(
                    (*path, "questions"),
                    f"a person would read {total} characters before every call, this checkpoint included, and {MAX_CARD} fit:"
                    " ask less, or name the actions that it is for.",
                )

    def _steward(self, steward: Plain) -> None:
        access = steward.get("access", {})
        if access.get("api_keys") and access.get("type") != "authenticated":
            self._fault(
                ("steward", "access", "api_keys"),
                "`api_keys` are for access of the type authenticated: whoever is public shows no key.",
            )
        webhook = steward.get("notifications", {}).get("channels", {}).get("webhook")
        wrong = None if webhook is None else url_fault(webhook)
        if wrong is not None:
            self._fault(("steward", "notifications", "channels", "webhook"), f"`webhook` {wrong}.")

    def _checkpoint(self, path: Path, checkpoint: Plain) -> None:
        if checkpoint["checkpoint_id"] != SESSION_END and seconds_of(checkpoint["checkpoint_id"]) is not None:
            self._fault(
                (*path, "checkpoint_id"),
                f"`{checkpoint['checkpoint_id']}` reads as a time in `expires_after`: choose another id.",
            )
        self._mode(path, checkpoint)
        trigger = checkpoint["trigger"]
        if trigger["type"] == TriggerType.KEYWORD:
            self._words((*path, "trigger", "patterns"), trigger["patterns"], trigger)
        ids = trigger.get("capability_ids", ())
        self._known((*path, "trigger", "capability_ids"), ids, "capabilities", "capability")
        self._contexts((*path, "inject_contexts"), checkpoint.get("inject_contexts", ()))
        for key in ("unlock_capabilities", "lock_capabilities"):
            self._known((*path, key), checkpoint.get(key, ()), "capabilities", "capability")
        for one, other in (("unlock_capabilities", "lock_capabilities"), ("allow_actions", "deny_actions")):
            for both in sorted(set(checkpoint.get(one, ())) & set(checkpoint.get(other, ()))):
                self._fault((*path, other), f"`{both}` is in `{one}` as well: it cannot be both.")
        if "guidance" in checkpoint:
            self._guidance((*path, "guidance"), checkpoint["guidance"], checkpoint["checkpoint_id"])
        questions = checkpoint.get("questions", ())
        self._unique((*path, "questions"), questions, "question_id")
        for number, question in enumerate(questions):
            self._question((*path, "questions", number), question, checkpoint.get("audience"))
            self._equality((*path, "questions", number), question, trigger["type"])
        self._together((*path, "questions"), questions)

    def _mode(self, path: Path, checkpoint: Plain) -> None:
        mode, audience, asks = (checkpoint["mode"], checkpoint.get("audience"), bool(checkpoint.get("questions")))
        if mode != Mode.BLOCKING:
            self._not_blocking(path, checkpoint, mode)
        elif checkpoint["trigger"]["type"] == TriggerType.SESSION_END:
            self._fault(
                (*path, "mode"), "nobody is there to answer when a session ends: write observational or advisory."
            )  # fmt: skip
        elif not asks and audience != Audience.HUMAN:
            self._fault(
                (*path, "mode"),
                "a blocking checkpoint without `questions` stops nothing: add questions, write `audience: human`"
                " so that a person approves, or write advisory.",
            )
        if audience == Audience.HUMAN and "max_attempts" in checkpoint:
            self._fault((*path, "max_attempts"), "a person decides once: `max_attempts` is for the agent.")

    def _not_blocking(self, path: Path, checkpoint: Plain, mode: str) -> None:
        if checkpoint.get("questions"):
            self._fault(
                (*path, "questions"),
                f"nobody waits for an answer at a checkpoint that is {mode}: write `mode: blocking`,"
                " or say it as `guidance`.",
            )
        if checkpoint.get("audience") == Audience.HUMAN:
            self._fault((*path, "audience"), f"a person is asked only where it stops: {mode} does not.")
        if mode == Mode.OBSERVATIONAL:
            for key in EFFECTS:
                if checkpoint.get(key):
                    self._fault((*path, key), f"observational only records, so `{key}` does nothing: write advisory.")

    def _guidance(self, path: Path, guidance: Plain, own: str) -> None:
        content, form = guidance["content"], guidance.get("format", atlas_model.GuidanceFormat.TEXT)
        if form != atlas_model.GuidanceFormat.JSON and not isinstance(content, str):
            self._fault((*path, "content"), f"`content` of the format {form} must be a text.")
        if form == atlas_model.GuidanceFormat.JSON and isinstance(content, str):
            try:
                orjson.loads(content)
            except orjson.JSONDecodeError:
                self._fault((*path, "content"), "`content` of the format json must be JSON.")
        until = guidance.get("expires_after")
        if until is None or until == SESSION_END or seconds_of(until) is not None:
            return
        if until == own:
            self._fault((*path, "expires_after"), "it cannot end with its own checkpoint, which begins it.")
        elif until not in self._ids["checkpoints"]:
            near = nearest(until, (*self._ids["checkpoints"], SESSION_END), self._faults)
            self._fault(
                (*path, "expires_after"),
                f"`{until}` is neither `{SESSION_END}`, nor a checkpoint of this atlas, nor a time such as 10m"
                f"{near or '.'}",
            )

    def _question(self, path: Path, question: Plain, audience: str | None) -> None:
        if audience == Audience.HUMAN:
            self._for_a_person(path, question)
        if "schema" in question:
            self._schema((*path, "schema"), question["schema"])
        options = question.get("options", ())
        if len(set(options)) < len(options):
            self._fault((*path, "options"), "an option stands there twice.")
        rules = question.get("validation", {})
        for least, most in (("min_length", "max_length"), ("minimum", "maximum")):
            if least in rules and most in rules and rules[least] > rules[most]:
                self._fault((*path, "validation", least), f"`{least}` is more than `{most}`: nothing fits both.")
        if "pattern" in rules:
            self._expression((*path, "validation", "pattern"), rules["pattern"])
            for key in ("min_length", "max_length"):
                if rules.get(key, 0) > MAX_MATCHED:
                    self._fault(
                        (*path, "validation", key),
                        f"`{key}` is of an answer that must match a `pattern`, and it has {MAX_MATCHED} characters at most.",
                    )
        self._contradictions((*path, "validation"), rules)

    def _equality(self, path: Path, question: Plain, trigger: str) -> None:
        """An answer that must equal an argument stands before exactly that call, and nothing goes on without it."""
        if "equals_argument" not in question.get("validation", {}):
            return
        place = (*path, "validation", "equals_argument")
        if trigger not in FOR_ONE_CALL:
            self._fault(
                place,
                f"an answer at {trigger} counts for later calls too, whose arguments are others: ask at"
                f" {' or '.join(sorted(FOR_ONE_CALL))}.",
            )
        if question.get("required") is False:
            self._fault(place, "an answer that must equal an argument cannot be optional: leave out `required: false`.")
        if question.get("on_invalid") in GOES_ON:
            self._fault(
                place,
                f"`on_invalid: {question['on_invalid']}` lets a call go on whose argument is another: write retry or block.",
            )

    def _for_a_person(self, path: Path, question: Plain) -> None:
        if question["response_type"] not in _FOR_PEOPLE:
            self._fault(
                (*path, "response_type"), "a person approves or denies: ask them a boolean or an acknowledgment."
            )  # fmt: skip
        for key, message in _NOT_FOR_PEOPLE.items():
            if key in question and question[key] is not True:
                self._fault((*path, key), message)

    def _contradictions(self, path: Path, rules: Plain) -> None:
        forbidden = [word for each in rules.get("must_not_contain", ()) if (word := normal_word(each))]
        for number, required_word in enumerate(rules.get("must_contain", ())):
            if any(word in normal_word(required_word) for word in forbidden):
                self._fault(
                    (*path, "must_contain", number), f"`{required_word}` holds a word that `must_not_contain` forbids."
                )  # fmt: skip

    def _words(self, path: Path, words: Sequence[str], trigger: Plain) -> None:
        case = trigger.get("case_sensitive", False)
        for number, word in enumerate(words):
            if trigger.get("match_mode") == MatchMode.REGEX:
                self._expression((*path, number), word, case_sensitive=case)
            elif not (plain := normal(word, case_sensitive=case)):
                self._fault((*path, number), "a keyword must have a letter or a sign that can be seen.")
            else:
                before, size = self._keyword_bytes, len(plain.encode())
                self._keyword_bytes = before + size
                if before <= MAX_KEYWORD_BYTES < before + size:
                    self._fault(
                        (*path, number),
                        f"the keywords up to here have {before + size} bytes together; the limit is {MAX_KEYWORD_BYTES}.",
                    )

    def _expression(self, path: Path, pattern: str, *, case_sensitive: bool = True) -> None:
        too_many = len(self._expressions) >= MAX_EXPRESSIONS or self._program > MAX_PROGRAM
        if too_many or (pattern, case_sensitive) in self._expressions:
            # What is beyond a limit was said where it was reached; nothing more is compiled.
            return
        size = 0
        try:
            size = expression(pattern, case_sensitive=case_sensitive).programsize
        except InvalidInput as error:
            self._fault(path, f"{error.message} {error.hint}")
        self._expressions[pattern, case_sensitive] = size
        self._program += size
        if len(self._expressions) >= MAX_EXPRESSIONS:
            self._fault(
                path,
                f"an atlas may have fewer than {MAX_EXPRESSIONS} different regular expressions: write words instead.",
            )
        elif self._program > MAX_PROGRAM:
            self._fault(path, _too_much("up to here", self._program))

    def _together(self, path: Path, questions: Sequence[Plain]) -> None:
        """Each of them reads an answer of its own, also where they have the same pattern."""
        patterns = [
            rules["pattern"] for question in questions if "pattern" in (rules := question.get("validation", {}))
        ]
        total = sum(self._expressions.get((each, True), 0) for each in patterns)
        if self._program <= MAX_PROGRAM < total:
            self._fault(path, _too_much("of these questions", total))

    def _schema(self, path: Path, schema: Plain) -> None:
        try:
            check_strangers(schema)
        except Unusable as error:
            self._fault(path, f"{error}.")

    def _config(self, config: Plain) -> None:
        for section, settings in config.items():
            path: Path = ("checkpoint_config", section)
            self._contexts((*path, "inject_contexts"), settings.get("inject_contexts", ()))
            for key, mapping in settings.get("mappings", {}).items():
                place = (*path, "mappings", key)
                if section == "action_pre":
                    self._contexts((*place, "inject_contexts"), mapping.get("inject_contexts", ()))
                    continue
                words = words_of(key, settings.get("match_mode", MatchMode.ANY))
                if not all(words):
                    self._fault(place, f"`{key}` has an empty word beside a bar.")
                self._words(place, [word for word in words if word], settings)
                self._contexts(place, mapping)

    def _contexts(self, path: Path, ids: Iterable[str]) -> None:
        self._known(path, ids, "context_blocks", "context")


def _too_much(which: str, program: int) -> str:
    return (
        f"the regular expressions {which} have {program} instructions together, and may have {MAX_PROGRAM}:"
        " repeat less, or name fewer characters."
    )


_ALWAYS = (
    TriggerType.SESSION_START, TriggerType.INTERACTIVE, TriggerType.RISK_THRESHOLD, TriggerType.TIME_INTERVAL,
    TriggerType.COUNT_INTERVAL, TriggerType.ERROR_OCCURRED, TriggerType.CUSTOM,
)  # fmt: skip
"""They fire together, whatever the agent does."""
_BY_NAME = (TriggerType.ACTION_PRE, TriggerType.ACTION_POST, TriggerType.EXPLICIT_REQUEST)


def _fires_always(trigger: Plain) -> bool:
    """Whether it fires at the same moment as all others of which this is true, whatever the agent does."""
    kind = trigger["type"]
    if kind in _BY_NAME:
        return any(not pattern.strip(STAR) for pattern in trigger.get("patterns") or (STAR,))
    return kind in _ALWAYS


def _action_patterns(atlas: Plain) -> Iterator[str]:
    for section in ("capabilities", "policies"):
        for entry in atlas.get(section, ()):
            yield from entry["actions"]
    for checkpoint in atlas.get("checkpoints", ()):
        if checkpoint["trigger"]["type"] in _BY_NAME:
            yield from checkpoint["trigger"].get("patterns", ())
    for pattern in atlas.get("checkpoint_config", {}).get("action_pre", {}).get("mappings", ()):
        yield from dotted(pattern)


def words_of(key: str, match_mode: str) -> list[str]:
    """`a|b` are two words; in a regular expression the bar means the same by itself."""
    return [key] if match_mode == MatchMode.REGEX else [word.strip() for word in key.split("|")]


def dotted(pattern: str) -> tuple[str, ...]:
    """`delete_*` means `delete.*` as well: an underscore beside a star may be a dot."""
    other = pattern.replace("_*", ".*").replace("*_", "*.")
    return (pattern,) if other == pattern else (pattern, other)
