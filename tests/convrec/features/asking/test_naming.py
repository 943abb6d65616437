"""Which answers name a relevant title: tables by hand, with the share that is classified correctly."""

from typing import NamedTuple

from convrec.features.asking.naming import TitleNames
from convrec.titles.catalog import Catalog


class Measured(NamedTuple):
    recall: float
    precision: float
    told_wrong: list[tuple[str, str]]


ITEMS = [
    ("The Terminator", 1984),
    ("Terminator 2: Judgment Day", 1991),
    ("Star Wars: Episode IV - A New Hope", 1977),
    ("Star Wars: Episode V - The Empire Strikes Back", 1980),
    ("The Matrix", 1999),
    ("The Matrix Reloaded", 2003),
    ("The Matrix Revolutions", 2003),
    ("The Godfather: Part II", 1974),
    ("Kill Bill: Vol. 2", 2004),
    ("Harry Potter and the Goblet of Fire", 2005),
    ("Harry Potter and the Deathly Hallows: Part 1", 2010),
    ("The Lord of the Rings: The Two Towers", 2002),
    ("Mission: Impossible - Fallout", 2018),
    ("2001: A Space Odyssey", 1968),
    ("Dr. Strangelove or: How I Learned to Stop Worrying and Love the Bomb", 1964),
    ("Toy Story 3", 2010),
    ("Rocky V", 1990),
    ("Blade Runner 2049", 2017),
    ("Alien: Covenant", 2017),
    ("Alien: Resurrection", 1997),
    ("Mad Max: Fury Road", 2015),
    ("X-Men: Days of Future Past", 2014),
    ("Indiana Jones and the Last Crusade", 1989),
    ("Beauty and the Beast", 1991),
    ("The Old Man and the Sea", 1958),
    ("Ocean's Eleven", 2001),
    ("Dune: Part Two", 2024),
    ("The Exorcist: The Beginning", 2004),
    ("Ringu (The Ring)", 1998),
    ("Pokémon: The Beginning", 2009),
    ("Heat", 1995),
    ("Amélie", 2001),
    ("Up", 2009),
    ("Love Story", 1970),
    ("War for the Planet of the Apes", 2017),
    ("Blade: Trinity", 2004),
    ("Hamlet", 1996),
    ("Night at the Museum: Secret of the Tomb", 2014),
    ("American Pie 2", 2001),
    ("The Good, the Bad and the Ugly", 1966),
]
# Part of the relevant title -> answers from which a reader knows it.
NAMING_BY_PART = {
    "Terminator 2": [
        "I want Terminator 2",
        "I want terminator two, please.",
        "Something like Terminator.",
        "maybe judgment day?",
        "Terminator 2: Judgment Day",
        "A film in Terminator's world.",
    ],
    "A New Hope": [
        "Star Wars please",
        "star wars",
        "Something like A New Hope",
        "I love Star Wars IV",
        "A Star Wars film",
    ],
    "Empire Strikes": ["The Empire Strikes Back.", "Star Wars, episode five", "I would take Empire Strikes Back"],
    "Matrix Reloaded": ["Matrix Reloaded", "I'd like The Matrix.", "Another Matrix film", "the matrix reloaded please"],
    "The Matrix": ["I'd like The Matrix.", "matrix"],
    "Godfather": ["The Godfather II", "I want a Godfather film", "The second part of The Godfather."],
    "Kill Bill": ["kill bill", "Kill Bill 2", "Something like Kill Bill, volume two."],
    "Goblet": ["A Harry Potter film", "harry potter please", "the goblet of fire"],
    "Deathly Hallows": ["Deathly Hallows", "I want Harry Potter and the Deathly Hallows"],
    "Two Towers": ["The Lord of the Rings", "lord of the rings", "Two Towers", "The 2 Towers, please."],
    "Fallout": ["Mission Impossible", "mission: impossible", "I think it was called Fallout."],
    "2001": ["A Space Odyssey", "2001: A Space Odyssey", "the one with a space odyssey"],
    "Strangelove": ["Dr. Strangelove", "Doctor Strangelove please", "How I learned to stop worrying and love the bomb"],
    "Toy Story": ["Toy Story", "toy story 3", "One of the Toy Story films"],
    "Rocky": ["I like Rocky", "Rocky 5", "Rocky!"],
    "Blade Runner": ["Blade Runner", "blade runner 2049"],
    "Alien: Covenant": [
        "I want an Alien film",
        "Alien, please",
        "Something like 'Alien: Covenant'",
        'the one called "alien"',
    ],
    "Mad Max": ["Mad Max", "fury road"],
    "X-Men": ["X-Men", "Something with the X-Men.", "days of future past"],
    "Indiana": ["Indiana Jones", "I want the Last Crusade."],
    "Beauty": ["Beauty and the Beast"],
    "Old Man": ["I want The Old Man and the Sea", "It is called The Old Man, I think."],
    "Ocean": ["Ocean's Eleven", "oceans 11", "Ocean's 11 please"],
    "Dune": ["Dune 2", "I want Dune.", "Dune: Part Two", "Something like Dune, part two"],
    "Ringu": ["Ringu", "I think The Ring"],
    "Heat": ["I love heat!", "Heat"],
    "Amélie": ["amelie"],
    "Night at": ["Night at the Museum", "secret of the tomb"],
    "American Pie": ["American Pie"],
}
# Answers that do not reveal the title, although they share words with it.
OPEN_BY_PART = {
    "Terminator 2": ["I want action.", "A film about judgment.", "Something for a rainy day", "Two films, please."],
    "A New Hope": [
        "A story with hope.",
        "Something with stars and wars",
        "A new film, I hope",
        "Science fiction, please.",
    ],
    "Empire Strikes": ["An empire at war", "Something about Rome."],
    "Matrix Reloaded": ["A film about computers."],
    "Godfather": ["Crime, please.", "Part of a series would be fine."],
    "Kill Bill": ["Something where people kill.", "Whoever pays the bill"],
    "Goblet": ["Fantasy with fire.", "A film about a potter", "Something magical."],
    "Two Towers": ["Something with rings", "A fantasy about two friends.", "Films with towers"],
    "Fallout": ["It is impossible to say.", "A secret mission", "Something about the fallout of a war."],
    "2001": ["From 2001 or later.", "Something in space"],
    "Toy Story": ["A story for children", "One about a toy"],
    "Rocky": ["It should be set on a rocky coast."],
    "Blade Runner": ["Something about a runner", "From 2049 I know nothing."],
    "Alien: Covenant": ["Something with an alien", "Horror with aliens.", "A covenant between friends"],
    "Mad Max": ["Something mad", "With a road trip."],
    "Beauty": ["A film of great beauty", "Something with a beast"],
    "Old Man": ["Something about an old man.", "Set at sea"],
    "Ocean": ["Something on the ocean", "Eleven people or so"],
    "Dune": ["Desert dunes", "In two parts"],
    "The Exorcist": ["From the beginning of the century.", "The Beginning of an era."],
    "Ringu": ["A film about a ring of spies.", "Something with rings"],
    "Up": ["Cheer me please"],
    "Love Story": ["A story about love"],
    "War for": ["A war film", "War, please.", "Something with apes"],
    "Blade: Trinity": ["One with a blade"],
    "Night at": ["A film for the night", "Set in a museum"],
    "American Pie": ["An American comedy.", "American, please"],
    "Ugly": ["Good or bad, it does not matter.", "A western with a good fight"],
    "Heat": ["I don't mind.", "Crime from the 1990s."],
}
NAMING = [(part, text) for part, texts in NAMING_BY_PART.items() for text in texts]
OPEN = [(part, text) for part, texts in OPEN_BY_PART.items() for text in texts]


# A second catalog and table, written after the rules: (part of the relevant title, answer).
OTHER_ITEMS = [
    ("Raiders of the Lost Ark", 1981),
    ("Indiana Jones and the Temple of Doom", 1984),
    ("Jurassic World: Fallen Kingdom", 2018),
    ("Jurassic Park", 1993),
    ("Pirates of the Caribbean: The Curse of the Black Pearl", 2003),
    ("The Dark Knight Rises", 2012),
    ("The Dark Knight", 2008),
    ("Batman Begins", 2005),
    ("Captain America: The Winter Soldier", 2014),
    ("Guardians of the Galaxy Vol. 3", 2023),
    ("Fast & Furious 6", 2013),
    ("Die Hard 2", 1990),
    ("Die Hard with a Vengeance", 1995),
    ("Die Hard", 1988),
    ("Lethal Weapon 4", 1998),
    ("The Hunger Games: Mockingjay - Part 1", 2014),
    ("The Twilight Saga: Eclipse", 2010),
    ("Crouching Tiger, Hidden Dragon", 2000),
    ("Star Trek II: The Wrath of Khan", 1982),
    ("Star Trek: First Contact", 1996),
    ("Halloween H20: 20 Years Later", 1998),
    ("Halloween", 1978),
    ("Scream 2", 1997),
    ("Shrek 2", 2004),
    ("Ice Age: The Meltdown", 2006),
    ("Frozen II", 2019),
    ("The Hobbit: An Unexpected Journey", 2012),
    ("Léon: The Professional", 1994),
    ("Borat: Cultural Learnings of America", 2006),
    ("Percy Jackson & the Olympians: The Lightning Thief", 2010),
    ("Hidden Figures", 2016),
    ("Home Alone 2: Lost in New York", 1992),
    ("It", 2017),
    ("Room", 2015),
    ("Life of Pi", 2012),
    ("The Girl with the Dragon Tattoo", 2011),
    ("Back to the Future Part III", 1990),
    ("Ghostbusters: Afterlife", 2021),
    ("Wonder Woman 1984", 2020),
    ("Zelda: Ocarina of Time", 1998),
    ("Ghost in the Shell", 1995),
    ("Monty Python and the Holy Grail", 1975),
]
OTHER_NAMING = [
    ("Temple of Doom", "An Indiana Jones film"),
    ("Temple of Doom", "temple of doom"),
    ("Fallen Kingdom", "Something with Jurassic World"),
    ("Fallen Kingdom", "Fallen Kingdom please"),
    ("Caribbean", "pirates of the caribbean"),
    ("Caribbean", "Curse of the Black Pearl!"),
    ("Knight Rises", "I'd love The Dark Knight"),
    ("Begins", "batman begins"),
    ("Winter", "Captain America"),
    ("Winter", "the winter soldier"),
    ("Guardians", "Guardians of the Galaxy"),
    ("Furious", "Fast and Furious"),
    ("Furious", "fast & furious 6"),
    ("Die Hard 2", "Die Hard, please"),
    ("Vengeance", "die hard"),
    ("Lethal", "Lethal Weapon"),
    ("Mockingjay", "The Hunger Games"),
    ("Mockingjay", "Mockingjay"),
    ("Twilight", "I like Twilight"),
    ("Eclipse", "Eclipse, please"),
    ("Khan", "Star Trek 2"),
    ("Khan", "the wrath of khan"),
    ("First Contact", "Star Trek"),
    ("Scream 2", "I want Scream"),
    ("Shrek", "shrek"),
    ("Ice Age", "Ice Age"),
    ("Frozen", "We love Frozen"),
    ("Hobbit", "The Hobbit"),
    ("Léon", "Leon"),
    ("Léon", "The Professional."),
    ("Borat", "borat"),
    ("Percy", "percy jackson"),
    ("Percy", "The Lightning Thief"),
    ("Home Alone", "Home Alone"),
    ("Future", "back to the future"),
    ("Ghostb", "Ghostbusters"),
    ("Wonder", "wonder woman"),
    ("Zelda", "Ocarina of Time"),
    ("H20", "Halloween"),
    ("Monty", "Monty Python"),
    ("Monty", "the holy grail"),
    ("Crouching", "Crouching Tiger"),
]
OTHER_OPEN = [
    ("Temple of Doom", "Adventure, please."),
    ("Fallen Kingdom", "Something with dinosaurs"),
    ("Caribbean", "With pirates"),
    ("Knight Rises", "A dark film with a knight"),
    ("Winter", "Set in winter"),
    ("Winter", "About a soldier"),
    ("Guardians", "In another galaxy"),
    ("Furious", "Something fast"),
    ("Die Hard 2", "Action with a hard hero"),
    ("Lethal", "From the 1990s"),
    ("Mockingjay", "About hunger"),
    ("Eclipse", "With vampires; an eclipse would be nice"),
    ("Khan", "Science fiction."),
    ("Scream 2", "One that makes me scream"),
    ("Ice Age", "Animation, please"),
    ("Frozen", "Set in a frozen land"),
    ("Hobbit", "A long journey"),
    ("Léon", "About a professional killer"),
    ("Home Alone", "Something at home"),
    ("Future", "Set in the future"),
    ("Wonder", "With a woman as hero"),
    ("H20", "It is for Halloween night"),
    ("Room", "I don't care."),
    ("Life of Pi", "About life."),
    ("Girl", "With a girl and a dragon"),
    ("Zelda", "I have time."),
    ("It", "Horror."),
    ("Monty", "Comedy, please."),
    ("Crouching", "About a tiger"),
]


def measure(items: list[tuple[str, int]], naming: list[tuple[str, str]], others: list[tuple[str, str]]) -> Measured:
    """Find the answers that name the item whose title contains a part."""
    names = TitleNames(Catalog.from_items(items))
    titles = [title for title, _ in items]

    def is_named(part: str, text: str) -> bool:
        is_whole = part in titles
        row = titles.index(part) if is_whole else next(row for row, title in enumerate(titles) if part in title)
        return names.is_named(text, [row])

    missed = [case for case in naming if not is_named(*case)]
    wrong = [case for case in others if is_named(*case)]
    num_hits = len(naming) - len(missed)
    return Measured(num_hits / len(naming), num_hits / (num_hits + len(wrong)), [*missed, *wrong])


def test_title_naming_is_detected_but_title_words_do_not_count() -> None:
    assert len(NAMING) + len(OPEN) > 100
    measured = measure(ITEMS, NAMING, OPEN)
    assert measured.recall >= 0.98, measured.told_wrong
    assert measured.precision >= 0.98, measured.told_wrong


def test_title_naming_generalises_to_a_held_out_table() -> None:
    measured = measure(OTHER_ITEMS, OTHER_NAMING, OTHER_OPEN)
    assert measured.recall >= 0.9, measured.told_wrong
    assert measured.precision >= 0.95, measured.told_wrong


def test_a_part_shared_by_several_series_names_no_title() -> None:
    items = [("The Exorcist: The Long Beginning", 2004), ("Pokémon: The Long Beginning", 2009)]
    assert not TitleNames(Catalog.from_items(items)).is_named("the long beginning", [0])
    assert TitleNames(Catalog.from_items(items[:1])).is_named("the long beginning", [0])


def test_aliases_name_an_item() -> None:
    catalog = Catalog.from_columns({"title": ["Gojira"], "year": [1954], "aliases": [["Godzilla: King of Monsters"]]})
    names = TitleNames(catalog)
    assert names.is_named("godzilla", [0])
    assert not names.is_named("with monsters", [0])
