"""Finding what matches among very many: the same as looking at each, without looking at each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.gates.model.atlases import Gate, MatchMode, TriggerType
from cortex_plane.gates.rules import index
from cortex_plane.gates.rules.index import MAX_KEYWORD_BYTES, MAX_LOOKED_UP, CompiledAtlases, KeywordIndex
from cortex_plane.kernel.globs import Glob, GlobIndex
from cortex_plane.kernel.text import normal
from tests.fixtures.counting import Searches, instructions
from tests.fixtures.gates import atlas, gate

MANY = 200
PIECE = 65_536
PATTERNS = st.text("ab.*", min_size=1, max_size=8)
WORDS = st.text("abß ", min_size=1, max_size=9)


def keyword(number: int, *words: str, mode: MatchMode = MatchMode.ANY) -> Gate:
    return gate(f"g{number}", TriggerType.KEYWORD, on_patterns=words, on_match_mode=mode)


def found(index: KeywordIndex, text: str) -> list[str]:
    return [each.gate_id for each, _ in (index.find(text) or {}).values()]


@pytest.mark.proves("D.354")
@given(st.lists(PATTERNS, max_size=30), st.text("ab.", max_size=10))
def test_an_index_of_globs_finds_what_each_of_them_matches(patterns: list[str], text: str) -> None:
    index = GlobIndex((pattern, number) for number, pattern in enumerate(patterns))
    assert index.find(text) == [n for n, pattern in enumerate(patterns) if Glob.of(pattern).matches(text)]


@pytest.mark.proves("D.354", "S5.30")
@pytest.mark.parametrize("shape", ["svc{n}.*", "*.verb{n}", "*_area{n}_*", "ticket.*x{n}*", "t.*.v{n}", "*aa{n}*end"])
def test_few_of_many_globs_are_tried_whatever_they_have_in_common(shape: str) -> None:
    index = GlobIndex((shape.format(n=n), n) for n in range(1000, 6000))
    name = shape.format(n=1234).replace("*", "q")
    assert index.find(name) == [1234]
    assert len(list(index._candidates(name))) < 10


@pytest.mark.proves("D.354")
def test_a_glob_of_many_gates_is_tried_once() -> None:
    index = GlobIndex((pattern, n) for n in range(1000) for pattern in ("ticket.*", "*.get", "user.get"))
    assert len(list(index._candidates("ticket.get"))) == 2
    assert index.find("ticket.get") == [n for n in range(1000) for _ in range(2)]


@pytest.mark.proves("D.354")
@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), max_size=8), st.text("abß ", max_size=40), st.booleans())
def test_keywords_are_found_alike_by_looking_and_by_the_index(words: list[list[str]], text: str, many: bool) -> None:
    filling = [keyword(1000 + n, f"zz{n}zz") for n in range(MANY if many else 0)]
    gates = [keyword(n, *each) for n, each in enumerate(words)]
    plain = normal(text)
    expected = [f"g{n}" for n, each in enumerate(words) if any(normal(word) and normal(word) in plain for word in each)]
    assert found(KeywordIndex([*gates, *filling]), text) == expected


@pytest.mark.proves("D.354")
@pytest.mark.parametrize("many", [False, True])
def test_a_keyword_is_found_wherever_it_stands_in_a_long_text(many: bool) -> None:
    filling = [keyword(1000 + n, f"nothing{n:03}") for n in range(MANY if many else 0)]
    words = KeywordIndex([keyword(0, "refund now"), *filling])
    for at in (0, PIECE - 5, PIECE, 3 * PIECE, 6 * PIECE):
        assert found(words, "x" * at + "Refund NOW" + "y" * (6 * PIECE - at)) == ["g0"]
    assert found(words, "x" * (7 * PIECE)) == []


@pytest.mark.proves("D.354")
def test_all_words_and_whole_words_among_many() -> None:
    filling = [keyword(1000 + n, f"nothing{n}") for n in range(200)]
    every = keyword(0, "refund", "cancel", "REFUND", mode=MatchMode.ALL)
    phrase = keyword(1, "give back", mode=MatchMode.PHRASE)
    words = KeywordIndex([every, phrase, *filling])
    assert found(words, "cancel and refund") == ["g0"]
    assert found(words, "cancel") == []
    assert found(words, "forgive backs, then give back.") == ["g1"]
    assert found(words, "forgive back") == []


@pytest.mark.proves("D.354")
@pytest.mark.parametrize("text", ["ＲＥＦＵＮＤ 12", "re\u200bfund 12", "Réfund 12"])
def test_words_and_expressions_read_what_people_read(text: str) -> None:
    assert found(KeywordIndex([keyword(0, "refund")]), text) == ["g0"]
    assert found(KeywordIndex([keyword(0, r"refund \d+", mode=MatchMode.REGEX)]), text.lower()) == ["g0"]


@pytest.mark.proves("D.354")
def test_half_characters_are_no_way_around_an_expression() -> None:
    assert found(KeywordIndex([keyword(0, "refund", mode=MatchMode.REGEX)]), "\ud800 refund") == ["g0"]


UNKIND: dict[str, tuple[Callable[[int], str], str, MatchMode]] = {
    "lengths": (lambda n: "a" * (n + 4) + "b", "a" * 2000, MatchMode.ANY),
    "beginnings": (lambda n: "a" * (n + 1), "aaaaaac" * 300, MatchMode.ANY),
    "parts of words": (lambda n: "a" * (n + 1), "aaaaa aaaaaa " * 150, MatchMode.PHRASE),
    "words on words": (lambda n: ("aaaaaaaaa " * 99)[: n + 1].strip(), "aaaaaaaaa " * 200, MatchMode.PHRASE),
    "beginnings of phrases": (lambda n: "a " * (n + 1) + "b", "a " * 1000, MatchMode.PHRASE),
    "no sign of ours": (lambda n: "ж" * (n + 4) + "q", "ж" * 2000, MatchMode.ANY),
}
"""Words, and a text in which all of them begin at every place."""


@pytest.mark.proves("D.354", "D.342")
@pytest.mark.parametrize("kind", list(UNKIND))
def test_a_text_is_read_once_whatever_the_words(kind: str) -> None:
    word, text, mode = UNKIND[kind]
    few, many = (KeywordIndex([keyword(0, *(word(n) for n in range(number)), mode=mode)]) for number in (100, 900))
    of_few, of_many = (instructions(lambda index=index: index.find(text)) for index in (few, many))  # type: ignore[misc]
    assert of_many < 2 * of_few + 100 * 900, "what is found is told once"
    assert of_many < 600 * len(text)
    longer = instructions(lambda: many.find(text * 3))
    assert longer < 4 * of_many


@pytest.mark.proves("D.354")
@given(st.lists(st.text("ab ж", min_size=1, max_size=9), min_size=1, max_size=40), st.text("ab ж.", max_size=60))
def test_phrases_among_many_are_found_as_whole_words(phrases: list[str], text: str) -> None:
    gates = [keyword(n, each, mode=MatchMode.PHRASE) for n, each in enumerate(phrases)]
    plain = normal(text)

    def whole(phrase: str) -> bool:
        ends = ((at, at + len(phrase)) for at in range(len(plain)) if plain.startswith(phrase, at))
        return any(not plain[max(at - 1, 0) : at].isalnum() and not plain[end : end + 1].isalnum() for at, end in ends)

    expected = [f"g{n}" for n, each in enumerate(phrases) if normal(each) and whole(normal(each))]
    assert found(KeywordIndex(gates), text) == expected


@pytest.mark.proves("D.354")
@pytest.mark.parametrize("failure", ["compilation", "search"])
def test_keywords_are_found_where_the_set_has_too_little_memory(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    class Failing:
        def Match(self, text: bytes) -> None:
            return None

    monkeypatch.setattr(index, "_compile_set", lambda needles: None if failure == "compilation" else Failing())
    words = KeywordIndex([keyword(0, "refund"), keyword(1, "give back", mode=MatchMode.PHRASE)])
    assert found(words, "a refund, forgive back") == ["g0"]
    assert found(words, "give back") == ["g1"]


@pytest.mark.proves("D.354", "D.315")
def test_the_longest_and_the_most_keywords_of_an_atlas_fit_into_memory() -> None:
    for size in (1, 4, 1000):
        words = [f"{n:x}".zfill(size)[-size:] for n in range(min(MAX_KEYWORD_BYTES // size, 16**size))]
        assert index._compile_set([word.encode() for word in words]) is not None


@pytest.mark.proves("D.352", "D.342")
def test_an_expression_of_many_gates_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Searches(monkeypatch)
    words = KeywordIndex([keyword(n, "pay ?roll", "x+y", mode=MatchMode.REGEX) for n in range(500)])
    assert len(found(words, "the payroll")) == 500
    assert searches.patterns == ["pay ?roll", "x+y"]


@pytest.mark.proves("D.354")
def test_what_is_remembered_of_actions_is_bounded() -> None:
    compiled = CompiledAtlases([atlas(gate("g", TriggerType.ACTION_PRE, on_patterns=("a.*",)))])
    for n in range(MAX_LOOKED_UP + 10):
        assert len(compiled.of_action(f"a.b{n}").before) == 1
    assert len(compiled._looked_up) <= MAX_LOOKED_UP
