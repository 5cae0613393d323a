"""Sixteen characters, a token each. In the chat template `?491:` asks, and `194` answers."""

PAD, END, ASK, ANSWER = range(4)
CHARACTERS = "_\n?:0123456789 #"
UNKNOWN = CHARACTERS.index("#")
_IDS = {character: token for token, character in enumerate(CHARACTERS)}


def encode(text):
    """Token ids of a text; characters that the vocabulary lacks become `#`."""
    return [_IDS.get(character, UNKNOWN) for character in text]


def decode(tokens):
    """The text of token ids; the end is silent, and whatever else was generated shows."""
    return "".join(CHARACTERS[token] for token in tokens if token != END)


def chat(messages):
    """The prompt of a conversation: each turn after its mark, and the mark of the next answer."""
    tokens = []
    for message in messages:
        own = message["role"] == "assistant"
        tokens += [ANSWER if own else ASK, *encode(message["content"])]
        tokens += [END] if own else []
    return [*tokens, ANSWER]
