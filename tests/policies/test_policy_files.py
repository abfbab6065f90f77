"""Policy files: what they mean, and each way in which one can be wrong, with its line."""

from __future__ import annotations

import json
from textwrap import dedent
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.kernel.errors import InvalidInput, TooLarge
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.text import unseen_in
from cortex_plane.policies.files import Person, faults_of, place, read, warnings_of, write
from cortex_plane.policies.model import versions
from cortex_plane.policies.model.policies import (
    Approvers,
    Level,
    OnDeny,
    PolicyRow,
    PolicyVerdict,
    Quorum,
    RoleVotes,
    Template,
)
from cortex_plane.policies.model.versions import MAX_FILE_BYTES, PlacedRow, difference, merge_rows, row_as_json
from cortex_plane.tenancy.model.identities import KNOWN_CHANNELS
from cortex_plane.tenancy.model.orgs import Role

ADA = Person(id=uuid4(), name="Ada", clearance=5, roles=frozenset({Role.ADMIN}))
BOB = Person(id=uuid4(), name="Bob", clearance=1, roles=frozenset({Role.APPROVER}))
CY = Person(id=uuid4(), name="Cy", clearance=0, roles=frozenset({Role.MEMBER}))
PEOPLE = [ADA, BOB, CY]
PAYMENTS = uuid4()


def placed(text: str, people: list[Person] = PEOPLE) -> list[PlacedRow]:
    return place(read(dedent(text)), {"payments": PAYMENTS}, people)[0]


def refusal(text: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(dedent(text))
    assert refused.value.code == "invalid_policy_file"
    assert "nothing was changed" in refused.value.hint
    return refused.value.message


@pytest.mark.proves("D.56")
def test_a_file_says_everything_that_a_row_can_say() -> None:
    rows = placed(f"""\
        policies:
          - name: deploys
            action: tool_call
            target: deploy*
            when: args.environment == "production"
            effect: requires_approval
            template: dev_review
            clearance: 2
            approvers: {{roles: [approver], members: [Ada, {BOB.id}], owner: true}}
            timeout: 1d2h
            remind_before: 30m
            on_deny: continue
            self_approval: false
            final: true
          - {{name: rest, target: '*', effect: allow}}
        teams:
          payments:
            - {{name: rest, target: pay.*, effect: deny}}
            - {{name: ask, target: '*', effect: requires_approval, remind_before: never}}
    """)
    assert [(one.level, one.team, one.position, one.row.name) for one in rows] == [
        (Level.ORG, None, 0, "deploys"), (Level.ORG, None, 1, "rest"),
        (Level.TEAM, "payments", 2, "rest"), (Level.TEAM, "payments", 3, "ask"),
    ]  # fmt: skip
    assert rows[0].row == PolicyRow(
        name="deploys",
        target="deploy*",
        effect=PolicyVerdict.REQUIRES_APPROVAL,
        condition='args.environment == "production"',
        required_clearance=2,
        template=Template.DEV_REVIEW,
        timeout_seconds=26 * 3600,
        reminder_seconds=1800,
        approvers=Approvers(owner=True, roles=(Role.APPROVER,), members=(ADA.id, BOB.id)),
        on_deny=OnDeny.CONTINUE,
        self_approval=False,
        final=True,
    )
    assert rows[1].row == PolicyRow(name="rest", target="*", effect=PolicyVerdict.ALLOW)
    assert (rows[2].team_id, rows[3].row.reminder_seconds) == (PAYMENTS, 0)


@pytest.mark.proves("D.110")
def test_a_file_says_how_many_must_agree_who_is_asked_next_and_where() -> None:
    rows = placed(f"""\
        policies:
          - name: deploys
            target: deploy*
            effect: requires_approval
            template: critical_path
            approvers: {{members: [Bob]}}
            quorum: {{votes: 2, roles: {{approver: 1, admin: 1}}}}
            escalate_before: 1d
            escalate_to: [{{roles: [approver]}}, {{members: [Ada, {BOB.id}], owner: true}}]
            channels: [email, webhook, email]
            standing: true
          - {{name: two, target: a, effect: requires_approval, quorum: 2, escalate_before: never, channels: []}}
          - {{name: roles, target: b, effect: requires_approval, quorum: {{roles: {{admin: 3}}}}, escalate_before: 0}}
    """)
    first, two, roles = (one.row for one in rows)
    assert first.quorum == Quorum(
        votes=2, roles=(RoleVotes(role=Role.ADMIN, votes=1), RoleVotes(role=Role.APPROVER, votes=1))
    )
    assert first.escalation_seconds == 86400
    assert first.escalate_to == (Approvers(roles=(Role.APPROVER,)), Approvers(owner=True, members=(ADA.id, BOB.id)))
    assert (first.channels, first.standing) == (("email", "webhook"), True)
    assert (two.quorum, two.escalation_seconds, two.channels, two.standing) == (Quorum(votes=2), 0, (), None)
    assert roles.quorum == Quorum(votes=3, roles=(RoleVotes(role=Role.ADMIN, votes=3),))
    assert roles.escalation_seconds == 0
    assert parse(PolicyRow, row_as_json(first)) == first


def test_places_of_a_file_are_read_and_written_back() -> None:
    rows = placed("""\
        policies:
          - {name: one, target: a, effect: requires_approval, channels: [email, {slack: "#deploys"}, {github: "acme/shop#12"},
             {slack: {connection: Team chat, place: "#ops"}}]}
    """)
    (row,) = (one.row for one in rows)
    assert row.channels == ("email", "slack:#deploys", "github:acme/shop#12", "slack@Team chat:#ops")
    again, _ = place(read(write(rows)), {}, [])
    assert [one.row for one in again] == [row]


def one(line: str) -> str:
    """A file whose only row has this line, which is its fifth."""
    return f"policies:\n  - name: a\n    target: b\n    effect: requires_approval\n    {line}\n"


@pytest.mark.proves("D.56")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: a policy file has the key `policies`"),
        ("# nothing\n", "line 1: a policy file has the key `policies`"),
        ("- a\n", "line 1: a policy file has the key `policies`"),
        ("rules: []\n", "line 1: `rules` is not a key of the file; known are policies, teams."),
        ("policies: {}\n", "line 1: `policies` must be a list; an empty one is []."),
        ("policies:\n  - a\n", "line 2: a policy must be a mapping"),
        ("policies: []\nteams: []\n", "line 2: `teams` must be a mapping"),
        ("teams:\n  payments: 3\n", "line 2: the policies of payments must be a list"),
        ("policies: []\npolicies: []\n", "line 2: `policies` stands here twice (first in line 1)."),
        ("policies:\n  - name: a\n", "line 2: this policy has no `target`."),
        ("policies: [\n", "line 2: this is not YAML"),
        ("policies:\n\t- a\n", "line 2: this is not YAML"),
        ("policies: []\n--- \npolicies: []\n", "line 2: a file holds one document"),
        ("policies: &a []\n", "line 1: anchors and aliases"),
        ("policies: []\nteams: *a\n", "line 2: anchors and aliases"),
        ("policies: !!set {}\n", "line 1: the tag"),
        ("policies: !bad []\n", "line 1: the tag"),
        ("policies:\n  - ? [a]\n    : b\n", "line 2: a key must be a word."),
        ("policies: []\nteams: {x: " + "[" * 30 + "]" * 30 + "}\n", "line 2: this is nested deeper than 20"),
        ("policies: []\n#\n# \x07\n", "line 3: this is not YAML"),
        (one("name: b"), "line 5: `name` stands here twice (first in line 2)."),
        (one("efect: deny"), "line 5: `efect` is not a key of a policy; known are name, action, target"),
        (one("votes: 2"), "line 5: `votes` is not a key of a policy; use `quorum`."),
        (one("escalation: {after: 1h}"), "line 5: `escalation` is not a key of a policy; use `escalate_before` and"),
        (one("delegates: [Ada]"), "line 5: `delegates` is not a key of a policy; use `approvers`"),
        (one("approvers: {owner: true, quorum: 2}"), "line 5: `quorum` is not a key of `approvers`"),
        (one("quorum: 0"), "line 5: `quorum` must be a whole number from 1 to 10."),
        (one("quorum: 11"), "line 5: `quorum` must be a whole number from 1 to 10."),
        (one("quorum: '2'"), "line 5: `quorum` must be a whole number"),
        (one("quorum: [2]"), "line 5: `quorum` must be a whole number"),
        (one("quorum:"), "line 5: `quorum` must be a whole number"),
        (one("quorum: {}"), "line 5: `quorum` must be a number of votes, or say votes, roles or both."),
        (one("quorum: {vote: 2}"), "line 5: `vote` is not a key of `quorum`; known are votes, roles."),
        (one("quorum: {votes: 2, roles: [admin]}"), "line 5: `roles` of a quorum must be a mapping"),
        (one("quorum: {votes: 2, roles: {chief: 1}}"), "line 5: a role must be one of"),
        (one("quorum: {votes: 2, roles: {guest: 1}}"), "line 5: a role must be one of"),
        (one("quorum: {votes: 2, roles: {admin: 0}}"), "line 5: `admin` must be a whole number from 1 to 10."),
        (one("quorum: {votes: 2, roles: {admin: 3}}"), "line 5: `quorum` asks for 3 votes of admin and 2 in all."),
        (one("escalate_before: soon"), "line 5: `escalate_before` must be a time up to 7d"),
        (one("escalate_before: 8d"), "line 5: `escalate_before` must be a time up to 7d"),
        (one("timeout: 1h\n    escalate_before: 1h"), "line 6: `escalate_before` must be shorter than the time"),
        (one("template: dev_review\n    escalate_before: 2d"), "line 6: `escalate_before` must be shorter"),
        (one("escalate_to: []"), "line 5: `escalate_to` must be a list of 1 to 10 steps"),
        (one("escalate_to: {roles: [admin]}"), "line 5: `escalate_to` must be a list of 1 to 10 steps"),
        (one("escalate_to: [admin]"), "line 5: `escalate_to` must be a mapping with owner, roles or members."),
        (one("escalate_to: [{}]"), "line 5: `escalate_to` names nobody."),
        (one("escalate_to:\n      - {roles: [admin]}\n      - {rols: [admin]}"), "line 7: `rols` is not a key of `escalate_to`"),
        (one(f"escalate_to: [{', '.join(['{owner: true}'] * 11)}]"), "line 5: `escalate_to` must be a list of 1 to 10"),
        (one("channels: email"), "line 5: `channels` must be a list"),
        (one("channels: [Email]"), "line 5: a channel must be a name in lower case"),
        (one("channels: [{slack: '#a', github: a}]"), "line 5: a place must have one channel"),
        (one("channels: [{email: ops@example.com}]"), "line 5: `email` has no shared places; slack, discord,"),
        (one("channels: [{slack: '#a\\u202e'}]").replace("'", '"'), "line 5: a place has a character that nobody sees"),
        (one("channels: [{telegram: -1001}]"), "this is `-1001`: put it into quotes."),
        (one("channels: [{slack: {connection: a}}]"), "line 5: this place of slack has no `place`."),
        (one("channels: [{slack: {connection: 'a:b', place: '#a'}}]"), "line 5: `connection` must be the name of a connection"),
        (one("channels: [{slack: {places: '#a'}}]"), "line 5: `places` is not a key of"),
        (one("channels: [" + ", ".join(f"{{slack: '#{n}'}}" for n in range(6)) + "]"), "line 5: `channels` names more than 5 places."),
        (one("channels: [email, [webhook]]"), "line 5: a channel must be a name in lower case"),
        (one("standing: sometimes"), "line 5: `standing` must be true or false."),
        ("policies:\n  - name: a\n    target: c\n    effect: allow\n    quorum: 2\n", "line 5: `quorum` is for policies whose effect is"),
        ("policies:\n  - name: a\n    target: c\n    effect: deny\n    channels: []\n", "line 5: `channels` is for policies whose effect"),
        (one("template: solo"), "line 5: `template` must be one of dev_only, dev_review, full_pipeline, critical_path, not `solo`."),
        (one("action: spend"), "line 5: `action` must be one of tool_call."),
        (one("clearance: -1"), "line 5: `clearance` must be a whole number from 0 to 1000."),
        (one("clearance: 1001"), "line 5: `clearance` must be"),
        (one("clearance: '2'"), "line 5: `clearance` must be"),
        (one("clearance: 2.0"), "line 5: `clearance` must be"),
        (one("timeout: 8d"), "line 5: `timeout` must be a time up to 7d"),
        (one("timeout: 0s"), "line 5: `timeout` must be a time"),
        (one("timeout: 3600"), "line 5: `timeout` must be a time"),
        (one("timeout: 1h\n    remind_before: 1h"), "line 6: `remind_before` must be shorter"),
        (one("template: dev_only\n    remind_before: 2d"), "line 6: `remind_before` must be shorter"),
        (one("on_deny: stop"), "line 5: `on_deny` must be one of fail, continue, not `stop`."),
        (one("self_approval: yes"), "line 5: `self_approval` must be true or false."),
        (one("final: 1"), "line 5: `final` must be true or false."),
        (one("when: x == 1"), "line 5: `when`: the condition names x; it may name args, tool"),
        (one("when: true"), "line 5: `when` must be a text, and this is `true`: put it into quotes."),
        (one("when:"), "line 5: `when` must be a text, and this is nothing: put it into quotes."),
        (one("when: {a: b}"), "line 5: `when` must be a text."),
        (one("approvers: [Ada]"), "line 5: `approvers` must be a mapping with owner, roles or members."),
        (one("approvers: {}"), "line 5: `approvers` names nobody."),
        (one("approvers: {owner: false}"), "line 5: `approvers` names nobody."),
        (one("approvers: {roles: [chief]}"), "line 5: a role must be one of admin, steward, operator, approver, member, not `chief`."),
        (one("approvers: {roles: [guest]}"), "line 5: a role must be one of"),
        (one("approvers: {roles: admin}"), "line 5: `roles` must be a list"),
        (one("approvers: {people: [Ada]}"), "line 5: `people` is not a key of `approvers`; known are owner, roles, members."),
        ("policies:\n  - {name: a b, target: c, effect: deny}\n", "line 2: `name` must be letters"),
        ("policies:\n  - {name: 12, target: c, effect: deny}\n", "line 2: `name` must be a text, and this is `12`"),
        ("policies:\n  - {name: a, target: c d, effect: deny}\n", "line 2: `target` must be the name of a tool"),
        ("policies:\n  - {name: a, target: c, effect: block}\n", "line 2: `effect` must be one of allow, deny, requires_approval, not `block`."),
        ("policies:\n  - name: a\n    target: c\n    effect: deny\n    timeout: 1h\n", "line 5: `timeout` is for policies whose effect is requires_approval, not deny."),
        ("policies:\n  - {name: a, target: c, effect: deny}\n  - {name: a, target: d, effect: deny}\n", "line 3: the name `a` is taken by line 2."),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_line(text: str, said: str) -> None:
    assert said in refusal(text)


def test_all_faults_are_told_at_once() -> None:
    message = refusal(one("efect: 1") + "    final: maybe\n    clearance: x\n")
    assert [line.partition(":")[0] for line in message.splitlines()] == ["line 5", "line 6", "line 7"]


def test_a_file_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(TooLarge):
        read("#" + "x" * MAX_FILE_BYTES)


@pytest.mark.proves("D.56")
@pytest.mark.parametrize(
    ("people", "row", "said"),
    [
        (PEOPLE, "approvers: {members: [Zoe]}", "there is no active member called `Zoe`."),
        (PEOPLE, f"approvers: {{members: [{UUID(int=9)}]}}", "there is no active member with the id"),
        ([*PEOPLE, Person(id=uuid4(), name="Ada", clearance=0, roles=frozenset())], "approvers: {members: [Ada]}",
         "2 members are called `Ada`: use an id"),
    ],
)  # fmt: skip
def test_a_member_who_is_not_there_is_named_with_the_line(people: list[Person], row: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        placed(one(row), people)
    assert said in refused.value.message
    assert refused.value.message.startswith("line 2: ")


def test_a_team_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InvalidInput) as refused:
        placed("policies: []\nteams:\n  paymnts: []\n")
    assert refused.value.message == "line 3: there is no team `paymnts`; there are payments."


@pytest.mark.proves("D.57", "D.112")
@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ("clearance: 3\n    approvers: {members: [Ada, Bob]}", "Bob has clearance 1, and this policy asks for 3."),
        ("clearance: 6\n    approvers: {roles: [admin]}", "nobody could ever decide"),
        ("clearance: 2\n    approvers: {roles: [approver]}", "no active member who is approver with clearance 2"),
        ("approvers: {roles: [steward]}", "nobody could ever decide"),
        ("clearance: 6", "no active member who is the owner of a session with clearance 6"),
        ("clearance: 6\n    template: critical_path", "approver or admin with clearance 6"),
        ("approvers: {owner: true}\n    self_approval: false", "its only approver is the owner"),
        ("approvers: {owner: true}\n    template: critical_path", "its only approver is the owner"),
        ("self_approval: false", "its only approver is the owner"),
        ("clearance: 2\n    escalate_to: [{members: [Cy]}]\n    escalate_before: 1h", "Cy has clearance 0, and this"),
        (
            "approvers: {roles: [admin]}\n    quorum: 2",
            "its quorum of 2 votes could never be met: only 1 could be admin with clearance 0.",
        ),
        (
            "clearance: 1\n    template: critical_path\n    quorum: 3",
            "its quorum of 3 votes could never be met: only 2 could be approver or admin with clearance 1.",
        ),
        ("approvers: {owner: true}\n    quorum: 3", "only 2 could be the owner of a session with clearance 0."),
        (
            "approvers: {roles: [approver]}\n    quorum: {roles: {admin: 1}}",
            "its quorum with 1 vote of admin could never be met: only 0 of that role could be approver",
        ),
        (
            "template: dev_review\n    quorum: {votes: 2, roles: {admin: 2}}",
            "its quorum with 2 votes of admin could never be met: only 1 of that role could be",
        ),
    ],
)
def test_approvers_who_could_never_decide_are_found_at_once(terms: str, said: str) -> None:
    found = list(faults_of(placed(one(terms)), PEOPLE))
    assert any(said in message for _, message in found), found


@pytest.mark.parametrize(
    "terms",
    [
        "clearance: 5", "clearance: 5\n    approvers: {members: [Ada]}", "template: critical_path",
        "approvers: {owner: true, roles: [admin]}\n    self_approval: false",
        "template: critical_path\n    quorum: 2", "quorum: 2", "template: dev_review\n    quorum: {votes: 2, roles: {admin: 1}}",
        "approvers: {owner: true, roles: [approver]}\n    quorum: {votes: 2, roles: {member: 1}}",
    ],
)  # fmt: skip
def test_approvers_who_could_decide_pass(terms: str) -> None:
    assert list(faults_of(placed(one(terms)), PEOPLE)) == []


@pytest.mark.proves("D.57")
def test_what_never_matches_and_what_does_nothing_is_a_warning() -> None:
    rows = placed("""\
        policies:
          - {name: some, target: deploy.*, effect: allow, when: read_only}
          - {name: all, target: deploy*, effect: deny}
          - {name: hidden, target: deploy.*.x, effect: allow, when: read_only}
          - {name: hidden-too, target: deployer, effect: deny}
          - {name: seen, target: '*deploy', effect: allow}
          - {name: odd, target: 'deplo?', effect: deny}
          - {name: idle, target: other, effect: allow, final: true}
        teams:
          payments:
            - {name: fine, target: deploy.a.x, effect: deny}
            - {name: lonely, target: pay, effect: requires_approval, approvers: {members: [Bob]}, self_approval: false}
    """)
    told = sorted(warnings_of(rows, PEOPLE))
    assert told == [
        (2, "`hidden` never matches: `all` before it always does."),
        (3, "`hidden-too` never matches: `all` before it always does."),
        (5, "no tool can be called `deplo?`: only * has a meaning in a target."),
        (6, "`final` does nothing here: nothing is looser than allow."),
        (8, "Bob alone may decide this, and not what they asked for themselves."),
    ]


@pytest.mark.proves("D.112")
@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ("channels: [email, pager]", f"there is no channel `pager` so far; known are {', '.join(KNOWN_CHANNELS)}."),
        ("channels: [email, webhook]", None),
        ("approvers: {roles: [admin]}\n    escalate_before: 1h", "`escalate_before` does nothing here"),
        # Bob is the only approver, and Ada the only admin.
        ("approvers: {members: [Ada]}\n    escalate_before: 1h", "`escalate_before` does nothing here"),
        ("approvers: {members: [Bob]}\n    escalate_before: 1h", None),
        ("escalate_before: 1h", None),
        ("approvers: {members: [Bob]}\n    escalate_before: 1h\n    escalate_to: [{roles: [approver]}]", "does nothing here"),
        ("approvers: {members: [Bob]}\n    escalate_before: 1h\n    escalate_to: [{roles: [member]}]", None),
        ("clearance: 2\n    approvers: {members: [Ada]}\n    escalate_before: 1h\n    escalate_to: [{roles: [approver]}]", "does nothing"),
        ("escalate_to: [{roles: [admin]}]", "`escalate_to` does nothing here without `escalate_before`."),
        ("escalate_before: never\n    escalate_to: [{roles: [admin]}]", "does nothing here without `escalate_before`."),
        ("template: full_pipeline\n    approvers: {members: [Bob, Cy]}\n    escalate_to: [{roles: [admin]}]", None),
        ("quorum: 2", "its quorum of 2 votes can only be met where a session has no owner."),
        ("approvers: {owner: true, roles: [admin]}\n    quorum: 2", None),
    ],
)  # fmt: skip
def test_terms_that_do_nothing_are_a_warning(terms: str, said: str | None) -> None:
    found = [message for _, message in warnings_of(placed(one(terms)), PEOPLE)]
    assert len(found) == (0 if said is None else 1), found
    assert said is None or said in found[0]


def test_a_step_that_another_level_adds_is_no_idle_one() -> None:
    rows = placed("""\
        policies:
          - {name: org, target: deploy, effect: requires_approval, template: dev_review}
        teams:
          payments:
            - {name: team, target: deploy, effect: requires_approval, approvers: {members: [Ada, Cy]}, escalate_before: 1h}
    """)
    assert list(warnings_of(rows, PEOPLE)) == []
    alone = rows[1:]
    assert [place for place, _ in warnings_of(alone, PEOPLE)] == [0]
    platform = [PolicyRow(name="p", target="*", effect=PolicyVerdict.REQUIRES_APPROVAL, template=Template.DEV_REVIEW)]
    assert list(warnings_of(alone, PEOPLE, platform)) == []


@pytest.mark.proves("D.56")
def test_more_policies_than_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MAX_ROWS", 3)
    text = "policies:\n" + "".join(f"  - {{name: r{n}, target: t, effect: deny}}\n" for n in range(5))
    assert refusal(text) == "line 5: the file has more than 3 policies."


@pytest.mark.proves("D.56")
def test_a_difference_names_rows_and_fields() -> None:
    before = placed("""\
        policies:
          - {name: a, target: x, effect: deny}
          - {name: b, target: y, effect: allow}
          - {name: c, target: z, effect: deny}
        teams: {payments: [{name: a, target: x, effect: deny}]}
    """)
    after = placed("""\
        policies:
          - {name: a, target: x2, effect: requires_approval, approvers: {roles: [admin]}, quorum: 2,
             escalate_to: [{roles: [admin]}], channels: [email], standing: false, escalate_before: 1h}
          - {name: c, target: z, effect: deny}
          - {name: d, target: y, effect: allow}
        teams: {payments: [{name: a, target: x, effect: deny}]}
    """)
    diff = difference(before, after)
    assert (diff.added, diff.removed, diff.changed) == (1, 1, 2)
    told = {(one.change, one.name): {f.field: (f.before, f.after) for f in one.fields} for one in diff.changes}
    assert told == {
        ("changed", "a"): {
            "target": ("x", "x2"),
            "effect": (PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL),
            "approvers": (None, {"owner": False, "roles": (Role.ADMIN,), "members": ()}),
            "quorum": (None, {"votes": 2, "roles": ()}),
            "escalate_to": (None, ({"owner": False, "roles": (Role.ADMIN,), "members": ()},)),
            "escalation_seconds": (None, 3600),
            "channels": (None, ("email",)),
            "standing": (None, False),
        },
        ("changed", "c"): {"place": (3, 2)},
        ("added", "d"): {},
        ("removed", "b"): {},
    }
    assert difference(after, after).changes == []


def merged(before: str, file: str) -> list[str]:
    return [f"{one.team or 'org'}:{one.row.name}" for one in merge_rows(placed(before), placed(file))]


@pytest.mark.proves("S5.264")
@pytest.mark.parametrize(
    ("before", "file", "after"),
    [
        ("a b c", "b", "a b c"),
        ("a b c", "x", "x a b c"),
        ("a b c", "x y", "x y a b c"),
        ("a b c", "b x", "a b x c"),
        ("a b c", "x b y", "x a b y c"),
        ("a b c", "c x a y", "a y b c x"),
        ("", "x y", "x y"),
    ],
)
def test_merging_keeps_each_policy_in_its_place(before: str, file: str, after: str) -> None:
    def listed(names: str) -> str:
        return "policies: [" + ", ".join(f"{{name: {name}, target: t, effect: deny}}" for name in names.split()) + "]"

    rows = merge_rows(placed(listed(before)), placed(listed(file).replace("deny", "allow")))
    assert [one.row.name for one in rows] == after.split()
    assert [one.position for one in rows] == list(range(len(rows)))
    assert {one.row.name for one in rows if one.row.effect is PolicyVerdict.ALLOW} == set(file.split())


@pytest.mark.proves("S5.264")
def test_merging_keeps_levels_apart() -> None:
    before = "{policies: [{name: a, target: t, effect: deny}], teams: {payments: [{name: a, target: t, effect: deny}]}}"
    file = "teams: {payments: [{name: b, target: t, effect: deny}]}"
    assert merged(before, file) == ["org:a", "payments:b", "payments:a"]


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
_APPROVERS = st.builds(
    Approvers, owner=st.booleans(), roles=st.sampled_from([(), (Role.ADMIN,), (Role.APPROVER, Role.ADMIN)]),
    members=st.sampled_from([(), (ADA.id,)]),
).filter(lambda some: some.owner or some.roles or some.members)  # fmt: skip
_TIMES = st.none() | st.sampled_from([60, 3600, 5400])
_TERMS: dict[str, st.SearchStrategy[object]] = {
    "required_clearance": st.none() | st.integers(0, 1000), "template": st.none() | st.sampled_from(Template),
    "timeout_seconds": st.none() | st.just(7 * 86_400), "reminder_seconds": _TIMES | st.just(0),
    "approvers": st.none() | _APPROVERS, "on_deny": st.none() | st.sampled_from(OnDeny),
    "self_approval": st.none() | st.booleans(), "channels": st.sampled_from([None, (), ("email", "webhook")]),
    "quorum": st.sampled_from([None, Quorum(votes=2), Quorum(votes=3, roles=(RoleVotes(role=Role.ADMIN, votes=1),))]),
    "escalation_seconds": _TIMES | st.just(0), "escalate_to": st.none() | st.tuples(_APPROVERS, _APPROVERS),
    "standing": st.none() | st.booleans(),
}  # fmt: skip
_CONDITIONS = st.none() | _TEXTS.map(lambda text: f"args.a == {json.dumps(text, ensure_ascii=False)}")
_PLAIN = {
    "name": _NAMES, "target": st.from_regex(r"[^\x00-\x20\x7f\ud800-\udfff]{1,12}", fullmatch=True).filter(lambda text: unseen_in(text) is None),
    "condition": _CONDITIONS, "final": st.booleans(),
    "reason": st.sampled_from([None, "Two people look.", "Größer: 'zwei' #1\nund \"drei\""]),
}  # fmt: skip
_ROWS = st.one_of(
    st.builds(PolicyRow, **_PLAIN, effect=st.sampled_from([PolicyVerdict.ALLOW, PolicyVerdict.DENY])),
    st.builds(PolicyRow, **_PLAIN, effect=st.just(PolicyVerdict.REQUIRES_APPROVAL), **_TERMS),
)


@pytest.mark.proves("S5.264")
@given(
    st.lists(_ROWS, max_size=4, unique_by=lambda row: row.name),
    st.lists(_ROWS, max_size=2, unique_by=lambda row: row.name),
)
def test_what_is_written_is_read_as_the_same_rows(org: list[PolicyRow], team: list[PolicyRow]) -> None:
    assert {*_TERMS, *_PLAIN, "effect", "action_type", "named", "action", "details"} == set(PolicyRow.__slots__)
    rows = [
        *(PlacedRow(level=Level.ORG, team_id=None, team=None, position=at, row=row) for at, row in enumerate(org)),
        *(
            PlacedRow(level=Level.TEAM, team_id=PAYMENTS, team="payments", position=at, row=row)
            for at, row in enumerate(team, len(org))
        ),
    ]
    assert placed(write(rows)) == rows
