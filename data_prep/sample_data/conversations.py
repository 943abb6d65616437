"""Conversations that state a taste in words: nothing that their ground truth depends on is hidden from a reader, which
benchmarks/studies/sample_ceiling.py proves."""

from collections.abc import Sequence

import numpy as np

from data_prep.sample_data.films import FilmTable, Taste

GENRE_WORDS = {  # genre -> how it is asked for, before "movie(s)" or "film(s)"
    "action": ("action",),
    "adventure": ("adventure",),
    "animation": ("animated",),
    "comedy": ("comedy", "funny"),
    "crime": ("crime", "gangster"),
    "documentary": ("documentary",),
    "drama": ("drama",),
    "family": ("family", "kids"),
    "fantasy": ("fantasy",),
    "history": ("historical",),
    "horror": ("horror", "scary"),
    "musical": ("musical",),
    "mystery": ("mystery", "detective"),
    "romance": ("romantic",),
    "science fiction": ("sci-fi", "science fiction"),
    "sports": ("sports",),
    "superhero": ("superhero",),
    "thriller": ("thriller",),
    "war": ("war",),
    "western": ("western",),
}
ERA_WORDS = {
    "classic": ("classic", "old"),
    "70s": ("70s",),
    "80s": ("80s",),
    "90s": ("90s",),
    "2000s": ("2000s",),
    "recent": ("recent", "new"),
}

GENRE_LINES = (
    "I'm in the mood for {g} movies.",
    "Can you recommend some {g} movies?",
    "Looking for a good {g} film tonight.",
    "I love {g} films.",
    "Any great {g} movies out there?",
    "I want to watch something {g}.",
    "What {g} movies should I see?",
    "Please suggest {g} movies for the weekend.",
    "We are planning a {g} movie night.",
)
GENRE_ERA_LINES = (
    "I'm in the mood for {e} {g} movies.",
    "Can you recommend some {e} {g} movies?",
    "Looking for a good {e} {g} film tonight.",
    "Any great {e} {g} movies out there?",
    "What {e} {g} movies should I see?",
)
ERA_LINES = (
    "Something {e} would be best.",
    "I mostly watch {e} movies.",
    "I prefer {e} films.",
    "Only {e} ones please.",
)
LIKED_LINES = (
    "I loved {f}.",
    "My favorite is {f}.",
    "I really enjoyed {f}.",
    "Something like {f} please.",
    "I just watched {f} and it was amazing.",
    "{f} is so good.",
)
SEEN_LINES = ("I have already seen {f}.", "No need to tell me about {f}.", "I know {f} by heart.")
VAGUE_LINES = (
    "I want to watch something tonight.",
    "Can you recommend a movie?",
    "What should I watch next?",
    "We need a film for the weekend.",
)
OPENERS = ("Hi! ", "Hello. ", "Hey there! ", "")
CLOSERS = ("", "", "Thanks!", "Any ideas?", "What do you think?", "Surprise me.")
SYSTEM_OPENERS = (
    "Hello, what kind of movie are you looking for?",
    "Hi! How can I help you today?",
    "Hey, what do you like to watch?",
)
SYSTEM_LINES = (
    "Sure, tell me more.",
    "Good choice! Anything else I should know?",
    "Which movies did you like?",
    "Okay, got it. Any other wishes?",
    "What else do you enjoy?",
)
SUGGESTION_LINES = ("Have you seen {f}?", "You could try {f}.", "How about {f}?")
SUGGESTION_REPLIES = ("Yes, I liked it.", "Seen it, it was great.", "I saw that one already.")
CHATTER = (
    "It has been a long week and I finally have an evening to myself.",
    "My sister and I argue about this every single time we sit down in front of the screen.",
    "Last time the popcorn was gone before the opening credits were over.",
    "I don't mind subtitles and I don't mind slow starts.",
    "We have a big couch, a small projector and very patient neighbors.",
    "Reviews never help me because everybody seems to like different things.",
    "My list was lost when I changed phones, so I am starting all over again.",
    "I usually fall asleep when it runs for more than three hours, but I am willing to try.",
)
MAX_TURNS = 5
LONG_SHARE = 0.02  # of conversations with a rambling first turn, as in Reddit posts


def write_conversation(table: FilmTable, taste: Taste, rng: np.random.Generator) -> str:
    """A conversation of one to five turns, the last one the user's, that states `taste` and names its films as seen. Of
    an empty taste it says nothing."""

    def pick(lines: Sequence[str]) -> str:
        return lines[int(rng.integers(len(lines)))]

    def genre_phrase() -> str:
        return " ".join(pick(GENRE_WORDS[genre]) for genre in taste.genres)

    turns_wanted = 1 + int(rng.choice(MAX_TURNS, p=[0.3, 0.2, 0.25, 0.15, 0.1]))
    named = [table.films[row].name for row in taste.named]
    suggested = named.pop() if named and turns_wanted >= 3 and rng.random() < 0.5 else None

    statements = []
    if taste.genres and taste.era and rng.random() < 0.6:
        statements.append(pick(GENRE_ERA_LINES).format(g=genre_phrase(), e=pick(ERA_WORDS[taste.era])))
    else:
        if taste.genres:
            statements.append(pick(GENRE_LINES).format(g=genre_phrase()))
        if taste.era:
            statements.append(pick(ERA_LINES).format(e=pick(ERA_WORDS[taste.era])))
    statements += [pick(LIKED_LINES if rng.random() < 0.7 else SEEN_LINES).format(f=name) for name in named]

    statements = statements or [pick(VAGUE_LINES)]
    user_turns = min(max(turns_wanted // 2 + turns_wanted % 2 - (suggested is not None), 1), max(len(statements), 1))
    spoken: list[list[str]] = [[] for _ in range(user_turns)]
    for index, statement in enumerate(statements):
        spoken[index * user_turns // len(statements)].append(statement)
    if rng.random() < LONG_SHARE:
        spoken[0][:0] = [CHATTER[i] for i in rng.integers(len(CHATTER), size=rng.integers(10, 22))]

    lines = []
    if turns_wanted % 2 == 0:
        lines.append(f"SYSTEM: {pick(SYSTEM_OPENERS)}")
    for index, said in enumerate(spoken):
        if index:
            lines.append(f"SYSTEM: {pick(SYSTEM_LINES)}")
        opener = pick(OPENERS) if index == 0 else ""
        lines.append(f"USER: {opener}{' '.join(said)}")
    if suggested is not None:
        lines.append(f"SYSTEM: {pick(SUGGESTION_LINES).format(f=suggested)}")
        lines.append(f"USER: {pick(SUGGESTION_REPLIES)}")
    lines[-1] = f"{lines[-1]} {pick(CLOSERS)}".rstrip()
    return "\n".join(lines) + "\n"
